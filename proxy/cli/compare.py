"""The commands that compare: diff, bisect, drift."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import click

from calls.model import Exchange
from calls.redact import Redactor
from proxy.api import Api, NotFound, meant, segment
from proxy.cli.common import as_json, print_json, settings, user_profiles, with_settings
from proxy.comparison import show
from proxy.errors import Failure
from proxy.house import House
from proxy.recordings import from_file
from proxy.settings import Settings
from proxy.sheet import sheet
from store.bundle import read
from store.diff import compare
from store.diff_steps import Reading

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
    # What is shown is searched for secrets as the keeper would. Nothing of it is kept, so any key does.
    redactor = Redactor(key=secrets.token_bytes(32))
    reading = Reading(profiles=user_profiles(found), clean=redactor.text)
    names = (one, other)
    files = {name: path for name in names if (path := _file(name))}
    sides = {name: from_file(path, redactor, reading.profiles).exchanges for name, path in files.items()}
    if len(sides) < len(set(names)):
        async with House(found) as house:
            with await house.api() as api:
                if not files:
                    return await asyncio.to_thread(_asked, api, one, other)
                run = next(name for name in names if name not in files)
                sides[run] = await asyncio.to_thread(_recorded, api, run)
    return compare((one, sides[one]), (other, sides[other]), reading)


def _asked(api: Api, one: str, other: str) -> dict[str, Any]:
    runs = [meant(api, name) for name in (one, other)]
    try:
        told: dict[str, Any] = api.get(f"/runs/{segment(runs[0])}/diff/{segment(runs[1])}", settled="true")
    except NotFound as error:
        raise Failure(f"{error}; `playhead ls` lists what was recorded") from error
    return told


def _recorded(api: Api, name: str) -> list[Exchange]:
    run = meant(api, name)
    try:
        return read(b"".join(api.raw(f"/runs/{segment(run)}/bundle")).splitlines(keepends=True)).exchanges
    except NotFound as error:
        raise Failure(f"there is no run {run} here; `playhead ls` lists what was recorded") from error


def _file(name: str) -> Path | None:
    """The recording that is meant, where it is a file. Raises Failure for one that is not there."""
    path = Path(name)
    if path.is_file():
        return path
    if "/" in name or path.suffix == ".jsonl":
        raise Failure(f"there is no file {name}; make one with: playhead export RUN -o {name}")
    return None


COMMANDS = (diff_command,)
