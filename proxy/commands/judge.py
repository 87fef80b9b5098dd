"""`playhead judge`: have a model judge runs by a rubric. The judgement is recorded as a run, and replayed the next time."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calls.checking.checked_run import CheckedRun
from calls.judgement.prompt import JudgeSettings, Question, absolute_questions, pairwise_questions
from calls.judgement.rubric import BadRubric, Criterion, parse_rubric
from calls.judgement.transcript import run_transcript
from calls.judgement.verdict import Judgement, JudgeVerdict, read_vote
from calls.redaction.redactor import Redactor
from proxy.capture.command import IsolationOptions
from proxy.commands.check import load_checked_runs
from proxy.commands.record import record
from proxy.commands.replay import ReplayCommand, replay
from proxy.errors import Failure, explain_file_errors
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import NotFound, path_segment
from proxy.settings import Settings
from store.diff.steps import StepReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The model that judges, and where it is."""

    settings: JudgeSettings
    url: str
    """The base URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1."""

    key_variable: str
    timeout_s: float
    isolation: IsolationOptions

    @property
    def endpoint(self) -> str:
        """The URL of chat completions."""
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


def read_rubric(path: Path) -> tuple[Criterion, ...]:
    """Read a rubric. Raise Failure that says what is wrong."""
    advice = "name a file with [[criterion]] tables, each with `name` and `question`"
    with explain_file_errors(path, "rubric", advice, BadRubric):
        return parse_rubric(path.read_text("utf-8"))


async def judge_runs(
    settings: Settings,
    names: Sequence[str],
    against: str | None,
    criteria: Sequence[Criterion],
    judge: Judge,
    *,
    judge_run: str | None,
    reading: StepReader,
    redactor: Redactor,
) -> tuple[list[Judgement], str]:
    """Judge runs and files. Return the judgements, and the run in which they are recorded. Raise Failure."""
    async with CommandProcesses(settings) as processes:
        runs = await load_checked_runs(processes, names, reading, redactor)
        old = (await load_checked_runs(processes, [against], reading, redactor))[0] if against is not None else None
        questions, transcripts = _make_questions(runs, old, criteria, judge.settings)
        name = judge_run or _judge_run_name(questions, judge)
        is_known = await _has_run(processes, name)
    answers = await _ask_judge(settings, judge, questions, name, is_known=is_known)
    return _read_judgements(questions, answers, transcripts), name


def _make_questions(
    runs: Sequence[CheckedRun], old: CheckedRun | None, criteria: Sequence[Criterion], settings: JudgeSettings
) -> tuple[list[Question], Mapping[str, Sequence[str]]]:
    """Return the requests, and by run all lines that a quote may be from."""
    questions: list[Question] = []
    transcripts: dict[str, Sequence[str]] = {}
    before = run_transcript(old) if old is not None else ()
    for run in runs:
        lines = run_transcript(run)
        if old is None:
            questions += absolute_questions(run.name, lines, criteria, settings)
        else:
            questions += pairwise_questions(run.name, before, lines, criteria, settings)
        transcripts[run.name] = (*before, *lines)
    return questions, transcripts


def _judge_run_name(questions: Sequence[Question], judge: Judge) -> str:
    """Return a name that is the same for the same questions to the same judge, whatever the number of votes."""
    about = [judge.endpoint, *(json.dumps(one.body, sort_keys=True) for one in questions if one.vote == 0)]
    return f"judge-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]}"


async def _has_run(processes: CommandProcesses, name: str) -> bool:
    with await processes.connect_store_server(may_create=True) as api:
        try:
            return bool(api.get(f"/runs/{path_segment(name)}")["exchanges"])
        except NotFound:
            return False


async def _ask_judge(
    settings: Settings, judge: Judge, questions: Sequence[Question], name: str, *, is_known: bool
) -> list[dict[str, Any]]:
    """Run the program that asks, recorded as a run; or answered from that run, with what is new recorded."""
    with tempfile.TemporaryDirectory(prefix="playhead-judge-") as text:
        directory = Path(text)
        content = {
            "url": judge.endpoint,
            "key_variable": judge.key_variable,
            "timeout_s": judge.timeout_s,
            "bodies": [one.body for one in questions],
        }
        (directory / "questions.json").write_text(json.dumps(content), "utf-8")
        command = [sys.executable, "-m", "proxy.judgement.ask", text]
        if is_known:
            options = {
                "pace": "instant",
                "on_miss": "record",
                "from_step": None,
                "after_last": "miss",
                "allow_unused": True,
            }
            code = await replay(
                settings,
                command,
                ReplayCommand(recording=name, report=None, options=options, isolation=judge.isolation),
            )
        else:
            code = await record(
                settings, command, run=name, labels={"kind": "judge"}, quiet=True, isolation=judge.isolation
            )
        try:
            answers: list[dict[str, Any]] = json.loads((directory / "answers.json").read_bytes())
        except (OSError, ValueError) as error:
            raise Failure(f"the program that asks the judge ended with {code} and left no answers ({error})") from error
    if answers and all("error" in one for one in answers):
        key = "" if os.environ.get(judge.key_variable) else f" ({judge.key_variable} is not set)"
        raise Failure(f"the judge did not answer: {answers[0]['error']}{key}; check --url and --model")
    return answers


def _read_judgements(
    questions: Sequence[Question], answers: Sequence[Mapping[str, Any]], transcripts: Mapping[str, Sequence[str]]
) -> list[Judgement]:
    votes: dict[tuple[str, str], list[Any]] = {}
    for question, answer in zip(questions, answers, strict=True):
        vote = read_vote(answer.get("text") or answer.get("error"), transcripts[question.run], question.order)
        votes.setdefault((question.run, question.criterion), []).append(vote)
    return [Judgement(run=run, criterion=criterion, votes=tuple(each)) for (run, criterion), each in votes.items()]


def overall_verdict(judgements: Sequence[Judgement]) -> JudgeVerdict:
    """Return `fail` if anything failed, else `cannot tell` if anything is undecided, else `pass`."""
    verdicts = {one.verdict for one in judgements}
    if "fail" in verdicts:
        return "fail"
    return "cannot tell" if "cannot tell" in verdicts else "pass"
