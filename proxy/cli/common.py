"""What the commands share: options that become settings, and how results are printed."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import click

from proxy.capture.command import IsolationWish
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api
from proxy.run_names import unfit
from proxy.settings import Settings, WrongFlag, load
from proxy.terminal.text import printable_json

type Command = Callable[..., Any]

_SETTINGS = [
    click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Where recordings and keys live."),
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Instead of ./playhead.toml."),
    click.option("--database-url", metavar="URL", help="A PostgreSQL of yours instead of the embedded one."),
]


def with_settings(command: Command) -> Command:
    """The options that every command has."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


class _LocalService(click.ParamType[tuple[str, int]]):
    """A service of this machine: its address and port."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value!r} is no HOST:PORT: write 127.0.0.1:5432, localhost:5432 or [::1]:5432", param, ctx)
        return host.strip("[]"), int(port)


_ISOLATION = [
    click.option(
        "--isolation",
        type=click.Choice(["require", "auto", "off"]),
        default="auto",
        help="Run COMMAND in a network of its own, from which nothing leaves but through the proxy. Default: auto, where the"
        " system allows it. require: or not at all. off: set proxy variables only.",
    ),
    click.option(
        "--allow-local",
        type=_LocalService(),
        multiple=True,
        metavar="HOST:PORT",
        help="Let COMMAND reach this service of this machine in a replay, such as a database. May be repeated.",
    ),
    click.option(
        "--watch",
        type=click.Choice(["seccomp", "poll", "off"]),
        default="seccomp",
        help="How connections past the proxy are noticed where COMMAND has no network of its own. Default: seccomp, which sees"
        " all; without root, programs such as sudo gain no privileges then. poll: reads /proc, and misses short ones.",
    ),
]


def with_isolation(command: Command) -> Command:
    """The options of the commands that run somebody's command."""
    for option in reversed(_ISOLATION):
        command = option(command)
    return command


def isolation_wish(flags: dict[str, Any]) -> IsolationWish:
    """Take these options out of `flags`."""
    return IsolationWish(
        isolation=flags.pop("isolation"), allow_local=tuple(flags.pop("allow_local")), watch=flags.pop("watch")
    )


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs instead of text for people.")


class _RunId(click.ParamType[str]):
    """An id that a user gives to a run."""

    name = "ID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if why := unfit(value):
            self.fail(f"{value!r} cannot be a run id: {why}", param, ctx)
        return str(value)


RUN_ID: Final = _RunId()


class _Host(click.ParamType[str]):
    """Who may be asked: one host, or all below a name. What is none would never be asked, and nobody would know why."""

    name = "HOST"
    _form = re.compile(r"(\*\.)?[a-z0-9._-]{1,253}|[0-9a-f.]*(:[0-9a-f.]*){2,8}")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        host = str(value).lower()
        if not self._form.fullmatch(host):
            self.fail(f"{value!r} is no host: write api.example.com or *.example.com, one with each option", param, ctx)
        return host


HOST: Final = _Host()


def settings(config: Path | None = None, **flags: Any) -> Settings:
    """The settings in force under these flags, profiles checked. Raises Failure."""
    try:
        found = load(flags, config)
    except WrongFlag as error:
        raise click.UsageError(str(error)) from error
    if found.profile:
        # What reads profiles takes as long to import as most commands take in all.
        from proxy.cli.profiles import user_profiles

        user_profiles(found)
    return found


def asking[T](flags: dict[str, Any], question: Callable[[Api], T]) -> T:
    """Ask the store server: the running one, or one of our own for this moment."""

    async def ask() -> T:
        async with CommandProcesses(settings(**flags)) as house:
            with await house.api() as api:
                return await asyncio.to_thread(question, api)

    answer: Awaitable[T] = ask()
    return asyncio.run(answer)  # type: ignore[arg-type] # a coroutine, typed as what it is


def print_json(value: Any) -> None:
    """One JSON value, readable, and without anything that a terminal acts on."""
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=_digits)))


def _digits(number: Decimal) -> str:
    """A number that nobody's parser makes an int or a float of, with all its digits (`proxy.processes.store_client.read_json`)."""
    if not isinstance(number, Decimal):
        raise TypeError(f"{type(number).__name__} is no JSON")
    return str(number)


def pairs(labels: tuple[str, ...]) -> dict[str, str]:
    """Labels as they were given, k=v."""
    split = [label.partition("=") for label in labels]
    wrong = next((label for label, (name, sign, _) in zip(labels, split, strict=True) if not (name and sign)), None)
    if wrong is not None:
        raise click.UsageError(f"--label {wrong} is not of the form key=value")
    return {name: value for name, _, value in split}


def moment(told: str | None) -> str | None:
    """A time as the store server takes it, also of one that was said as so long ago."""
    if told is None:
        return None
    if ago := re.fullmatch(r"(\d{1,6})([smhdw])", told):
        unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[ago[2]]
        try:
            return (datetime.now(UTC) - timedelta(**{unit: int(ago[1])})).isoformat()
        except OverflowError:
            raise click.UsageError(f"{told} is longer ago than there are days.") from None
    if not _DAY_AND_TIME.match(told):
        raise click.UsageError(
            f"{told!r} is no time: write 2026-11-21T18:30:00Z, or how long ago it was, such as 90s, 12h or 7d."
        )
    return told


_DAY_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d")
"""The rest of it, with its offset, is the store server's to judge."""
