"""`playhead up`: one keeper and the doors, for as long as the terminal or the service manager wants them.

A door or a keeper that dies is started again; its clients have seen a broken connection, so nothing passed unrecorded.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from shlex import quote
from typing import Any

import click

from proxy import agreement
from proxy.children import Child
from proxy.errors import Failure
from proxy.house import House, reachable
from proxy.ports import free, held
from proxy.settings import Settings
from store.lock import Lock, Taken

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
    house = House(settings)
    with _only_one(house), reserved(settings) as (port, api_port):
        async with house:
            try:
                await _serve(house, port, api_port, stopped, say)
            finally:
                _withdraw(house)


@contextmanager
def reserved(settings: Settings) -> Iterator[tuple[int, int]]:
    """The doors' port and the API's. Of one that the other part listens on, beside us or elsewhere, only the number is taken."""
    with ExitStack() as kept:
        port, api_port = settings.proxy_port, settings.api_port
        if settings.part != "keeper":
            port = kept.enter_context(held(settings.listen, port))
        if settings.part != "doors":
            api_port = free(settings.listen, api_port)
        yield port, api_port


def _answerable(settings: Settings) -> None:
    """Raise Failure where a host is to be answered from recordings, and this `up` has none."""
    answered = [f"{host} = {mode!r}" for host, mode in settings.modes.items() if mode in ("replay", "auto")]
    if answered and settings.mode not in ("replay", "auto"):
        raise Failure(
            f"modes: {answered[0]}, but mode {settings.mode} answers nothing from recordings: add --mode replay or auto"
        )


async def _serve(house: House, port: int, api_port: int, stopped: asyncio.Event, say: Callable[[str], None]) -> None:
    settings = house.settings
    host = reachable(settings.listen)
    api = settings.keeper if settings.part == "doors" and settings.keeper else f"http://{host}:{api_port}"
    own: dict[str, Any] = {"api": api, "own_addresses": [[settings.listen, api_port]]}
    starts: dict[str, Callable[[], Awaitable[Child]]] = {
        "keeper": lambda: house.keeper(api_port, settings.listen, lasting=True),
        "doors": lambda: house.door(**own, listen=settings.listen, port=port, reuse_port=True),
    }
    wanted = [settings.part] if settings.part != "all" else ["keeper", "doors"]
    say(f"starting, mode {settings.mode}, data in {house.data.root}")
    for file in settings.replay if settings.mode == "auto" else ():
        if os.path.isfile(file):  # noqa: ASYNC240 - nobody waits yet
            say(
                f"what {file} lacks goes out and is kept as a run beside it; to make it part of the recording, import the file"
                f" and name the run (playhead import {quote(file)}), or: playhead replay {quote(file)} --on-miss record -- CMD"
            )
    ready: dict[str, list[asyncio.Future[Mapping[str, Any]]]] = {
        part: [asyncio.Future() for _ in range(settings.workers if part == "doors" else 1)] for part in wanted
    }
    if "keeper" in wanted and settings.replay:
        starts["doors"] = _after(ready["keeper"][0], starts["doors"])
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_stop(stopped, say))
            for part, firsts in ready.items():
                for first in firsts:
                    group.create_task(_kept_up(starts[part], first, say))
            heard = {part: (await asyncio.gather(*firsts))[0] for part, firsts in ready.items()}
            _announce(house, f"http://{host}:{port}", api, heard)
    except* _Stopped:
        pass


async def _stop(stopped: asyncio.Event, say: Callable[[str], None]) -> None:
    """End everything when we are told to, also what is only starting."""
    await stopped.wait()
    say("stopping")
    raise _Stopped


def _after(
    first: asyncio.Future[Mapping[str, Any]], start: Callable[[], Awaitable[Child]]
) -> Callable[[], Awaitable[Child]]:
    """Start only when the other is ready: a door that answers from runs fetches them from the keeper."""

    async def later() -> Child:
        await first
        return await start()

    return later


def _announce(house: House, proxy: str, api: object, heard: Mapping[str, Mapping[str, Any]]) -> None:
    """Say where we listen: on stdout once, and in the data directory for other commands."""
    words = ["ready"]
    if door := heard.get("doors"):
        words += [f"proxy={proxy}"]
    if "keeper" in heard:
        words += [f"api={api}"]
    if door:
        words += [f"ca={door['ca']}"]
        trust = {"ca": door["ca"], "ca_bundle": door["ca_bundle"]}
        known = agreement.facts(house.settings, agreement.DOORS)
        house.data.announce("up", {"proxy": proxy, "api": api, "mode": house.settings.mode, "settings": known, **trust})
    click.echo(" ".join(words))


def _withdraw(house: House) -> None:
    """Take back where the doors listen. Where we run the keeper alone, they are somebody else's."""
    if house.settings.part != "keeper":
        house.data.withdraw("up")


class _Stopped(Exception):
    """Ends the task group; nothing is wrong."""


async def _kept_up(
    start: Callable[[], Awaitable[Child]], first: asyncio.Future[Mapping[str, Any]], say: Callable[[str], None]
) -> None:
    """Start a process, and again whenever it ends by itself.

    Raises Failure where it cannot start at all. Once it has served, it is tried for as long as we run: while a keeper
    cannot start, because its database is away, doors go on recording.
    """
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
            code = await child.ended()
            say(f"{child.name} ended with status {code}, its last words are in {child.log}; starting another")
        pause = min(pause * 2 + 0.1, LONGEST_PAUSE) if loop.time() - began < QUIET else 0.0
        await asyncio.sleep(pause)


@contextmanager
def _only_one(house: House) -> Iterator[None]:
    """Hold the data directory against a second `up`."""
    part = house.settings.part
    lock = Lock(house.data.root / "up-keeper.lock") if part == "keeper" else house.data.up_lock
    try:
        with lock.taken():
            # One that was killed has left its note, and nobody is to go by that while we start.
            _withdraw(house)
            yield
    except Taken as error:
        raise Failure(
            f"another `playhead up` runs on {house.data.root}; stop it first, or give this one its own directory with --data"
        ) from error


def say_on_stderr(words: str) -> None:
    """Progress, for the person; stdout belongs to the ready line."""
    click.echo(f"playhead: {words}", err=True)
