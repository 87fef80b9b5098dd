"""The command that replays many recordings against changed code: regress."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from calls.judgement.prompt import JudgeSettings
from proxy.capture.command import DEFAULT_ISOLATION
from proxy.cli.common import (
    ALLOW_UNUSED,
    as_json,
    print_json,
    settings_from_flags,
    step_reader,
    with_isolation,
    with_settings,
)
from proxy.cli.look.list_options import fetch_list, has_filters, take_list_query, with_filters
from proxy.cli.run_completion import complete_recording
from proxy.cli.testing.trial_options import (
    JUNIT_HELP,
    CommandAfterDashes,
    TrialOptions,
    parse_usd,
    run_until_stopped,
    scratch_runner,
    show_progress,
    take_trial_options,
    with_trial_options,
)
from proxy.commands.check import read_spec
from proxy.commands.judge import Judge, read_rubric
from proxy.errors import Failure, unwritable_file
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.table import stdout_sheet
from proxy.terminal.text import printable
from proxy.trials.completion import Budget, Completions, budget_text
from proxy.trials.judging import PairwiseJudge
from proxy.trials.recordings import find_recordings
from proxy.trials.regress import Regression, RunResult, exit_code
from proxy.trials.regress_report import regression_json, regression_junit, show_regression

MOST_RUNS: Final = 10_000


@click.command("regress", cls=CommandAfterDashes, short_help="Replay many recordings against changed code.")
@with_settings
@as_json
@with_filters
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_RUNS),
    default=100,
    help="How many runs the filters select at most: the newest. Default: 100.",
)
@ALLOW_UNUSED
@click.option(
    "--spec",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Check what the command does in each replay against these rules (docs/check.md).",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=JUNIT_HELP)
@click.option(
    "--live-budget",
    metavar="AMOUNT",
    help="Complete the runs that diverged live, until the calls of models have cost this, such as 2.00USD.",
)
@with_trial_options
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the bundles of runs that were completed live go. Default: ./regress-TIME.",
)
@click.option(
    "--rubric",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Have a model judge each completed run against the old one by these criteria (docs/judge.md).",
)
@click.option("--judge-model", metavar="NAME", help="The model that judges.")
@click.option("--judge-url", metavar="URL", help="The base URL of its OpenAI-compatible API.")
@click.option(
    "--judge-key-env",
    default="OPENAI_API_KEY",
    metavar="NAME",
    help="The variable with its API key. Default: OPENAI_API_KEY.",
)
@with_isolation
@click.argument("recordings", metavar="[RUN|FILE|DIR]…", nargs=-1, shell_complete=complete_recording)
def regress_command(
    recordings: tuple[str, ...],
    limit: int,
    allow_unused: bool,
    spec: Path | None,
    junit: Path | None,
    live_budget: str | None,
    keep: Path | None,
    rubric: Path | None,
    judge_model: str | None,
    judge_url: str | None,
    judge_key_env: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Replay many recordings against changed code, in parallel, and group what came of them.

    Recordings are runs, files, all bundles in a directory, and the runs that filters select, which are those of `playhead ls`. Each
    replay runs COMMAND with its network cut and a TMPDIR of its own. The result is `same`; `diverged`, grouped by cause, kind of step
    and place in the request; or `cannot tell`: COMMAND failed before its first call, took too long, or exited with 125.

    In COMMAND, {run} stands for the recorded run, and {label.NAME} for its label, where each was recorded with other arguments.

    With --live-budget the calls after a divergence are answered live, by the rules of `playhead fork`. Such a run `passed` if the rules of
    --spec and the judge of --rubric find nothing wrong, and is `broken` otherwise.

    \b
        playhead regress tests/recordings/ -- python agent.py
        playhead regress --label suite=refunds --since 30d --jobs 4 -- python agent.py
        playhead regress tests/recordings/ --live-budget 2.00USD --spec checks.toml -- python agent.py
        git bisect run playhead regress tests/recordings/ -- python agent.py

    Exits with 0 if every run is the same or passed, 1 if one diverged or a rule is broken, and otherwise with 125 if one cannot be told.
    """
    trials = take_trial_options(flags, "playhead regress last -- python agent.py")
    query = take_list_query(flags)
    if not recordings and not has_filters(query):
        raise Failure(
            "there are no recordings to replay: name runs, bundles or a directory of bundles, or select runs by --label or another filter"
        )
    rules = read_spec(spec) if spec is not None else ()
    budget = _budget(live_budget, trials, keep, rubric)
    pairwise = _pairwise_judge(rubric, judge_model, judge_url, judge_key_env)
    settings = settings_from_flags(**flags)
    reading, redactor = step_reader(settings)
    with scratch_runner("regress", settings, flags, trials, allow_unused=allow_unused) as runner:
        regression = Regression(
            runner=runner,
            reading=reading,
            redactor=redactor,
            jobs=trials.jobs,
            spec=rules,
            show_progress=show_progress,
        )
        completions = None if budget is None else _completions(regression, budget, trials, keep)
        results = run_until_stopped(_replay(regression, recordings, query, limit, completions, pairwise))
    if junit is not None:
        _write_file(junit, regression_junit(results))
    if as_json:
        print_json(regression_json(results, trials.command, None if budget is None else budget.as_json()))
    else:
        show_regression(results, stdout_sheet())
        if completions and any(result.completion for result in results):
            summary = f"{budget_text(completions.budget)}; the new runs: {printable(str(completions.directory))}"
            click.echo(f"playhead: {summary}", err=True)
    raise click.exceptions.Exit(exit_code(results))


def _completions(regression: Regression, budget: Budget, trials: TrialOptions, directory: Path | None) -> Completions:
    return Completions(
        regression=regression,
        budget=budget,
        effects=trials.effects,
        model_origin=trials.model_origin,
        directory=directory or Path(f"regress-{datetime.now(UTC):%Y%m%d-%H%M%S}"),
    )


async def _replay(
    regression: Regression,
    names: Sequence[str],
    query: Mapping[str, Any],
    limit: int,
    completions: Completions | None,
    pairwise: PairwiseJudge | None,
) -> list[RunResult]:
    def list_runs(api: Any) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = fetch_list(api, "/runs", limit, {**query, "settled": True})["items"]
        return [run for run in listed if run["calls"]]

    # While it is entered, the store server that it uses stays for the trials.
    async with CommandProcesses(regression.runner.settings) as processes:
        found = await find_recordings(
            processes, names, list_runs if has_filters(query) else None, regression.runner.scratch / "recordings"
        )
        results = await regression.replay_all(found)
        if completions is not None:
            results = await completions.complete_all(found, results)
        if pairwise is not None:
            results = await pairwise.judge_all(regression, found, results)
        return results


def _budget(amount: str | None, trials: TrialOptions, keep: Path | None, rubric: Path | None) -> Budget | None:
    if amount is not None:
        return Budget(usd=parse_usd(amount), allows_unpriced=trials.model_origin is not None)
    options = {"--model-url": trials.model_origin, "--side-effects": trials.effects, "--keep": keep, "--rubric": rubric}
    if name := next((name for name, value in options.items() if value), None):
        raise click.UsageError(
            f"{name} is about runs that are completed live: give a --live-budget such as 2.00USD as well"
        )
    return None


def _pairwise_judge(rubric: Path | None, model: str | None, url: str | None, key_variable: str) -> PairwiseJudge | None:
    if rubric is None:
        if model or url:
            raise click.UsageError(
                "--judge-model and --judge-url are for a judge with criteria: give a --rubric as well"
            )
        return None
    if not model or not url or not url.startswith(("http://", "https://")):
        raise click.UsageError("--rubric needs a judge: give --judge-model NAME and --judge-url http://… as well")
    judge = Judge(
        settings=JudgeSettings(model=model, temperature=0.0, seed=1, votes=1, has_schema=True),
        url=url,
        key_variable=key_variable,
        timeout_s=300.0,
        isolation=DEFAULT_ISOLATION,
    )
    return PairwiseJudge(criteria=read_rubric(rubric), judge=judge)


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise unwritable_file(path, error) from error


COMMANDS = (regress_command,)
