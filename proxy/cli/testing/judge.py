"""The command that has a model judge runs: judge."""

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from calls.judgement.agreement import Agreement, BadLabels, labelled_pairs, measure_agreement, parse_labels_file
from calls.judgement.prompt import JudgeSettings
from calls.judgement.verdict import Judgement
from proxy.capture.command import IsolationOptions
from proxy.cli.common import RUN_ID, as_json, print_json, settings_from_flags, step_reader, with_settings
from proxy.cli.run_completion import complete_recording
from proxy.commands.judge import Judge, judge_runs, overall_verdict, read_rubric
from proxy.errors import explain_file_errors
from proxy.judgement.report import judgements_json, show_judgements
from proxy.terminal.table import stdout_sheet

EXIT_CODES: Final = {"pass": 0, "fail": 1, "cannot tell": 3}
TIMEOUT: Final = 300.0
"""Seconds in which the judge must answer a question."""


@click.command("judge", short_help="Have a model judge what runs did, by the criteria of a rubric.")
@with_settings
@as_json
@click.option(
    "--rubric",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The criteria: [[criterion]] tables with `name` and `question`.",
)
@click.option("--model", required=True, metavar="NAME", help="The model that judges.")
@click.option(
    "--url",
    required=True,
    metavar="URL",
    help="The base URL of its OpenAI-compatible API, such as https://api.openai.com/v1 or that of `playhead inference up`.",
)
@click.option(
    "--against",
    metavar="RUN|FILE",
    shell_complete=complete_recording,
    help="Compare each run with this older one, in both orders. pass: the new one is not worse.",
)
@click.option(
    "--votes",
    type=click.IntRange(1, 25),
    default=1,
    help="How often each question is asked, each time with the next seed.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, help="Of the judge. Default: 0.")
@click.option("--seed", type=int, default=1, help="The seed of the first vote. Default: 1.")
@click.option(
    "--key-env",
    default="OPENAI_API_KEY",
    metavar="NAME",
    help="The variable with the API key. Default: OPENAI_API_KEY.",
)
@click.option(
    "--no-schema", is_flag=True, help="Do not ask for a JSON Schema, for servers that refuse `response_format`."
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Human verdicts, CSV with the columns run, criterion, verdict: print how far the judge agrees with them.",
)
@click.option(
    "--run",
    "judge_run",
    type=RUN_ID,
    metavar="ID",
    help="The run that records the judgement. Default: a name from its questions.",
)
@click.argument("recordings", metavar="RUN|FILE…", nargs=-1, required=True, shell_complete=complete_recording)
def judge_command(
    recordings: tuple[str, ...],
    rubric: Path,
    model: str,
    url: str,
    against: str | None,
    votes: int,
    temperature: float,
    seed: int,
    key_env: str,
    no_schema: bool,
    labels: Path | None,
    judge_run: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Have a model judge what runs did, by the criteria of a rubric, with a reason and a quote for each verdict.

    Rules that can be checked exactly belong into `playhead check`. The judgement is recorded as a run of its own: judging again asks
    nothing and costs nothing, and the verdicts can be looked at with `playhead show`. Votes that disagree, answers that are no JSON and
    quotes that are not in the transcript are `cannot tell`, never a verdict.

    \b
        playhead judge last --rubric rubric.toml --model gpt-5-mini --url https://api.openai.com/v1
        playhead judge new --against old --rubric rubric.toml --model judge --url http://127.0.0.1:8000/v1 --votes 3

    Exits with 0 if every criterion passes, 1 if one fails, 3 if none fails but one cannot be told, and 125 if nothing could be judged.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url {url!r} is not a URL: write http://… or https://…")
    criteria = read_rubric(rubric)
    human_labels = _read_labels(labels) if labels is not None else None
    found = settings_from_flags(**flags)
    judge = Judge(
        settings=JudgeSettings(model=model, temperature=temperature, seed=seed, votes=votes, has_schema=not no_schema),
        url=url,
        key_variable=key_env,
        timeout_s=TIMEOUT,
        isolation=IsolationOptions(mode="auto", allow_local=(), watch="seccomp"),
    )
    reading, redactor = step_reader(found)
    judgements, name = asyncio.run(
        judge_runs(found, recordings, against, criteria, judge, judge_run=judge_run, reading=reading, redactor=redactor)
    )
    agreement = _agreement(judgements, human_labels) if human_labels is not None else None
    verdict = overall_verdict(judgements)
    if as_json:
        print_json(judgements_json(judgements, agreement, verdict, name))
    else:
        show_judgements(judgements, agreement, stdout_sheet())
        click.echo(f"playhead: the judgement is recorded as run {name}: playhead show {name}", err=True)
    raise click.exceptions.Exit(EXIT_CODES[verdict])


def _read_labels(path: Path) -> Any:
    advice = "name a CSV file with the columns run, criterion, verdict"
    with explain_file_errors(path, "labels", advice, BadLabels):
        return parse_labels_file(path.read_text("utf-8"))


def _agreement(judgements: list[Judgement], labels: Any) -> Agreement:
    return measure_agreement(labelled_pairs({(one.run, one.criterion): one.verdict for one in judgements}, labels))


COMMANDS = (judge_command,)
