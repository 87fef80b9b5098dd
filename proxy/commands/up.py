"""`playhead up`: run the store server and the proxy workers until it is stopped.

A worker or a store server that dies is started again; its clients have seen a broken connection, so nothing passed unrecorded.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from shlex import quote
from typing import Any

import click

from proxy.capture.control_path import control_path
from proxy.errors import Failure
from proxy.processes import settings_match as agreement
from proxy.processes.child_process import Child
from proxy.processes.command_processes import CommandProcesses, reachable
from proxy.processes.ports import free, held
from proxy.processes.store_client import Api
from proxy.run_names import file_of
from proxy.settings import Settings
from proxy.wire.config import loopback
from store.database.wait import PAUSES, REPEAT_EVERY
from store.lock import Lock, LockTaken

LONGEST_PAUSE = 5.0
"""Seconds between two starts of a process that dies again and again."""

QUIET = 60.0
"""Seconds after which the death of a process has nothing to do with the one before."""


async def up(settings: Settings, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or Ctrl-C. Prints the contract's one ready line on stdout."""
    _answerable(settings)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    house = CommandProcesses(settings)
    with _only_one(house), reserved(settings) as (port, api_port):
        async with house:
            try:
                await _serve(house, port, api_port, stopped, say)
            finally:
                _withdraw(house)


@contextmanager
def reserved(settings: Settings) -> Iterator[tuple[int, int]]:
    """The workers' port and the API's. Of one that the other part listens on, beside us or elsewhere, only the number is taken."""
    with ExitStack() as kept:
        port, api_port = settings.proxy_port, settings.api_port
        if settings.part != "store":
            port = kept.enter_context(held(settings.listen, port))
        if settings.part != "proxy":
            api_port = free(settings.listen, api_port)
        yield port, api_port


def _answerable(settings: Settings) -> None:
    """Raise Failure where a host is to be answered from recordings, and this `up` has none."""
    answered = [f"{host} = {mode!r}" for host, mode in settings.modes.items() if mode in ("replay", "auto")]
    if answered and settings.mode not in ("replay", "auto"):
        raise Failure(
            f"modes: {answered[0]}, but mode {settings.mode} answers nothing from recordings: add --mode replay or auto"
        )


async def _serve(
    house: CommandProcesses, port: int, api_port: int, stopped: asyncio.Event, say: Callable[[str], None]
) -> None:
    settings = house.settings
    host = reachable(settings.listen)
    api = settings.store_url if settings.part == "proxy" and settings.store_url else f"http://{host}:{api_port}"
    own: dict[str, Any] = {"api": api, "own_addresses": [[settings.listen, api_port]]}
    controls = [str(control_path(house.data.root, f"up-{slot}")) for slot in range(settings.workers)]
    starts: dict[str, Callable[[int], Awaitable[Child]]] = {
        "store": lambda _: house.store_server(api_port, settings.listen, lasting=True),
        "proxy": lambda slot: house.worker(
            **own,
            listen=settings.listen,
            port=port,
            reuse_port=True,
            control=controls[slot],
            transparent=settings.transparent,
        ),
    }
    wanted = [settings.part] if settings.part != "all" else ["store", "proxy"]
    say(f"starting, mode {settings.mode}, data in {house.data.root}")
    if settings.open_api:
        say("open_api is set: every user of this machine can read and delete all recordings through the API")
    for file in settings.replay if settings.mode == "auto" else ():
        if os.path.isfile(file):  # noqa: ASYNC240 - nobody waits yet
            say(
                f"what {file} lacks goes out and is kept as a run beside it; to make it part of the recording, import the file"
                f" and name the run (playhead import {quote(file)}), or: playhead replay {quote(file)} --on-miss record -- CMD"
            )
    ready: dict[str, list[asyncio.Future[Mapping[str, Any]]]] = {
        part: [asyncio.Future() for _ in range(settings.workers if part == "proxy" else 1)] for part in wanted
    }
    prepared = asyncio.Event()
    is_fetching = any(file_of(name) is None for name in settings.replay)
    if settings.replay and ("store" in wanted or is_fetching):
        starts["proxy"] = _after(prepared, starts["proxy"])
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_stop(stopped, say))
            if "store" not in wanted and is_fetching:
                group.create_task(_wait_for_store(house.api_client(str(api)), say, prepared))
            for part, firsts in ready.items():
                for slot, first in enumerate(firsts):
                    group.create_task(_kept_up(partial(starts[part], slot), first, say, prepared))
            heard = {part: (await asyncio.gather(*firsts))[0] for part, firsts in ready.items()}
            _announce(house, f"http://{host}:{port}", api, heard, controls)
    except* _Stopped:
        pass


async def _stop(stopped: asyncio.Event, say: Callable[[str], None]) -> None:
    """End everything when we are told to, also what is only starting."""
    await stopped.wait()
    say("stopping")
    raise _Stopped


def _after(prepared: asyncio.Event, start: Callable[[int], Awaitable[Child]]) -> Callable[[int], Awaitable[Child]]:
    """Start only when the database is prepared: a worker that answers from runs fetches them from the store server."""

    async def later(slot: int) -> Child:
        await prepared.wait()
        return await start(slot)

    return later


async def _wait_for_store(api: Api, say: Callable[[str], None], prepared: asyncio.Event) -> None:
    """Wait until runs can be fetched from a store server that others run, however long that takes."""
    loop = asyncio.get_running_loop()
    began, reported, last = loop.time(), -REPEAT_EVERY, ""
    pause, longest = PAUSES
    while (obstacle := await asyncio.to_thread(api.obstacle)) is not None:
        if obstacle != last or loop.time() - reported >= REPEAT_EVERY:
            say(
                f"waiting for the store server at {api.url}, which has the runs of --replay: {obstacle} It is tried again until it answers."
            )
            last, reported = obstacle, loop.time()
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest)
    if last:
        say(f"the store server at {api.url} is ready, after {loop.time() - began:.0f} s")
    prepared.set()


def _announce(
    house: CommandProcesses, proxy: str, api: object, heard: Mapping[str, Mapping[str, Any]], controls: Sequence[str]
) -> None:
    """Say where we listen: on stdout once, and in the data directory for other commands."""
    words = ["ready"]
    if worker := heard.get("proxy"):
        words += [f"proxy={proxy}"]
    if "store" in heard:
        words += [f"api={api}"]
    token = [f"token={house.data.api_token_file}"] if "store" in heard else []
    if worker:
        words += [f"ca={worker['ca']}"]
        trust = {"ca": worker["ca"], "ca_bundle": worker["ca_bundle"]}
        known = agreement.facts(house.settings, agreement.WORKERS)
        facts = {
            "proxy": proxy,
            "listen": house.settings.listen,
            "api": api,
            "mode": house.settings.mode,
            "settings": known,
            "asks_for_token": bool(house.token) or not loopback(house.settings.listen),
            **trust,
        }
        # Any of the workers serves a captive command; each has a control socket of its own.
        house.data.announce(
            "up", {**facts, "control": controls[0], "controls": controls, "transparent": house.settings.transparent}
        )
    click.echo(" ".join(words + token))


def _withdraw(house: CommandProcesses) -> None:
    """Take back where the workers listen. Where we run the store server alone, they are somebody else's."""
    if house.settings.part != "store":
        house.data.withdraw("up")


class _Stopped(Exception):
    """Ends the task group; nothing is wrong."""


async def _ended(child: Child, report: Callable[[Mapping[str, Any]], None]) -> int:
    """Pass on what a process says until it ends; its exit status."""

    async def relay() -> None:
        async for message in child.messages():
            report(message)

    report(child.ready)
    async with asyncio.TaskGroup() as group:
        relaying = group.create_task(relay())
        code = await child.ended()
        relaying.cancel()
    return code


async def _kept_up(
    start: Callable[[], Awaitable[Child]],
    first: asyncio.Future[Mapping[str, Any]],
    say: Callable[[str], None],
    prepared: asyncio.Event,
) -> None:
    """Start a process, and again whenever it ends by itself.

    Raises Failure where it cannot start at all. Once it has served, it is tried for as long as we run: while a store server
    cannot start, because its database is away, workers go on recording.
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
            code = await _ended(child, report)
            say(f"{child.name} ended with status {code}, its last words are in {child.log}; starting another")
        pause = min(pause * 2 + 0.1, LONGEST_PAUSE) if loop.time() - began < QUIET else 0.0
        await asyncio.sleep(pause)


@contextmanager
def _only_one(house: CommandProcesses) -> Iterator[None]:
    """Hold the data directory against a second `up`."""
    part = house.settings.part
    lock = Lock(house.data.root / "up-store.lock") if part == "store" else house.data.up_lock
    try:
        with lock.taken():
            # One that was killed has left its note, and nobody is to go by that while we start.
            _withdraw(house)
            yield
    except LockTaken as error:
        raise Failure(
            f"another `playhead up` runs on {house.data.root}; stop it first, or give this one its own directory with --data"
        ) from error


def say_on_stderr(words: str) -> None:
    """Progress, for the person; stdout belongs to the ready line."""
    click.echo(f"playhead: {words}", err=True)
