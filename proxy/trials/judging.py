"""Have a model judge completed runs against the recorded ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from calls.judgement.rubric import Criterion
from proxy.commands.judge import Judge, judge_runs
from proxy.errors import Failure
from proxy.trials.recordings import NamedRecording
from proxy.trials.regress import Regression, RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseJudge:
    """A judge of new runs against old ones."""

    criteria: Sequence[Criterion]
    judge: Judge

    async def judge_all(
        self, regression: Regression, recordings: Sequence[NamedRecording], results: Sequence[RunResult]
    ) -> list[RunResult]:
        """Judge every run that was completed. What cannot be judged says why."""
        return [
            await self._judge(regression, recording, result)
            for recording, result in zip(recordings, results, strict=True)
        ]

    async def _judge(self, regression: Regression, recording: NamedRecording, result: RunResult) -> RunResult:
        completion = result.completion
        if completion is None or not completion.finished or completion.file is None:
            return result
        try:
            judgements, run = await judge_runs(
                regression.runner.settings,
                [completion.file],
                recording.name,
                self.criteria,
                self.judge,
                judge_run=None,
                reading=regression.reading,
                redactor=regression.redactor,
            )
        except Failure as failure:
            return replace(result, judge_trouble=str(failure), is_decided_live=True)
        return replace(result, judgements=judgements, judge_run=run, is_decided_live=True)
