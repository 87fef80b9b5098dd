"""The process of a proxy worker: `python -m proxy.worker.process`. It reads its configuration from stdin.

It connects the engine, the recorder with its spool, and the replays, and ends with its stdin.
"""

import gc

if __name__ == "__main__":
    # Until the worker is ready, the collector would take a tenth of the time, and look in vain.
    gc.disable()

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from calls.keys.profile import Profiles
from calls.project_runs import full_run_name
from calls.redaction.redactor import Redactor, create_redactor
from calls.route import load_claimants
from proxy import lane, mitm
from proxy.capture.control_path import effects_path
from proxy.clock import SteadyClock
from proxy.errors import Failure, first_exception
from proxy.processes.child_process import STOP
from proxy.processes.log_files import open_log
from proxy.trust.ca import CertificateAuthority, ensure_ca
from proxy.wire.access import Access
from proxy.wire.config import EngineConfig, is_loopback
from proxy.wire.engine import Engine
from proxy.worker.auto_recorder import AutoRecorder
from proxy.worker.counters import CountingAnswerer, keep_writing_counts, write_counts
from proxy.worker.huge_pages import use_huge_pages
from proxy.worker.process_limits import forbid_core_files, raise_file_limit
from proxy.worker_config import WorkerConfig
from store.active_profiles import load_profiles
from store.datadir import DataDir, DataDirError, open_data_dir
from store.log_format import configure_logging
from store.run_modes import RunModes
from store.spool import Spool, SpoolError

if TYPE_CHECKING:
    # A worker that only records imports none of this, which is a third of a worker's imports.
    from proxy.worker.auto_sessions import AutoSessions
    from proxy.worker.preloaded_recordings import PreloadedRecordings
    from proxy.worker.replay_reports import ReplayReports
    from replay.replays import Replays

REST_CHECK_INTERVAL = 60.0
"""Seconds between two checks for idle replays."""

PREPARING_AFTER = 0.1
"""Seconds from when the worker is ready until what few requests need at once is imported and compiled. An earlier request does it itself."""

NEEDED_BY_FIRST_REQUESTS = ("proxy.lane.h2.client", "proxy.lane.h2.upstreams")
"""What a worker imports when it is ready."""

ENGINES: dict[str, Engine] = {"mitmproxy": mitm.run, "lane": lane.run}


async def main(config: WorkerConfig) -> None:
    """Serve until stdin ends or SIGTERM arrives. Raises Failure if the worker cannot start."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    stop, orphaned = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        parent = group.create_task(_wait_for_parent(stdin, stop, orphaned))
        try:
            await _serve(config, stop, orphaned)
        finally:
            parent.cancel()


async def _wait_for_parent(stdin: asyncio.StreamReader, stop: asyncio.Event, orphaned: asyncio.Event) -> None:
    """Stop when stdin ends. Without the word to stop before its end, the parent was killed: set `orphaned`."""
    if await stdin.read(len(STOP)) != STOP and not stop.is_set():
        orphaned.set()
    stop.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerParts:
    """What a worker consists of: a worker that only records has no replays, one that only replays has no recorder."""

    config: WorkerConfig
    engine_config: EngineConfig
    redactor: Redactor
    spool: Spool | None
    recorder: AutoRecorder | None
    reports: "ReplayReports | None"
    auto_sessions: "AutoSessions | None"
    preloaded: "PreloadedRecordings | None"
    replays: "Replays | None"


async def _serve(config: WorkerConfig, stop: asyncio.Event, orphaned: asyncio.Event) -> None:
    data = open_data_dir(Path(config.data))
    with _open_spool(config, data) as spool:
        parts = await _build_parts(config, data, spool, stop)
        announced = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            background_tasks = [group.create_task(work) for work in _background_work(parts, announced)]
            await _run_engine(parts, announced)
            for task in background_tasks:
                task.cancel()
        await _finish(parts, is_interrupted=orphaned.is_set())


async def _build_parts(config: WorkerConfig, data: DataDir, spool: Spool | None, stop: asyncio.Event) -> _WorkerParts:
    authority = ensure_ca(data.keys)
    if config.mode == "replay" or is_offline(config):
        authority = authority.for_recorded_clocks()
    profiles = load_profiles(config.profiles_toml)
    redactor = create_redactor(config.redaction, data.redaction_key(), profiles)
    is_recording = spool is not None and bool({"record", "auto"} & _configured_modes(config))
    recorder = _build_recorder(config, spool, redactor) if spool and is_recording else None
    reports = _build_reports(config, data, spool) if config.mode in ("replay", "auto") else None
    engine_config = _engine_config(config, data, authority, stop)
    auto_sessions = (
        _build_auto_sessions(config, engine_config, data, reports, profiles)
        if recorder and reports and config.mode == "auto"
        else None
    )
    config = msgspec.structs.replace(config, api_token=config.api_token or data.api_token())
    preloaded = _set_up_preloading(config, profiles) if reports and config.preload_secret else None
    replays = (
        await _load_replays(config, engine_config, redactor, profiles, reports, auto_sessions, preloaded)
        if reports
        else None
    )
    if recorder:
        recorder.resources.counts, recorder.auto_sessions = engine_config.counts, auto_sessions
    return _WorkerParts(
        config=config,
        engine_config=engine_config,
        redactor=redactor,
        spool=spool,
        recorder=recorder,
        reports=reports,
        auto_sessions=auto_sessions,
        preloaded=preloaded,
        replays=replays,
    )


def _background_work(parts: _WorkerParts, announced: asyncio.Event) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield what a worker does beside its engine, until that ends."""
    if parts.reports and parts.replays:
        yield parts.reports.keep_writing(parts.replays)
        yield _rest_idle_replays(parts.replays)
    if parts.preloaded:
        yield parts.preloaded.load_expected()
        yield parts.preloaded.load_announced()
        # In mode auto, runs change all the time.
        if parts.config.mode == "replay":
            yield parts.preloaded.keep_loading()
    if parts.replays and parts.auto_sessions:
        yield parts.auto_sessions.watch(parts.replays)
    if parts.spool:
        yield keep_writing_counts(parts.engine_config.counts, parts.spool.directory)
    preparations = [*parts.redactor.preparations(), parts.engine_config.authority.prepare]
    preparations += parts.redactor.stream_preparations() if parts.recorder else []
    preparations += [partial(importlib.import_module, name) for name in NEEDED_BY_FIRST_REQUESTS]
    yield _prepare_for_requests(preparations, announced, parts.engine_config.prepared)
    yield use_huge_pages()


async def _run_engine(parts: _WorkerParts, announced: asyncio.Event) -> None:
    """Serve clients until the worker is to stop."""
    engine, engine_config, replays = ENGINES[parts.config.engine], parts.engine_config, parts.replays
    answerer = replays and CountingAnswerer(replays, engine_config.counts)
    async with _serve_effects(engine_config, parts.recorder, replays):
        await engine(
            engine_config,
            parts.recorder,
            answerer,
            lambda port: _announce_ready(port, parts.config, engine_config, replays, announced),
        )


async def _finish(parts: _WorkerParts, *, is_interrupted: bool) -> None:
    """Write what is still to be written: reports, recorded events, counts."""
    if parts.reports and parts.replays:
        parts.reports.write_final_reports(parts.replays, interrupted=is_interrupted)
        if parts.auto_sessions:
            parts.auto_sessions.close(parts.replays)
        parts.reports.close()
    if parts.recorder:
        await parts.recorder.outbox.drain()
    if parts.spool:
        write_counts(parts.engine_config.counts, parts.spool.directory)


def _configured_modes(config: WorkerConfig) -> set[str]:
    """Return every mode that some host has."""
    return {config.mode, *config.modes.values()}


def is_offline(config: WorkerConfig) -> bool:
    """Whether no request goes out: in replays, and in forks that try what a command does with other answers."""
    modes, fork = _configured_modes(config), config.replay_options.get("fork")
    return modes == {"replay"} if not fork else bool(fork.get("offline")) and modes == {"auto"}


@contextmanager
def _open_spool(config: WorkerConfig, data: DataDir) -> Iterator[Spool | None]:
    """Open the worker's own spool, if it has one."""
    if not config.spooled:
        yield None
        return
    limit, durability = config.spool_limit, config.durability
    try:
        directory = Path(config.spool) if config.spool else data.spools / config.name
        spool = Spool(directory, max_bytes=limit, durability=durability)
    except SpoolError as error:
        raise Failure(f"{error}; make room or choose another data directory with --data DIR") from error
    with spool:
        yield spool


def _build_recorder(config: WorkerConfig, spool: Spool, redactor: Redactor) -> AutoRecorder:
    limit, policy = config.body_limit, config.on_record_failure
    recorder = AutoRecorder(spool, redactor, body_limit=limit, on_failure=policy, now=SteadyClock())
    recorder.only_run = _only_run(config)
    return recorder


def _only_run(config: WorkerConfig) -> str | None:
    """Return the full name of the fork or replay that a command's own worker serves."""
    run = config.replay_options.get("id")
    return run and full_run_name(config.project, run)


async def _prepare_for_requests(
    preparations: Sequence[Callable[[], object]], announced: asyncio.Event, prepared: asyncio.Event
) -> None:
    """Import and compile what the first requests need, while the command that waited for the worker starts."""
    await announced.wait()
    # Each request needs the dialects, also that of a command that makes it at once.
    await asyncio.to_thread(load_claimants)
    await asyncio.sleep(PREPARING_AFTER)
    for prepare_next in preparations:
        await asyncio.to_thread(prepare_next)
    prepared.set()


def _build_reports(config: WorkerConfig, data: DataDir, spool: Spool | None) -> "ReplayReports":
    from proxy.worker.replay_reports import ReplayReports

    file = config.replay_options.get("report")
    return ReplayReports(file=Path(file) if file else None, spool=spool, directory=data.replays, up=config.started)


def _build_auto_sessions(
    config: WorkerConfig, engine_config: EngineConfig, data: DataDir, reports: "ReplayReports", profiles: Profiles
) -> "AutoSessions | None":
    """Build the auto sessions of a worker of `up`. For a command's own worker the command handles what was recorded."""
    if config.replay_options.get("id"):
        return None
    from proxy.worker.auto_sessions import AutoSessions

    auto_sessions = AutoSessions(
        directory=data.replays,
        up=f"{config.started:x}",
        reports=reports,
        profiles=profiles,
        own_mode=engine_config.own_mode,
        run_mode=engine_config.run_mode,
    )
    auto_sessions.end_abandoned_sessions()
    return auto_sessions


async def _rest_idle_replays(replays: "Replays") -> None:
    while True:
        await asyncio.sleep(REST_CHECK_INTERVAL)
        replays.suspend_idle()


async def _load_replays(
    config: WorkerConfig,
    engine_config: EngineConfig,
    redactor: Redactor,
    profiles: Profiles,
    reports: "ReplayReports",
    auto_sessions: "AutoSessions | None",
    preloaded: "PreloadedRecordings | None",
) -> "Replays":
    from proxy.worker.replay_setup import set_up_replays

    return await set_up_replays(
        config, engine_config, redactor, profiles, reports, auto_sessions, preloaded, _report_progress
    )


def _set_up_preloading(config: WorkerConfig, profiles: Profiles) -> "PreloadedRecordings | None":
    from proxy.worker.replay_setup import set_up_preloading

    return set_up_preloading(config, profiles)


def _engine_config(
    config: WorkerConfig, data: DataDir, authority: CertificateAuthority, stop: asyncio.Event
) -> EngineConfig:
    return EngineConfig(
        authority=authority,
        mode=config.mode,
        host=config.listen,
        port=config.port,
        reuse_port=config.reuse_port,
        reverse=config.reverse,
        upstreams=config.upstreams,
        modes=config.modes,
        # The worker of a single command has one run, and so one mode.
        run_mode=RunModes(data.replays).mode_of if config.mode == "auto" and config.api else _no_run_mode,
        is_only_run=RunModes(data.replays).is_exclusive if config.api else _is_never_only_run,
        tunnel=config.tunnel,
        upstream_proxy=config.upstream_proxy,
        upstream_ca=config.upstream_ca,
        access=_client_access(config, data),
        own_addresses=config.own_addresses,
        connect_ports=config.connect_ports,
        allow_private=config.allow_private,
        owner=f"{config.started:x}",
        stop=stop,
        control=Path(config.control) if config.control else None,
        transparent=config.transparent,
    )


def _client_access(config: WorkerConfig, data: DataDir) -> Access:
    """Return the access of clients. They need a token if one was set, or if other machines can reach the worker."""
    recording_token, is_token_required = data.recording_token(), bool(config.token) or not is_loopback(config.listen)
    return Access(
        tokens=tuple(filter(None, (config.token, recording_token))) if is_token_required else (),
        run_tokens=None if config.shared_runs else data.run_tokens(),
        api_tokens=data.api_tokens(),
        project=config.project,
        only_run=_only_run(config),
    )


def _no_run_mode(_run: str) -> None:
    return None


def _is_never_only_run(_run: str) -> bool:
    return False


@asynccontextmanager
async def _serve_effects(
    config: EngineConfig, recorder: AutoRecorder | None, replays: "Replays | None"
) -> AsyncIterator[None]:
    """Serve the hooks of commands beside the control socket, which only workers that serve commands have."""
    if config.control is None or (recorder is None and replays is None):
        yield
        return
    from proxy.effects.channel import EffectsChannel

    async with EffectsChannel(config.access, recorder, replays).serve(effects_path(config.control)):
        yield


def _announce_ready(
    port: int, config: WorkerConfig, engine_config: EngineConfig, replays: "Replays | None", announced: asyncio.Event
) -> None:
    trust = {"ca": str(engine_config.authority.certificate), "ca_bundle": str(engine_config.authority.bundle)}
    _print_message(
        {"ready": True, "port": port, "control": str(engine_config.control) if engine_config.control else None, **trust}
        | ({"pinned": pinned} if replays and (pinned := replays.pinned_variables()) else {})
        | ({"recorded": recorded} if replays and (recorded := _surroundings(config, engine_config, replays)) else {})
        | ({"questions": replays.recorded_questions()} if replays else {})
    )
    announced.set()
    # What was imported and loaded by now lives to the end.
    gc.freeze()
    gc.enable()


def _surroundings(config: WorkerConfig, engine_config: EngineConfig, replays: "Replays") -> dict[str, Any]:
    """Return what the command of a replay has as it was recorded: variables, names without address and, if nothing goes out, the clock."""
    if (recording := replays.single_recording()) is None:
        return {}
    started_at = recording.started_at
    found: dict[str, Any] = {"environment": dict(recording.environment)} if recording.environment else {}
    if recording.unresolved_names:
        found["unresolved_names"] = recording.unresolved_names
    if recording.has_proxy_variables:
        found["proxy_variables"] = True
    if started_at is None:
        return found
    if not is_offline(config):
        return found | {
            "real_clock": "requests may go out, and services check signatures and tokens by the present time"
        }
    since = engine_config.authority.valid_since
    if started_at < since.timestamp() * 1e9:
        return found | {"real_clock": f"Playhead's CA is valid only since {since:%Y-%m-%d}, after the recording"}
    return found | {"started_at": started_at}


def _event_loop_factory(config: WorkerConfig) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the event loop: uvloop's for the lane if it is installed; None: asyncio's own.

    With an upstream proxy mitmproxy serves every connection, and it does not support uvloop.
    """
    if config.engine != "lane" or config.upstream_proxy or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def _print_message(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _report_progress(text: str) -> None:
    """Tell the command how far the recordings are that it waits for."""
    _print_message({"progress": text})


def _redirect_stderr(path: str) -> None:
    """Let this file be stderr."""
    log = open_log(Path(path))
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


def run_worker() -> int:
    """Read the configuration from stdin, serve until stdin ends, and return the exit status."""
    configure_logging()
    raise_file_limit()
    forbid_core_files()
    status = 0
    try:
        config = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
        if config.log is not None:
            _redirect_stderr(config.log)
        configure_logging(config.log_format)
        asyncio.run(main(config), loop_factory=_event_loop_factory(config))
    except* (Failure, DataDirError) as failures:
        _print_message({"failed": str(first_exception(failures))})
        status = 125
    return status


if __name__ == "__main__":
    sys.exit(run_worker())
