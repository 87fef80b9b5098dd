"""`playhead replay RUN|BUNDLE -- CMD`: the same command, answered from the record, with nothing sent anywhere.

Replay needs no Postgres: a bundle file is replayed as it lies, and a run is first fetched as one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from proxy.api import NotFound, meant, segment
from proxy.errors import Failure
from proxy.house import House
from proxy.record import checked, environment
from proxy.settings import Settings
from proxy.wrap import present, wrapped
from replay.report import text

DIVERGED = 1
UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to answer from, and how."""

    recording: str
    report: Path | None
    options: Mapping[str, Any]


async def replay(settings: Settings, command: Sequence[str], wanted: Wanted) -> int:
    """The command's exit code; where it is 0 and the replay was not right, 1, or 3 where that cannot be told."""
    present(command)
    if wanted.report:
        _writable(wanted.report)
    async with House(settings) as house:
        identity = f"replay-{house.started}"
        report_file = house.data.replays / f"{identity}.json"
        bundle = await _bundle(house, wanted.recording, house.data.replays / f"{identity}.jsonl")
        options = {**wanted.options, "id": identity, "report": str(report_file), "called": wanted.recording}
        # An answer that goes live is somebody's wish here, and no recording: nothing of it is kept.
        mode = "auto" if wanted.options["on_miss"] == "live" else "replay"
        door = await house.door(mode=mode, spooled=False, replay=[str(bundle)], replay_options=options)
        place = {"proxy": f"http://127.0.0.1:{door.ready['port']}", **door.ready}
        try:
            code = await wrapped(command, environment(place, identity, house.token, api=None, bypass=False))
        finally:
            await house.close_doors()
            if bundle.parent == house.data.replays:
                bundle.unlink()
    report = _read(report_file)
    if wanted.report and report is not None:
        wanted.report.write_text(json.dumps(report, indent=2) + "\n")
    click.echo(
        text(report, wanted.recording)
        if report
        else "playhead: the replay left no report; nothing can be said about it",
        err=True,
    )
    return code or _verdict(report)


def _writable(report: Path) -> None:
    """Raise Failure where the report cannot be written, before the command has done its work for nothing."""
    try:
        with report.open("a"):
            pass
    except OSError as error:
        raise Failure(f"cannot write the report {report}: {error.strerror}; name another file") from error


async def _bundle(house: House, recording: str, place: Path) -> Path:
    """The recording as a bundle file: as it lies, or fetched from the store."""
    path = Path(recording)
    if path.is_file():
        return path
    if "/" in recording or path.suffix == ".jsonl":
        raise Failure(f"there is no bundle {recording}; make one with: playhead export RUN -o {recording}")
    api = await house.api()
    run = checked(meant(api, recording))
    try:
        with place.open("wb") as file:
            for piece in api.raw(f"/runs/{segment(run)}/bundle"):
                file.write(piece)
    except NotFound as error:
        place.unlink()
        raise Failure(f"there is no run {run} here; `playhead ls` lists what was recorded") from error
    return place


def _read(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    path.unlink()
    return report


def _verdict(report: Mapping[str, Any] | None) -> int:
    verdict = report["verdict"] if report else "unknown"
    return {"right": 0, "diverged": DIVERGED}.get(verdict, UNKNOWN)
