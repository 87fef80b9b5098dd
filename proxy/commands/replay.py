"""`playhead replay RUN|BUNDLE -- CMD`: run a command and answer its calls from a recording.

Replay needs no Postgres: a bundle file is replayed as it lies, and a run is first fetched as one.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proxy.capture.command import NO_WISH, CommandResult, IsolationWish, Work, isolation_lines, run_command
from proxy.commands.record import checked
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import NotFound, lacks, meant, segment
from proxy.processes.user_command import present
from proxy.run_names import file_of, no_file, unknown
from proxy.settings import Settings
from proxy.terminal.text import printable
from proxy.trust.client_environment import replay_roots
from replay.report import escaped, interrupted, lines
from store.generations.names import newest

if TYPE_CHECKING:
    from proxy.commands.generations import Generations

DIVERGED = 1
UNKNOWN = 3

KEPT = 50
"""Reports of replays that are kept for `playhead why`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand:
    """What to answer from, and how."""

    recording: str
    report: Path | None
    options: Mapping[str, Any]
    hosts: tuple[str, ...] = ()
    """Who may be asked for real."""

    wish: IsolationWish = NO_WISH

    @property
    def on_miss(self) -> str:
        """What becomes of a request that was not recorded: fail, live, or record."""
        return str(self.options["on_miss"])


async def replay(settings: Settings, command: Sequence[str], wanted: ReplayCommand) -> int:
    """The command's exit code; where it is 0 and the replay was not right, 1, or 3 where that cannot be told."""
    present(command)
    if wanted.report:
        writable(wanted.report)
    _warned(wanted)
    async with CommandProcesses(settings) as house, AsyncExitStack() as stack:
        identity = f"replay-{house.started}"
        report_file = house.data.replays / f"{identity}.json"
        place = house.data.replays / f"{identity}.jsonl"
        generations = await _generations(house, identity, wanted, stack)
        if generations:
            wanted = replace(wanted, recording=generations.recording)
        try:
            ran, ends = await _answered(house, command, wanted, identity, place, report_file)
            code = ran.code
            report = _read(report_file)
            if report is not None and any(ends):
                report = interrupted(report)
            if report is not None:
                report |= {"isolation": ran.isolation, "connections": list(ran.connections)}
                report = escaped(report)
            _keep(report_file, report, wanted)
            bundle = place if place.exists() else Path(wanted.recording)
            settled = await generations.settled(bundle, report, code) if generations else None
        finally:
            place.unlink(missing_ok=True)
    if settled is not None and settled.whole:
        click.echo(f"playhead: {settled.words}", err=True)
        return code
    click.echo(told(report, wanted.recording), err=True)
    named = [str(one["destination"]) for one in (report or {}).get("refusals", ())]
    for line in isolation_lines(ran, is_replay=True, reported=named):
        click.echo(f"          {printable(line)}", err=True)
    if settled is not None:
        click.echo(f"playhead: {settled.words}", err=True)
    return code or verdict(report)


async def _generations(
    house: CommandProcesses, identity: str, wanted: ReplayCommand, stack: AsyncExitStack
) -> "Generations | None":
    """What is recorded beside the replay, where that is wished for."""
    if wanted.on_miss != "record":
        return None
    # It reads, keys and writes recordings, and takes longer to import than all the rest of a replay.
    from proxy.commands.generations import Generations

    return await Generations.begun(house, identity, wanted.recording, stack)


async def _answered(
    house: CommandProcesses,
    command: Sequence[str],
    wanted: ReplayCommand,
    identity: str,
    place: Path,
    report_file: Path,
) -> tuple[CommandResult, list[int]]:
    """Run the command before a worker that answers it; what came of it, and the worker's exit status."""
    recording = wanted.on_miss == "record"
    options = {**wanted.options, "id": identity, "report": str(report_file), "called": wanted.recording}
    options |= {"on_miss": "live" if recording else wanted.on_miss, "listed": recording}
    # An answer that goes live is somebody's wish here: nothing of it is kept unless it is to be recorded.
    mode = "replay" if wanted.on_miss == "fail" else "auto"
    modes = {**house.settings.host_modes, **dict.fromkeys(wanted.hosts, "passthrough")}

    async def found() -> dict[str, Any]:
        return {"replay": [str(await fetched(house, wanted.recording, place))]}

    # It comes up while the recording is fetched.
    worker = await house.worker(found(), mode=mode, spooled=recording, replay_options=options, modes=modes)
    reached = {"proxy": f"http://127.0.0.1:{worker.ready['port']}", **worker.ready}
    if mode == "replay":
        reached["roots"] = replay_roots(worker.ready, house.settings.tunnel.hosts, os.environ)
    try:
        work = Work(
            command=command,
            place=reached,
            run=identity,
            token=house.claimed(identity) if recording else house.run_token(identity),
            passes_other_traffic=False,
            wish=wanted.wish,
        )
        ran = await run_command(work)
    finally:
        ends = await house.close_workers()
    return ran, ends


def _warned(wanted: ReplayCommand) -> None:
    """Say it where a build is about to ask the world: nobody sits there to see that it does."""
    if os.environ.get("CI", "").lower() in ("", "0", "false") or (wanted.on_miss == "fail" and not wanted.hosts):
        return
    what = f"whatever {wanted.recording} lacks" if wanted.on_miss != "fail" else ", ".join(wanted.hosts)
    click.echo(f"playhead: CI is set, and {what} is asked for real (--on-miss, --allow-host)", err=True)


def told(report: Mapping[str, Any] | None, recording: str) -> str:
    """The report as a terminal may show it."""
    if not report:
        return "playhead: the replay left no report; nothing can be said about it"
    return "\n".join(map(printable, lines(report, recording)))


def writable(report: Path) -> None:
    """Raise Failure where the report cannot be written, before the command has done its work for nothing."""
    try:
        with report.open("a"):
            pass
    except OSError as error:
        raise Failure(f"cannot write the report {report}: {error.strerror}; name another file") from error


async def fetched(house: CommandProcesses, recording: str, place: Path) -> Path:
    """The recording as a file: as it lies, or fetched from the store, as its rows (store/bundle/rows_bundle.py)."""
    if (file := file_of(recording)) is not None:
        return file
    if "/" in recording or recording.endswith(".jsonl"):
        raise no_file(recording)
    api = await house.api()
    run = checked(meant(api, recording))
    try:
        if lacking := lacks(api, run):
            raise Failure(
                f"run {run} is not whole in the store yet: {lacking}; wait, or see /readyz of the store server"
            )
        current = newest(run, api.get(f"/runs/{segment(run)}"))
        with place.open("wb") as rows:
            rows.writelines(api.raw(f"/runs/{segment(current)}/rows"))
    except NotFound as error:
        place.unlink(missing_ok=True)
        raise unknown(run) from error
    return place


def _read(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _keep(path: Path, report: Mapping[str, Any] | None, wanted: ReplayCommand) -> None:
    """Keep the report for whoever asks why, and where the user wants it."""
    if report is None:
        return
    kept = json.dumps({**report, "called": wanted.recording}, indent=2) + "\n"
    path.write_text(kept)
    if wanted.report:
        wanted.report.write_text(kept)
    # The names tell the time: older ones sort first.
    for old in sorted(path.parent.glob("replay-*.json"))[:-KEPT]:
        old.unlink(missing_ok=True)


def verdict(report: Mapping[str, Any] | None) -> int:
    """The exit code that a report means."""
    verdict = report["verdict"] if report else "unknown"
    return {"right": 0, "diverged": DIVERGED}.get(verdict, UNKNOWN)
