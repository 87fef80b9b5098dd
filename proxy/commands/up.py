"""`playhead up`: run the store server and the proxy workers until stopped.

A worker or store server that dies is restarted. Its clients see a broken connection, so nothing passes unrecorded.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from shlex import quote
from typing import Any

import click

from proxy.capture.control_path import control_path
from proxy.commands.store_elsewhere import StoreElsewhere
from proxy.errors import Failure
from proxy.processes import settings_match as agreement
from proxy.processes.child_process import ChildProcess, describe_end, reap_orphans
from proxy.processes.command_processes import CommandProcesses, reachable_host
from proxy.processes.ports import reserve_port
from proxy.run_names import recording_path
from proxy.settings import Settings
from proxy.terminal.hangup import call_when_stopped
from proxy.wire.config import is_loopback
from store.lock import Lock, LockTaken

LONGEST_PAUSE = 5.0
"""Seconds between restarts of a process that keeps dying."""

QUIET = 60.0
"""Seconds of running after which a process that dies is restarted without a pause."""


async def up(settings: Settings, say: Callable[[str], None]) -> None:
    """Run until SIGTERM, SIGHUP or Ctrl-C, after printing the ready line on stdout."""
    _require_recordings(settings)
    stopped = asyncio.Event()
    call_when_stopped(lambda _signal: stopped.set())
    processes = CommandProcesses(settings)
    with _hold_data_directory(processes), reserve_ports(settings) as (port, api_port):
        async with processes:
            try:
                await _serve(processes, port, api_port, stopped, say)
            finally:
                _withdraw(processes)


@contextmanager
def reserve_ports(settings: Settings) -> Iterator[tuple[int, int]]:
    """Reserve the ports of the workers and the API. That of a part which runs elsewhere is only returned."""
    with ExitStack() as reservations:
        port, api_port = settings.proxy_port, settings.api_port
        if settings.part != "store":
            port = reservations.enter_context(reserve_port(settings.listen, port))
        if settings.part != "proxy":
            api_port = reservations.enter_context(reserve_port(settings.listen, api_port))
        if settings.part != "store" and settings.transparent is not None:
            own = {"the proxy": port} | ({"the API": api_port} if settings.part != "proxy" else {})
            _reserve_transparent_port(settings.listen, settings.transparent, own, reservations)
        yield port, api_port


def _reserve_transparent_port(listen: str, port: int, own: Mapping[str, int], reservations: ExitStack) -> None:
    """Reserve the port for redirected connections. Raises Failure if others listen there, or we do ourselves.

    The workers listen with SO_REUSEPORT: without this, the kernel would share the connections out between two services.
    """
    other = "another port with --transparent PORT"
    for name, own_port in own.items():
        if own_port == port:
            raise Failure(
                f"port {port} cannot be both that of {name} and the one for redirected connections: choose {other}"
            )
    # Of the two addresses, this one is everywhere.
    address = "127.0.0.1" if is_loopback(listen) else "0.0.0.0"  # noqa: S104 - the user listens beyond loopback
    reservations.enter_context(reserve_port(address, port, other_port=other))


def _require_recordings(settings: Settings) -> None:
    """Raise Failure if a host's own mode answers from recordings but this `up` has none."""
    answered = [f"{host} = {mode!r}" for host, mode in settings.modes.items() if mode in ("replay", "auto")]
    if answered and settings.mode not in ("replay", "auto"):
        raise Failure(
            f"modes: {answered[0]}, but mode {settings.mode} answers nothing from recordings: add --mode replay or auto"
        )


async def _serve(
    processes: CommandProcesses, port: int, api_port: int, stopped: asyncio.Event, say: Callable[[str], None]
) -> None:
    settings = processes.settings
    host = reachable_host(settings.listen)
    api = settings.store_url if settings.part == "proxy" and settings.store_url else f"http://{host}:{api_port}"
    controls = [str(control_path(processes.data.root, f"up-{slot}")) for slot in range(settings.workers)]
    starts = _process_starts(processes, port, api_port, api, controls)
    parts = [settings.part] if settings.part != "all" else ["store", "proxy"]
    _say_what_begins(processes, say)
    ready: dict[str, list[asyncio.Future[Mapping[str, Any]]]] = {
        part: [asyncio.Future() for _ in range(settings.workers if part == "proxy" else 1)] for part in parts
    }
    prepared = asyncio.Event()
    is_fetching = any(recording_path(name) is None for name in settings.replay)
    if settings.replay and ("store" in parts or is_fetching):
        starts["proxy"] = _start_after(prepared, starts["proxy"])
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_stop(stopped, say))
            group.create_task(reap_orphans())
            if any(canary.every for canary in settings.canary) and settings.part != "store":
                # Few have canaries.
                from proxy.canary.schedule import run_canaries

                group.create_task(run_canaries(settings, say))
            if "store" not in parts:
                group.create_task(_follow_store_server(processes, api, say, prepared if is_fetching else None))
            for part, firsts in ready.items():
                for slot, first in enumerate(firsts):
                    group.create_task(_keep_running(partial(starts[part], slot), first, say, prepared))
            ready_messages = {part: (await asyncio.gather(*firsts))[0] for part, firsts in ready.items()}
            _announce(processes, f"http://{host}:{port}", api, ready_messages, controls)
    except* _StopRequested:
        pass


type _Start = Callable[[int], Awaitable[ChildProcess]]
"""Starts the process with this number."""


def _process_starts(
    processes: CommandProcesses, port: int, api_port: int, api: str, controls: Sequence[str]
) -> dict[str, _Start]:
    """Return how to start the processes of each part."""
    settings = processes.settings
    # Elsewhere, a browser may not reach the store server by the name that this process uses.
    page = api if settings.part == "all" else None
    own: dict[str, Any] = {"api": api, "page": page, "own_addresses": [[settings.listen, api_port]]}
    if settings.part == "all" and settings.mode in ("replay", "auto") and not settings.replay:
        own |= processes.preload_settings()
    return {
        "store": lambda _: processes.start_store_server(api_port, settings.listen, is_lasting=True),
        "proxy": lambda slot: processes.start_worker(
            **own,
            listen=settings.listen,
            port=port,
            reuse_port=True,
            control=controls[slot],
            transparent=settings.transparent,
        ),
    }


def _say_what_begins(processes: CommandProcesses, say: Callable[[str], None]) -> None:
    settings = processes.settings
    say(f"starting, mode {settings.mode}, data in {processes.data.root}")
    if settings.open_api:
        say("open_api is set: every user of this machine can read and delete all recordings through the API")
    for file in settings.replay if settings.mode == "auto" else ():
        if os.path.isfile(file):
            say(
                f"what {file} lacks goes out and is kept as a run beside it; to make it part of the recording, import the file"
                f" and name the run (playhead import {quote(file)}), or: playhead replay {quote(file)} --on-miss record -- CMD"
            )


async def _follow_store_server(
    processes: CommandProcesses, api: str, say: Callable[[str], None], prepared: asyncio.Event | None
) -> None:
    """Set `prepared` once runs can be fetched from a store server elsewhere. Then report while it stores nothing."""
    settings = processes.settings
    store_server = StoreElsewhere(processes.api_client(api), say)
    if prepared is not None:
        await store_server.wait(prepared)
    if {settings.mode, *settings.modes.values()} & {"record", "auto"}:
        await store_server.watch(processes.data.spools, settings.spool_limit)


async def _stop(stopped: asyncio.Event, say: Callable[[str], None]) -> None:
    """End all processes once `stopped` is set, including those that are starting."""
    await stopped.wait()
    say("stopping")
    raise _StopRequested


def _start_after(prepared: asyncio.Event, start: _Start) -> _Start:
    """Delay a start until the database is ready: a worker that answers from runs fetches them from the store server."""

    async def start_later(slot: int) -> ChildProcess:
        await prepared.wait()
        return await start(slot)

    return start_later


def _announce(
    processes: CommandProcesses,
    proxy: str,
    api: object,
    ready_messages: Mapping[str, Mapping[str, Any]],
    controls: Sequence[str],
) -> None:
    """Announce the addresses: on stdout, and in the data directory for other commands."""
    words = ["ready"]
    if worker := ready_messages.get("proxy"):
        words += [f"proxy={proxy}"]
    if "store" in ready_messages:
        words += [f"api={api}"]
    token = [f"token={processes.data.api_token_file}"] if "store" in ready_messages else []
    if worker:
        words += [f"ca={worker['ca']}"]
        trust = {"ca": worker["ca"], "ca_bundle": worker["ca_bundle"]}
        known = agreement.setting_digests(processes.settings, agreement.WORKER_SETTINGS)
        facts = {
            "proxy": proxy,
            "listen": processes.settings.listen,
            "api": api,
            "page": api if "store" in ready_messages else None,
            "mode": processes.settings.mode,
            "settings": known,
            "asks_for_token": bool(processes.token) or not is_loopback(processes.settings.listen),
            **trust,
        }
        # Any worker can serve a captive command; each has its own control socket.
        processes.data.announce(
            "up", {**facts, "control": controls[0], "controls": controls, "transparent": processes.settings.transparent}
        )
    click.echo(" ".join(words + token))


def _withdraw(processes: CommandProcesses) -> None:
    """Withdraw the workers' addresses, unless this `up` runs the store server alone."""
    if processes.settings.part != "store":
        processes.data.withdraw("up")


class _StopRequested(Exception):
    """Ends the task group when `up` is stopped."""


async def _relay_until_end(child: ChildProcess, report: Callable[[Mapping[str, Any]], None]) -> int:
    """Relay the messages of a process until it ends. Return its exit status."""

    async def relay() -> None:
        async for message in child.messages():
            report(message)

    report(child.ready)
    async with asyncio.TaskGroup() as group:
        relaying = group.create_task(relay())
        code = await child.wait()
        relaying.cancel()
    return code


async def _keep_running(
    start: Callable[[], Awaitable[ChildProcess]],
    first: asyncio.Future[Mapping[str, Any]],
    say: Callable[[str], None],
    prepared: asyncio.Event,
) -> None:
    """Start a process, and restart it whenever it ends.

    Raise Failure if the first start fails. Later starts are retried without end: while a store server cannot start because its
    database is unavailable, the workers go on recording.
    """

    def report(message: Mapping[str, Any]) -> None:
        if words := message.get("progress"):
            say(str(words))
        if message.get("prepared"):
            prepared.set()

    loop = asyncio.get_running_loop()
    pause = 0.0
    while True:
        began = loop.time()
        try:
            child = await start()
        except Failure as failure:
            if not first.done():
                raise
            say(f"{failure}; trying again")
        else:
            if not first.done():
                first.set_result(child.ready)
            code = await _relay_until_end(child, report)
            say(f"{child.name} {describe_end(code)}; restarting it (its log: {child.log})")
        pause = min(pause * 2 + 0.1, LONGEST_PAUSE) if loop.time() - began < QUIET else 0.0
        await asyncio.sleep(pause)


@contextmanager
def _hold_data_directory(processes: CommandProcesses) -> Iterator[None]:
    """Lock the data directory against a second `up`."""
    part = processes.settings.part
    lock = Lock(processes.data.root / "up-store.lock") if part == "store" else processes.data.up_lock
    try:
        with lock.hold():
            # An `up` that was killed left its addresses behind.
            _withdraw(processes)
            yield
    except LockTaken as error:
        raise Failure(
            f"another `playhead up` runs on {processes.data.root}; stop it first, or give this one its own directory with --data"
        ) from error


def say_on_stderr(words: str) -> None:
    """Print progress on stderr; stdout is for the ready line."""
    click.echo(f"playhead: {words}", err=True)
