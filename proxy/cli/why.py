"""`playhead why`: what a replay missed, what differed, and what would mend it."""

import json
import re
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import as_json, asking, print_json, settings, with_settings
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, segment
from proxy.terminal.text import printable
from replay.misses.why import why
from store.datadir import DataDirError, opened

_MISS = re.compile(r"(?:urn:playhead:replay:)?(?P<replay>.+?):(?P<number>\d+)")


@click.command("why", short_help="Explain what a replay missed, and what would mend it.")
@with_settings
@as_json
@click.argument("which", required=False, metavar="[MISS|REPLAY]")
def why_command(which: str | None, as_json: bool, **flags: Any) -> None:
    """Explain what a replay missed: each request beside the nearest recorded call, and the command or rule that mends it.

    Without an argument the last `playhead replay` on this data directory. MISS is the number of a request in it, or the
    `instance` of a miss as the agent saw it; REPLAY is the id of a replay, or a report that --report wrote.

    \b
        playhead why
        playhead why 3
        playhead why report.json --json
    """
    replay, number = _named(which)
    report = _report(flags, replay)
    if as_json:
        wanted = [one for one in report["misses"] if number in (None, one["number"])]
        print_json(wanted if number is not None else report)
        return
    for line in why(report, number):
        click.echo(printable(line))


def _named(which: str | None) -> tuple[str | None, int | None]:
    """The replay and the request that are meant."""
    if which is None:
        return None, None
    if which.isdecimal():
        return None, int(which)
    found = _MISS.fullmatch(which)
    return (found["replay"], int(found["number"])) if found else (which, None)


def _report(flags: dict[str, Any], replay: str | None) -> dict[str, Any]:
    """The report of a replay: of this command's, of a file, or of the store server's. Raises Failure."""
    try:
        place = opened(settings(**flags).data).replays
    except DataDirError as error:
        raise Failure(str(error)) from error
    if replay is None:
        reports = sorted(place.glob("replay-*.json"))
        if not reports:
            raise Failure("nothing was replayed here yet; start with: playhead replay last -- CMD")
        return _read(reports[-1])
    for path in (place / f"{replay}.json", Path(replay)):
        if path.is_file():
            return _read(path)
    return asking(flags, lambda api: _asked(api, replay))


def _asked(api: Api, replay: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = api.get(f"/replays/{segment(replay)}")
    except NotFound as error:
        raise Failure(f"there is no replay {replay} here, and no report of that name") from error
    if "misses" not in report:
        raise Failure(f"nothing was asked of replay {replay} yet")
    return report


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be read as a report: {error}; name one that --report wrote") from error
    if not isinstance(report, dict) or "misses" not in report:
        raise Failure(f"{path} is no report of a replay; name one that --report wrote")
    return report


COMMANDS = (why_command,)
