"""The command that asks models the same again: canary."""

import asyncio
from dataclasses import replace
from typing import Any

import click

from proxy.canary.canary_settings import CanarySettings, ModelAddress, read_model_url
from proxy.canary.report import show_canary, worst_exit_code
from proxy.canary.shots import ShotResult, run_shot
from proxy.cli.common import (
    as_json,
    isolation_options,
    print_json,
    settings_from_flags,
    step_reader,
    with_isolation,
    with_settings,
)
from proxy.cli.testing.trial_options import parse_usd
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import path_segment
from proxy.settings import Settings
from proxy.terminal.table import stdout_sheet
from proxy.terminal.text import count_text, money


@click.command("canary", short_help="Ask models the same again, and say whether they changed.")
@with_settings
@as_json
@click.option(
    "--times", type=click.IntRange(1, 10_000), help="How many calls this shot makes, in place of the setting."
)
@click.option("--budget", metavar="AMOUNT", help="What this shot may cost, such as 0.50USD, in place of the setting.")
@click.option(
    "--embeddings",
    metavar="URL/MODEL",
    help="Compare answers by the distance of these embeddings, too, of an OpenAI-compatible API.",
)
@click.option("--judge", metavar="URL/MODEL", help="Have this model judge whether answers mean the same, too.")
@click.option("--list", "is_list", is_flag=True, help="Say what is known, and ask nothing.")
@click.option("--reset", is_flag=True, help="Forget what is known of these canaries, and ask nothing.")
@with_isolation
@click.argument("names", metavar="[NAME]…", nargs=-1)
def canary_command(
    names: tuple[str, ...],
    times: int | None,
    budget: str | None,
    embeddings: str | None,
    judge: str | None,
    is_list: bool,
    reset: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Ask the pinned calls of each [[canary]] in playhead.toml once more, and say whether the model behind them changed.

    The first shots measure how often answers differ while nothing changes. Then the verdict is unchanged, changed or cannot tell; the
    probability that a model that did not change is ever said to have is at most `false_alarm` (docs/canary.md).

    \b
        playhead canary
        playhead canary refunds --times 50 --budget 0.50USD
        playhead canary --embeddings https://api.openai.com/v1/text-embedding-3-small
        playhead canary --list

    Exits with 0 if all are unchanged, 1 if one changed, 3 if one cannot be told.
    """
    isolation = isolation_options(flags)
    settings = settings_from_flags(**flags)
    canaries = _chosen_canaries(settings, names)
    if times is not None:
        canaries = [replace(one, times=times) for one in canaries]
    if budget is not None:
        canaries = [replace(one, budget_usd=float(parse_usd(budget))) for one in canaries]
    if embeddings is not None:
        canaries = [replace(one, embeddings=_model_address("--embeddings", embeddings)) for one in canaries]
    if judge is not None:
        canaries = [replace(one, judge=_model_address("--judge", judge)) for one in canaries]
    if is_list or reset:
        items = asyncio.run(_look(settings, [one.name for one in canaries], reset=reset))
        if not reset:
            _show(items, as_json=as_json)
        raise click.exceptions.Exit(0 if reset else worst_exit_code(items))
    reading, redactor = step_reader(settings)
    results = [asyncio.run(run_shot(settings, one, isolation, reading, redactor)) for one in canaries]
    if as_json:
        print_json({"canaries": [dict(one.canary) | _shot_json(one) for one in results]})
    else:
        sheet = stdout_sheet()
        for one in results:
            show_canary(one.canary, sheet, _shot_notes(one))
    raise click.exceptions.Exit(worst_exit_code([one.canary for one in results]))


def _model_address(option: str, text: str) -> ModelAddress:
    try:
        return read_model_url(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _chosen_canaries(settings: Settings, names: tuple[str, ...]) -> list[CanarySettings]:
    known = {one.name: one for one in settings.canary}
    if not known:
        raise Failure(
            "there are no canaries: add one to playhead.toml, [[canary]] with a name and the calls that it asks (docs/canary.md)"
        )
    if unknown := [name for name in names if name not in known]:
        raise Failure(f"there is no canary {unknown[0]}: playhead.toml has {', '.join(known)}")
    return [known[name] for name in names] if names else list(known.values())


async def _look(settings: Settings, names: list[str], *, reset: bool) -> list[dict[str, Any]]:
    async with CommandProcesses(settings) as processes:
        with await processes.connect_store_server() as api:
            items: list[dict[str, Any]] = [one for one in api.get("/canaries")["items"] if one["name"] in names]
            for one in items if reset else ():
                api.delete(f"/canaries/{path_segment(one['name'])}")
                click.echo(f"playhead: {one['name']} begins anew with its next shot", err=True)
    return items


def _show(items: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"canaries": items})
        return
    sheet = stdout_sheet()
    for one in items:
        show_canary(one, sheet)
    if not items:
        sheet.print_sentence("no canary has asked anything yet: playhead canary")


def _shot_json(result: ShotResult) -> dict[str, Any]:
    return {"asked": result.asked, "not_run": result.not_run, "spent_usd": result.spent_usd}


def _shot_notes(result: ShotResult) -> list[str]:
    not_run = f", {count_text(result.not_run, 'call')} not run" if result.not_run else ""
    unpriced = f", without {count_text(result.unpriced, 'answer')} whose price is not known" if result.unpriced else ""
    notes = [f"asked {count_text(result.asked, 'call')} for {money(result.spent_usd)}{unpriced}{not_run}"]
    return [*notes, result.webhook_problem] if result.webhook_problem else notes


COMMANDS = (canary_command,)
