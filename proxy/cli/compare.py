"""The commands that compare: diff, bisect, drift."""

import asyncio
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.capture.command import IsolationWish
from proxy.cli.common import (
    as_json,
    asking,
    isolation_wish,
    moment,
    print_json,
    settings,
    with_isolation,
    with_settings,
)
from proxy.cli.profiles import user_profiles
from proxy.commands.bisect import Bisection, BisectResult, Harmless, sentence
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, meant, segment
from proxy.processes.user_command import present
from proxy.run_names import file_of, no_file, unknown
from proxy.settings import Settings
from proxy.terminal.render_diff import show
from proxy.terminal.render_drift import show_drift
from proxy.terminal.table import sheet
from proxy.terminal.text import printable
from proxy.worker.recordings import from_file
from store.bundle.bundle import read
from store.diff.diff import compare
from store.diff.diff import compared as compared_runs
from store.diff.mixed_recording import Mixture
from store.diff.settled import settled
from store.diff.steps import StepReader, step_shape

DIFFER = 1


@click.command("diff", short_help="Show where two runs part, and why.")
@with_settings
@as_json
@click.option(
    "--all", "everything", is_flag=True, help="Show equal calls, and those that follow from others, one by one."
)
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
def diff_command(one: str, other: str, everything: bool, as_json: bool, **flags: Any) -> None:
    """Align two runs and show where they part, what stands there on either side, and why.

    A and B are runs, `last`, or bundle files. Calls that were added, left out or repeated are found; the others are told by
    their cause: another request, another model, another answer of a model or a tool, or what follows from one of these.
    Exits with 0 where the runs are the same (whatever differs outside of the keys), with 1 where they differ, and with 125
    where that could not be told.

    \b
        playhead diff ticket-904 last
        playhead diff tests/recordings/good.jsonl last --json
    """
    found = settings(**flags)
    told = asyncio.run(compared(found, one, other))
    if as_json:
        print_json(told)
    else:
        show(told, sheet(), everything=everything)
    raise click.exceptions.Exit(0 if told["same"] else DIFFER)


async def compared(found: Settings, one: str, other: str) -> dict[str, Any]:
    """The diff of two runs or files. Raises Failure."""
    reading, redactor = _reading(found)
    names = (one, other)
    files = {name: path for name in names if (path := _file(name))}
    if all(name in files for name in names):
        sides = [from_file(files[name], redactor, reading.profiles).exchanges for name in names]
        return compare((one, sides[0]), (other, sides[1]), reading)
    async with CommandProcesses(found) as house:
        if not files:
            with await house.api() as api:
                return await asyncio.to_thread(_asked, api, one, other)
        sides = [await _exchanges(house, name, redactor, reading) for name in names]
    return await asyncio.to_thread(compare, (one, sides[0]), (other, sides[1]), reading)


def _reading(found: Settings) -> tuple[StepReader, Redactor]:
    """What is shown is searched for secrets as the store server would. Nothing of it is kept, so any key does."""
    redactor = Redactor(key=secrets.token_bytes(32))
    return StepReader(profiles=user_profiles(found), clean=redactor.text), redactor


def _asked(api: Api, one: str, other: str) -> dict[str, Any]:
    runs = [meant(api, name) for name in (one, other)]
    try:
        told: dict[str, Any] = api.get(f"/runs/{segment(runs[0])}/diff/{segment(runs[1])}", settled="true")
    except NotFound as error:
        raise Failure(f"{error}; `playhead ls` lists what was recorded") from error
    return told


async def _exchanges(house: CommandProcesses, name: str, redactor: Redactor, reading: StepReader) -> list[Exchange]:
    """The exchanges of a file or a run. Raises Failure."""
    if file := _file(name):
        return from_file(file, redactor, reading.profiles).exchanges
    with await house.api() as api:
        return await asyncio.to_thread(recorded, api, name)


def recorded(api: Api, name: str) -> list[Exchange]:
    """The exchanges of a run. Raises Failure."""
    run = meant(api, name)
    try:
        return read(b"".join(api.raw(f"/runs/{segment(run)}/bundle")).splitlines(keepends=True)).exchanges
    except NotFound as error:
        raise unknown(run) from error


def _file(name: str) -> Path | None:
    """The recording that is meant, where it is a file. Raises Failure for one that is not there."""
    if (file := file_of(name)) is not None:
        return file
    if "/" in name or name.endswith(".jsonl"):
        raise no_file(name)
    return None


@click.command("bisect", short_help="Find the answer that makes a command fail.")
@with_settings
@with_isolation
@as_json
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def bisect_command(good: str, bad: str, command: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Find the first step whose answer, taken from BAD in place of GOOD's, makes COMMAND fail.

    COMMAND is replayed from both runs mixed, a few times; nothing leaves this machine. It judges by its exit code: 0 is good,
    125 cannot be judged, anything else is bad. Without COMMAND, tells where the two runs part, as `playhead diff` does.
    Exits with 0 where the step is found, with 1 where it could not be told, and with 125 where there was nothing to try.

    \b
        playhead bisect ticket-904 last -- python agent.py
        playhead bisect good.jsonl bad.jsonl -- pytest tests/test_agent.py
    """
    wish = isolation_wish(flags)
    found = settings(**flags)
    told = asyncio.run(_bisected(found, good, bad, command, wish) if command else _parted(found, good, bad))
    if as_json:
        print_json(told)
    else:
        click.echo(printable(told["words"]))
    raise click.exceptions.Exit(0 if told["verdict"] == "found" else 1)


async def _parted(found: Settings, good: str, bad: str) -> dict[str, Any]:
    cause = (await compared(found, good, bad))["cause"]
    words = cause["words"] if cause else "the runs are the same: every call was asked and answered alike"
    verdict = "found" if cause else "none"
    return {"good": good, "bad": bad, "verdict": verdict, "words": words, "cause": cause, "trials": []}


async def _bisected(
    found: Settings, good: str, bad: str, command: tuple[str, ...], wish: IsolationWish
) -> dict[str, Any]:
    present(command)
    reading, redactor = _reading(found)
    async with CommandProcesses(found) as house:
        sides = [await _exchanges(house, name, redactor, reading) for name in (good, bad)]
        mixtures = await asyncio.to_thread(_mixtures, (good, bad), sides, reading)
        able = [mixture for mixture in mixtures if mixture.candidates]
        if not able:
            why = (mixtures[-1].diff.shape()["cause"] or {"words": "they are the same"})["words"]
            raise Failure(f"no request that both runs made was answered otherwise, so there is nothing to try: {why}")
        for mixture in able[:-1]:
            try:
                return _told(good, bad, await Bisection(house, mixture, command, wish).run())
            except Harmless:
                click.echo(
                    "playhead: what the command minds may be a time or an id: all that differs is tried", err=True
                )
        return _told(good, bad, await Bisection(house, able[-1], command, wish).run())


def _mixtures(names: tuple[str, str], sides: list[list[Exchange]], reading: StepReader) -> list[Mixture]:
    """Without the values that are made anew in each answer, and with them: it may be one of these that matters."""
    one, other = sides
    diff = compared_runs((names[0], one), (names[1], other), reading)
    made = [Mixture(diff=diff, one=one, other=other, profiles=reading.profiles.digest)]
    if (both := settled(one, other, diff, reading)) is not None:
        diff = compared_runs((names[0], both[0]), (names[1], both[1]), reading)
        made.insert(0, Mixture(diff=diff, one=both[0], other=both[1], profiles=reading.profiles.digest))
    return made


def _told(good: str, bad: str, result: BisectResult) -> dict[str, Any]:
    return {
        "good": good,
        "bad": bad,
        "verdict": "found" if len(result.culprits) == 1 else "unknown",
        "words": sentence(result),
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
@click.option("--since", metavar="TIME", help="Only changes since this RFC 3339 time, or since so long ago: 7d, 12h.")
@click.option("--until", metavar="TIME", help="Only calls before this time.")
@click.option("--model", metavar="NAME", help="Only this model, as it was asked for or as it answered.")
@click.option("--provider", metavar="NAME", help="Only this provider.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where there is a change.")
def drift_command(
    since: str | None,
    until: str | None,
    model: str | None,
    provider: str | None,
    exit_code: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show where another model, or another fingerprint, began to answer to a name: from ordinary runs, without a replay.

    Tells when it was first seen, how many calls came before and after, and how often the very same request was answered
    otherwise.
    """
    query = {"since": moment(since), "until": moment(until), "model": model, "provider": provider}
    told = asking(flags, lambda api: api.get("/drift", settled="true", **query))
    if as_json:
        print_json(told)
    else:
        given = {"--until": until, "--model": model, "--provider": provider}
        show_drift(told, sheet(), [f"{name} {value}" for name, value in given.items() if value])
    raise click.exceptions.Exit(1 if exit_code and told["items"] else 0)


COMMANDS = (diff_command, bisect_command, drift_command)
