"""`playhead replay RUN|BUNDLE -- CMD`: run a command and answer its calls from a recording.

Replay needs no Postgres: a bundle is replayed from its file, and a run is fetched into a file first.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec.structs import replace

from proxy.capture.command import (
    DEFAULT_ISOLATION,
    CommandPlan,
    CommandResult,
    IsolationOptions,
    PreparedCommand,
    import_while_waiting,
    isolation_lines,
    run_command,
)
from proxy.commands.record import check_run_id
from proxy.effects.launch import EffectsOptions
from proxy.errors import Failure, unwritable_file
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import NotFound, path_segment, resolve_run_name, settled_run
from proxy.processes.user_command import require_command
from proxy.run_names import missing_file_failure, recording_path, unknown_run_failure
from proxy.settings import Settings
from proxy.terminal.text import printable
from proxy.terminal.waiting import show_waiting
from proxy.trust.client_environment import replay_ca_file
from store.generations.names import newest_generation

if TYPE_CHECKING:
    from proxy.commands.generations import Generations

DIVERGED = 1
UNKNOWN = 3

KEPT = 50
"""How many replay reports are kept for `playhead why`."""


class ReplayCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to answer from, and how."""

    recording: str
    report: Path | None
    options: Mapping[str, Any]
    allowed_hosts: tuple[str, ...] = ()
    """Hosts whose requests go out, unrecorded."""

    isolation: IsolationOptions = DEFAULT_ISOLATION
    clock: str | None = None
    """present or recorded; None: recorded where that is possible."""

    @property
    def on_miss(self) -> str:
        """What happens to a request that was not recorded: fail, live or record."""
        return str(self.options["on_miss"])


async def replay(settings: Settings, command: Sequence[str], replay_command: ReplayCommand) -> int:
    """Run the command. Return its exit code; if that is 0, 1 for a replay that diverged and 3 for one whose outcome is unknown."""
    require_command(command)
    if replay_command.report:
        require_writable(replay_command.report)
    _warn_of_live_requests(replay_command)
    async with CommandProcesses(settings) as processes, AsyncExitStack() as stack, PreparedCommand() as prepared:
        require_recording(processes, replay_command.recording)
        identity = f"replay-{processes.started}"
        report_file = processes.data.replays / f"{identity}.json"
        rows_file = processes.data.replays / f"{identity}.jsonl"
        generations = await _begin_generations(processes, identity, replay_command, stack)
        if generations:
            replay_command = replace(replay_command, recording=generations.recording)
        try:
            result, ends = await _run_replayed_command(
                processes, command, replay_command, identity, rows_file, report_file, prepared
            )
            code = result.code
            report = _complete_report(_read_report(report_file), result, is_interrupted=any(ends))
            _keep_report(report_file, report, replay_command, settings.project)
            bundle = rows_file if rows_file.exists() else Path(replay_command.recording)
            settled = await generations.settle(bundle, report, code) if generations else None
        finally:
            rows_file.unlink(missing_ok=True)
    if settled is not None and settled.is_whole:
        click.echo(f"playhead: {settled.text}", err=True)
        return code
    click.echo(report_text(report, replay_command.recording), err=True)
    destinations = [str(one["destination"]) for one in (report or {}).get("refusals", ())]
    for line in isolation_lines(result, is_replay=True, reported=destinations):
        click.echo(f"          {printable(line)}", err=True)
    if result.has_proxy_variables and verdict_exit_code(report):
        click.echo("          the command had proxy variables, because the recorded one had", err=True)
    if replay_command.clock == "recorded" and result.real_clock_reason:
        click.echo(
            f"          the clock was not that of the recording: {printable(result.real_clock_reason)}", err=True
        )
    if settled is not None:
        click.echo(f"playhead: {settled.text}", err=True)
    return code or verdict_exit_code(report)


def _complete_report(
    report: dict[str, Any] | None, result: CommandResult, *, is_interrupted: bool
) -> dict[str, Any] | None:
    """Add to a worker's report how the command ended."""
    if report is None:
        return None
    from replay.report import interrupted_report, report_with_escapes, report_with_exit

    if is_interrupted:
        report = interrupted_report(report)
    report |= {"isolation": result.isolation, "connections": list(result.connections)}
    return report_with_exit(report_with_escapes(report), result.code)


async def _begin_generations(
    processes: CommandProcesses, identity: str, replay_command: ReplayCommand, stack: AsyncExitStack
) -> "Generations | None":
    """Prepare to record the next generation, if the options say so."""
    if replay_command.on_miss != "record":
        return None
    # This module takes longer to import than the rest of a replay takes to run.
    from proxy.commands.generations import Generations

    return await Generations.begin(processes, identity, replay_command.recording, stack)


async def _run_replayed_command(
    processes: CommandProcesses,
    command: Sequence[str],
    replay_command: ReplayCommand,
    identity: str,
    rows_file: Path,
    report_file: Path,
    prepared: PreparedCommand,
) -> tuple[CommandResult, list[int]]:
    """Run the command behind a worker that answers it. Return the command's result and the worker's exit status."""
    recording = replay_command.on_miss == "record"
    options = {**replay_command.options, "id": identity, "report": str(report_file), "called": replay_command.recording}
    options |= {"on_miss": "live" if recording else replay_command.on_miss, "listed": recording}
    # Mode auto lets requests go live; they are spooled only if they are to be recorded.
    mode = "replay" if replay_command.on_miss == "fail" else "auto"
    modes = {**processes.settings.host_modes, **dict.fromkeys(replay_command.allowed_hosts, "passthrough")}

    async def fetched_recording_setting() -> dict[str, Any]:
        import_while_waiting("replay.report")
        await prepared.start(replay_command.isolation)
        return {"replay": [str(await fetch_recording(processes, replay_command.recording, rows_file))]}

    # The worker starts while the recording is fetched.
    worker = await processes.start_own_worker(
        fetched_recording_setting(),
        mode=mode,
        spooled=recording,
        replay_options=options,
        modes=modes,
        # The store server of an `up` has the reports of this data directory as well.
        page=(processes.find_up() or {}).get("page"),
    )
    reached = {"proxy": f"http://127.0.0.1:{worker.ready['port']}", **worker.ready}
    if mode == "replay":
        reached["roots"] = replay_ca_file(worker.ready, processes.settings.tunnel.hosts, os.environ)
    try:
        work = CommandPlan(
            command=command,
            worker_info=reached,
            run=identity,
            token=processes.claim_run(identity) if recording else processes.run_token(identity),
            passes_other_traffic=False,
            isolation=replay_command.isolation,
            has_recorded_clock=replay_command.clock != "present",
            prepared=prepared,
            effects=EffectsOptions(pinned=pinned) if (pinned := reached.get("pinned")) else None,
        )
        result = await run_command(work)
    finally:
        ends = await processes.close_workers()
    return result, ends


def _warn_of_live_requests(replay_command: ReplayCommand) -> None:
    """Warn in CI, where nobody watches, if requests may go out."""
    if os.environ.get("CI", "").lower() in ("", "0", "false") or (
        replay_command.on_miss == "fail" and not replay_command.allowed_hosts
    ):
        return
    what = (
        f"whatever {replay_command.recording} does not answer"
        if replay_command.on_miss != "fail"
        else ", ".join(replay_command.allowed_hosts)
    )
    click.echo(f"playhead: CI is set, and requests go out for {what} (--on-miss, --allowed-hosts)", err=True)


def report_text(report: Mapping[str, Any] | None, recording: str) -> str:
    """Return the report as text that is safe to print."""
    from replay.report import report_lines

    if not report:
        return "playhead: the replay left no report, so its outcome is unknown"
    return "\n".join(map(printable, report_lines(report, recording)))


def require_writable(report: Path) -> None:
    """Raise Failure if the report cannot be written. Called before the command runs for nothing."""
    try:
        with report.open("a"):
            pass
    except OSError as error:
        raise unwritable_file(report, error, what="the report") from error


def require_recording(processes: CommandProcesses, recording: str) -> None:
    """Raise Failure if there is no such file, or no data directory that could have the run."""
    if recording_path(recording) is not None:
        return
    if "/" in recording or recording.endswith(".jsonl"):
        raise missing_file_failure(recording)
    processes.require_data_directory()


async def fetch_recording(processes: CommandProcesses, recording: str, rows_file: Path) -> Path:
    """Return the recording as a file. The rows of a run are fetched from the store (`store.bundle.rows_bundle`)."""
    require_recording(processes, recording)
    if (file := recording_path(recording)) is not None:
        return file
    api = await processes.connect_store_server(stays_ready=True)
    run = check_run_id(resolve_run_name(api, recording))
    try:
        shape, missing = settled_run(api, run)
        if missing:
            raise Failure(
                f"run {run} is not completely stored yet: {missing}; wait, or see /readyz of the store server"
            )
        current = newest_generation(run, shape)
        with show_waiting(f"fetching {printable(run)}") as change_line, rows_file.open("wb") as rows:
            for piece in api.stream_bytes(f"/runs/{path_segment(current)}/rows"):
                rows.write(piece)
                change_line(f"fetching {printable(run)}: {rows.tell() >> 20:,} MB")
    except NotFound as error:
        rows_file.unlink(missing_ok=True)
        raise unknown_run_failure(run) from error
    return rows_file


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _keep_report(path: Path, report: Mapping[str, Any] | None, replay_command: ReplayCommand, project: str) -> None:
    """Keep the report for `playhead why`, and write it where the user asked for it."""
    if report is None:
        return
    text = json.dumps({**report, "called": replay_command.recording, "project": project}, indent=2) + "\n"
    path.write_text(text)
    if replay_command.report:
        replay_command.report.write_text(text)
    # File names begin with the time, so older ones sort first.
    for old in sorted(path.parent.glob("replay-*.json"))[:-KEPT]:
        old.unlink(missing_ok=True)


def verdict_exit_code(report: Mapping[str, Any] | None) -> int:
    """Return the exit code for a report."""
    verdict_exit_code = report["verdict"] if report else "unknown"
    return {"right": 0, "diverged": DIVERGED}.get(verdict_exit_code, UNKNOWN)
