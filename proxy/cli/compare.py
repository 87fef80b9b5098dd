"""The commands that compare: diff, bisect, drift."""

import asyncio
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.capture.command import IsolationOptions
from proxy.cli.common import (
    as_json,
    isolation_options,
    parse_time,
    print_json,
    query_store,
    settings_from_flags,
    step_reader,
    with_isolation,
    with_settings,
)
from proxy.cli.run_completion import complete_command, complete_recording
from proxy.commands.bisect import BadRunSucceeds, Bisection, BisectResult, verdict_sentence
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, path_segment, resolve_run_name
from proxy.processes.user_command import require_command
from proxy.run_names import missing_file_failure, recording_path, unknown_run_failure
from proxy.settings import Settings
from proxy.terminal.render_diff import show_diff
from proxy.terminal.render_drift import show_drift
from proxy.terminal.table import stdout_sheet
from proxy.terminal.text import printable
from proxy.terminal.waiting import show_waiting
from proxy.worker.recordings import load_file
from store.bundle.bundle import Bundle, read_bundle
from store.diff.diff import build_diff as compared_runs
from store.diff.diff import compare_runs
from store.diff.mixed_recording import Mixture
from store.diff.steps import StepReader, step_shape
from store.diff.volatile_values import equalize_volatile_values
from store.effects.comparison import shape_with_recorded_effects

DIFFER = 1


@click.command("diff", short_help="Show where two runs diverge, and why.")
@with_settings
@as_json
@click.option(
    "--all-calls",
    "everything",
    is_flag=True,
    help="Show every call in a line of its own, also equal ones and those that follow from another difference.",
)
@click.argument("one", metavar="A", shell_complete=complete_recording)
@click.argument("other", metavar="B", shell_complete=complete_recording)
def diff_command(one: str, other: str, everything: bool, as_json: bool, **flags: Any) -> None:
    """Align two runs and show where they diverge, what each of them has there, and why.

    A and B are runs, `last`, or bundle files. Calls that were added, left out or repeated are recognised. For the others the cause
    is shown: another request, another model, another answer of a model or a tool, or a consequence of one of these. Exits with 0 if
    the runs are the same (differences outside the keys do not count), 1 if they differ, and 125 if the comparison failed.

    \b
        playhead diff ticket-904 last
        playhead diff tests/recordings/good.jsonl last --json
    """
    found = settings_from_flags(**flags)
    result = asyncio.run(compare_recordings(found, one, other))
    if as_json:
        print_json(result)
    else:
        show_diff(result, stdout_sheet(), everything=everything)
    raise click.exceptions.Exit(0 if result["same"] else DIFFER)


async def compare_recordings(settings: Settings, one: str, other: str) -> dict[str, Any]:
    """Compare two runs or files. Raise Failure if one cannot be read."""
    reading, redactor = step_reader(settings)
    names = (one, other)
    files = {name: path for name in names if (path := _recording_file(name))}
    if all(name in files for name in names):
        with show_waiting("comparing"):
            bundles = [load_file(files[name], redactor, reading.profiles) for name in names]
            found_diff = compare_runs((one, bundles[0].exchanges), (other, bundles[1].exchanges), reading)
            starts = [sorted(exchange.started_at for exchange in bundle.exchanges) for bundle in bundles]
            return shape_with_recorded_effects(found_diff, (bundles[0], starts[0]), (bundles[1], starts[1]))
    async with CommandProcesses(settings) as processes:
        if not files:
            with await processes.connect_store_server() as api, show_waiting("comparing"):
                return await asyncio.to_thread(_fetch_diff, api, one, other)
        sides = [await _load_bundle(processes, name, redactor, reading) for name in names]
    with show_waiting("comparing"):
        return await asyncio.to_thread(compare_runs, (one, sides[0].exchanges), (other, sides[1].exchanges), reading)


def _fetch_diff(api: Api, one: str, other: str) -> dict[str, Any]:
    runs = [resolve_run_name(api, name) for name in (one, other)]
    try:
        path = f"/runs/{path_segment(runs[0])}/diff/{path_segment(runs[1])}"
        result: dict[str, Any] = api.get_patiently(path, settled="true")
    except NotFound as error:
        raise Failure(f"{error}; `playhead ls` lists what was recorded") from error
    return result


async def _load_bundle(processes: CommandProcesses, name: str, redactor: Redactor, reading: StepReader) -> Bundle:
    """Load a file or a run. Raise Failure if there is none."""
    if file := _recording_file(name):
        return load_file(file, redactor, reading.profiles)
    with await processes.connect_store_server() as api:
        return await asyncio.to_thread(_load_run, api, name)


def load_run_exchanges(api: Api, name: str) -> list[Exchange]:
    """Fetch the exchanges of a run. Raise Failure if there is none."""
    return _load_run(api, name).exchanges


def _load_run(api: Api, name: str) -> Bundle:
    run = resolve_run_name(api, name)
    try:
        return read_bundle(
            b"".join(api.stream_bytes(f"/runs/{path_segment(run)}/bundle", proof="false")).splitlines(keepends=True)
        )
    except NotFound as error:
        raise unknown_run_failure(run) from error


def _recording_file(name: str) -> Path | None:
    """Return the path if the name is that of a file, None for a run. Raise Failure if the file does not exist."""
    if (file := recording_path(name)) is not None:
        return file
    if "/" in name or name.endswith(".jsonl"):
        raise missing_file_failure(name)
    return None


@click.command("bisect", short_help="Find the answer that makes a command fail.")
@with_settings
@with_isolation
@as_json
@click.argument("good", metavar="GOOD", shell_complete=complete_recording)
@click.argument("bad", metavar="BAD", shell_complete=complete_recording)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command)
def bisect_command(good: str, bad: str, command: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Find the first step whose answer, taken from BAD in place of GOOD's, makes COMMAND fail.

    COMMAND is replayed a few times from a mixture of both runs; nothing leaves this machine. Its exit code decides: 0 is good, 125
    cannot be judged, anything else is bad. Without COMMAND, shows where the two runs diverge, as `playhead diff` does. Exits with 0
    if the step is found, 1 if it remains unknown, and 125 if there was nothing to try.

    \b
        playhead bisect ticket-904 last -- python agent.py
        playhead bisect good.jsonl bad.jsonl -- pytest tests/test_agent.py
    """
    wish = isolation_options(flags)
    found = settings_from_flags(**flags)
    result = asyncio.run(_bisect(found, good, bad, command, wish) if command else _first_difference(found, good, bad))
    if as_json:
        print_json(result)
    else:
        click.echo(printable(result["words"]))
    raise click.exceptions.Exit(0 if result["verdict"] == "found" else 1)


async def _first_difference(settings: Settings, good: str, bad: str) -> dict[str, Any]:
    cause = (await compare_recordings(settings, good, bad))["cause"]
    words = cause["words"] if cause else "the runs are the same: all requests and answers are equal"
    verdict = "found" if cause else "none"
    return {"good": good, "bad": bad, "verdict": verdict, "words": words, "cause": cause, "trials": []}


_SURROUNDINGS: Final = ("isolation", "attribution", "labels")
"""The members of a run that say how its command ran."""


async def _bisect(
    settings: Settings, good: str, bad: str, command: tuple[str, ...], wish: IsolationOptions
) -> dict[str, Any]:
    require_command(command)
    reading, redactor = step_reader(settings)
    async with CommandProcesses(settings) as processes:
        sides = [await _load_bundle(processes, name, redactor, reading) for name in (good, bad)]
        mixtures = await asyncio.to_thread(_build_mixtures, (good, bad), sides, reading)
        able = [mixture for mixture in mixtures if mixture.candidates]
        if not able:
            why = (mixtures[-1].diff.shape()["cause"] or {"words": "they are the same"})["words"]
            raise Failure(f"no request that both runs made was answered differently, so there is nothing to try: {why}")
        for mixture in able[:-1]:
            try:
                return _bisect_json(good, bad, await Bisection(processes, mixture, command, wish).find_culprits())
            except BadRunSucceeds:
                click.echo(
                    "playhead: the difference that matters may be a time or an id: trying every difference", err=True
                )
        return _bisect_json(good, bad, await Bisection(processes, able[-1], command, wish).find_culprits())


def _build_mixtures(names: tuple[str, str], sides: list[Bundle], reading: StepReader) -> list[Mixture]:
    """Build mixtures without the values that are new in each answer, and with them, since one of these may matter."""
    one, other = (side.exchanges for side in sides)
    # Trials have what GOOD had: variables, also those of a proxy, and names that did not resolve.
    surroundings = {name: sides[0].run[name] for name in _SURROUNDINGS if name in sides[0].run}
    build = partial(Mixture, profiles=reading.profiles.digest, surroundings=surroundings)
    diff = compared_runs((names[0], one), (names[1], other), reading)
    mixtures = [build(diff=diff, one=one, other=other)]
    if (both := equalize_volatile_values(one, other, diff, reading)) is not None:
        diff = compared_runs((names[0], both[0]), (names[1], both[1]), reading)
        mixtures.insert(0, build(diff=diff, one=both[0], other=both[1]))
    return mixtures


def _bisect_json(good: str, bad: str, result: BisectResult) -> dict[str, Any]:
    return {
        "good": good,
        "bad": bad,
        "verdict": "found" if len(result.culprits) == 1 else "unknown",
        "words": verdict_sentence(result),
        "alone": result.alone,
        "culprits": [
            {"a": step_shape(one.one), "b": step_shape(one.other), "cause": one.cause, "words": one.where}
            for one in result.culprits
        ],
        "trials": [asdict(trial) for trial in result.trials],
    }


@click.command("drift", short_help="Show where a provider changed the model behind a name.")
@with_settings
@as_json
@click.option("--since", metavar="TIME", help="Only changes since this time: RFC 3339, or an age such as 7d or 12h.")
@click.option("--until", metavar="TIME", help="Only calls before this time: RFC 3339, or an age such as 7d or 12h.")
@click.option("--model", metavar="NAME", help="Only this model, as requested or as returned.")
@click.option("--provider", metavar="NAME", help="Only this provider.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there is a change.")
def drift_command(
    since: str | None,
    until: str | None,
    model: str | None,
    provider: str | None,
    exit_code: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show where another model or fingerprint began to answer under a name, from recorded runs and without a replay.

    Each change has its time, the number of calls before and after, and how often the same request was answered differently.
    Models that became slower or faster for good are listed, too; --exit-code does not count them.
    """
    query = {"since": parse_time(since), "until": parse_time(until), "model": model, "provider": provider}
    result = query_store(flags, lambda api: api.get("/drift", settled="true", **query))
    if as_json:
        print_json(result)
    else:
        filters = {"--until": until, "--model": model, "--provider": provider}
        show_drift(result, stdout_sheet(), [f"{name} {value}" for name, value in filters.items() if value])
    raise click.exceptions.Exit(1 if exit_code and result["items"] else 0)


COMMANDS = (diff_command, bisect_command, drift_command)
