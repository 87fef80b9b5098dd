"""The process of a proxy worker: `python -m proxy.worker.process`, configured on stdin, stopped by its end.

Here the engine, the recorder with its spool, and the replays are put together; none of them knows the others' insides.
"""

import asyncio
import importlib
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from calls.keys.profile import Profiles
from calls.redaction.redactor import Redactor
from proxy import lane, mitm
from proxy.clock import SteadyClock
from proxy.errors import Failure, first
from proxy.processes.child_process import STOP
from proxy.trust.ca import CertificateAuthority, ensure
from proxy.wire.access import Access
from proxy.wire.config import EngineConfig, loopback
from proxy.wire.engine import Engine
from proxy.worker.auto_sessions import AutoRecorder, AutoSessions
from proxy.worker.counters import CountingAnswerer, keep, note
from proxy.worker.replay_reports import ReplayReports
from proxy.worker_config import WorkerConfig
from replay.replays import Replays
from store.active_profiles import shipped
from store.datadir import DataDir, DataDirError, opened
from store.run_modes import Modes
from store.spool import Spool, SpoolError

REST_EACH = 60.0
"""Seconds between two looks for replays that nobody asks any more."""

ENGINES: dict[str, Engine] = {"mitmproxy": mitm.run, "lane": lane.run}


async def main(told: WorkerConfig) -> None:
    """Serve until stdin ends or SIGTERM comes. Raises Failure where the worker cannot open."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    stop, orphaned = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        parent = group.create_task(_until_end(stdin, stop, orphaned))
        try:
            await _serve(told, stop, orphaned)
        finally:
            parent.cancel()


async def _until_end(stdin: asyncio.StreamReader, stop: asyncio.Event, orphaned: asyncio.Event) -> None:
    """Our parent's end is ours. One that was killed did not say that we shall stop."""
    if await stdin.read(len(STOP)) != STOP and not stop.is_set():
        orphaned.set()
    stop.set()


async def _serve(told: WorkerConfig, stop: asyncio.Event, orphaned: asyncio.Event) -> None:
    data = opened(Path(told.data))
    authority = ensure(data.keys)
    profiles = shipped(told.profiles_toml)
    redactor = Redactor(
        key=data.redaction_key(),
        profiles=profiles,
        personal_data=told.redact_personal_data,
        names=told.redact_names,
    )
    with _spool(told, data) as spool:
        recorder = _recorder(told, spool, redactor) if spool and {"record", "auto"} & _modes(told) else None
        notes = _notes(told, data, spool)
        config = _config(told, data, authority, stop)
        takes = _takes(told, config, data, notes, profiles) if recorder and told.mode == "auto" else None
        api_token = told.api_token or data.api_token()
        replays = await _replays(
            msgspec.structs.replace(told, api_token=api_token), config, redactor, profiles, notes, takes
        )
        if recorder:
            recorder.counts, recorder.takes = config.counts, takes
        async with asyncio.TaskGroup() as group:
            works = [notes.keep(replays), _resting(replays)] if replays else []
            works += [takes.watch(replays)] if replays and takes else []
            works += [keep(config.counts, spool.directory)] if spool else []
            beside = [group.create_task(work) for work in works]
            engine = ENGINES[told.engine]
            answerer = replays and CountingAnswerer(replays, config.counts)
            await engine(config, recorder, answerer, lambda port: _ready(port, config))
            for task in beside:
                task.cancel()
        if replays:
            notes.end(replays, interrupted=orphaned.is_set())
            if takes:
                takes.close(replays)
            notes.close()
        if recorder:
            await recorder.settled()
        if spool:
            note(config.counts, spool.directory)


def _modes(told: WorkerConfig) -> set[str]:
    """Every mode that some host has here."""
    return {told.mode, *told.modes.values()}


@contextmanager
def _spool(told: WorkerConfig, data: DataDir) -> Iterator[Spool | None]:
    """A spool of the worker's own, where it has something to tell the store server."""
    if not told.spooled:
        yield None
        return
    limit, durability = told.spool_limit, told.durability
    try:
        spool = Spool(data.spools / told.name, max_bytes=limit, durability=durability)
    except SpoolError as error:
        raise Failure(f"{error}; make room or choose another data directory with --data DIR") from error
    with spool:
        yield spool


def _recorder(told: WorkerConfig, spool: Spool, redactor: Redactor) -> AutoRecorder:
    limit, policy = told.body_limit, told.on_record_failure
    recorder = AutoRecorder(spool, redactor, body_limit=limit, on_failure=policy, now=SteadyClock())
    recorder.only_run = told.replay_options.get("id")
    return recorder


def _notes(told: WorkerConfig, data: DataDir, spool: Spool | None) -> ReplayReports:
    file = told.replay_options.get("report")
    return ReplayReports(file=Path(file) if file else None, spool=spool, place=data.replays, up=told.started)


def _takes(
    told: WorkerConfig, config: EngineConfig, data: DataDir, notes: ReplayReports, profiles: Profiles
) -> AutoSessions | None:
    """The takes of a worker that answers runs from the store. A command's own worker settles what it recorded by itself."""
    if told.replay_options.get("id"):
        return None
    takes = AutoSessions(
        place=data.replays,
        up=f"{told.started:x}",
        notes=notes,
        profiles=profiles,
        own_mode=config.own_mode,
        run_mode=config.run_mode,
    )
    takes.inherit()
    return takes


async def _resting(replays: Replays) -> None:
    while True:
        await asyncio.sleep(REST_EACH)
        replays.rest()


async def _replays(
    told: WorkerConfig,
    config: EngineConfig,
    redactor: Redactor,
    profiles: Profiles,
    notes: ReplayReports,
    takes: AutoSessions | None,
) -> Replays | None:
    if told.mode not in ("replay", "auto"):
        return None
    # A third of what a worker imports, and one that only records has no use for it.
    from proxy.worker.replay_setup import replays

    return await replays(told, config, redactor, profiles, notes, takes)


def _config(told: WorkerConfig, data: DataDir, authority: CertificateAuthority, stop: asyncio.Event) -> EngineConfig:
    return EngineConfig(
        authority=authority,
        mode=told.mode,
        host=told.listen,
        port=told.port,
        reuse_port=told.reuse_port,
        reverse=told.reverse,
        upstreams=told.upstreams,
        modes=told.modes,
        # Only where all modes can be had; the workers of a single command have but one run.
        run_mode=Modes(data.replays).of if told.mode == "auto" and told.api else _no_mode,
        is_only_run=Modes(data.replays).is_only if told.api else _no_fork,
        tunnel=told.tunnel,
        upstream_proxy=told.upstream_proxy,
        upstream_ca=told.upstream_ca,
        access=_access(told, data),
        own_addresses=told.own_addresses,
        connect_ports=told.connect_ports,
        allow_private=told.allow_private,
        owner=f"{told.started:x}",
        stop=stop,
        control=Path(told.control) if told.control else None,
        transparent=told.transparent,
    )


def _access(told: WorkerConfig, data: DataDir) -> Access:
    """What clients of this worker may do. The token that was made is asked for where other machines reach us, or one was set."""
    made, asks = data.recording_token(), bool(told.token) or not loopback(told.listen)
    return Access(
        tokens=tuple(filter(None, (told.token, made))) if asks else (),
        run_tokens=None if told.shared_runs else data.run_tokens(),
        only_run=told.replay_options.get("id"),
    )


def _no_mode(_run: str) -> None:
    return None


def _no_fork(_run: str) -> bool:
    return False


def _ready(port: int, config: EngineConfig) -> None:
    trust = {"ca": str(config.authority.certificate), "ca_bundle": str(config.authority.bundle)}
    _say({"ready": True, "port": port, "control": str(config.control) if config.control else None, **trust})


def _loops(told: WorkerConfig) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: the lane runs on uvloop, where there is one. None: asyncio's own.

    Below another proxy every connection is mitmproxy's, which was not made for it.
    """
    if told.engine != "lane" or told.upstream_proxy or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def all_files() -> None:
    """Have as many connections as the system allows: each client's takes two files, and 1,024 are what is given at first."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say(words: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    all_files()
    try:
        line = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
        asyncio.run(main(line), loop_factory=_loops(line))
    except* (Failure, DataDirError) as failures:
        _say({"failed": str(first(failures))})
        sys.exit(125)
