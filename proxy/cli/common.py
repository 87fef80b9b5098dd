"""Options that several commands share, and how they connect to the store and print results."""

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from proxy.capture.command import IsolationOptions
from proxy.errors import FAILURE_EXIT_CODE, Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api
from proxy.run_names import invalid_name_reason
from proxy.settings import Settings, WrongFlag, load_settings
from proxy.terminal.text import printable_json
from proxy.terminal.waiting import show_waiting

if TYPE_CHECKING:
    from calls.keys.profile import Profiles
    from calls.redaction.redactor import Redactor
    from store.diff.steps import StepReader

type Command = Callable[..., Any]

_SETTINGS = [
    click.option(
        "--data", type=click.Path(path_type=Path), metavar="DIR", help="The directory of recordings and keys."
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration file. Default: ./playhead.toml.",
    ),
    click.option("--project", metavar="NAME", help="The project to record into and to look at. Default: `default`."),
    click.option("--database-url", metavar="URL", help="A PostgreSQL server to use instead of the embedded one."),
    click.option(
        "--prices",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Prices of your own, TOML or JSON, by which costs are calculated first.",
    ),
]


class WrongCommandLine(click.UsageError):
    """A wrong command line of a command that ends with the exit code of the user's command.

    It is a failure of Playhead's own like any other: the user's command could end with click's 2.
    """

    exit_code = FAILURE_EXIT_CODE


class WrappingCommand(click.Command):
    """A command that ends with the exit code of the user's command."""

    usage_error: Final = WrongCommandLine

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _usage_as_own_failure():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_as_own_failure():
            return super().invoke(ctx)


@contextmanager
def _usage_as_own_failure() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise WrongCommandLine(error.format_message(), error.ctx) from error


def with_settings(command: Command) -> Command:
    """Add the options that every command has."""
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


class _LocalService(click.ParamType[tuple[str, int]]):
    """The address and port of a service on this machine; or the path of its unix socket, with port 0."""

    name = "HOST:PORT|PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        if str(value).startswith("/"):
            return str(value), 0
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(
                f"{value!r} is not HOST:PORT: write 127.0.0.1:5432, localhost:5432 or [::1]:5432, or a socket's path",
                param,
                ctx,
            )
        return host.strip("[]"), int(port)


_ISOLATION = [
    click.option(
        "--isolation",
        type=click.Choice(["require", "auto", "off"]),
        default="auto",
        help="Run COMMAND in its own network namespace, which only the proxy connects to the outside. Default: auto, where the"
        " system allows it. require: fail elsewhere. off: only set proxy variables.",
    ),
    click.option(
        "--allow-local",
        type=_LocalService(),
        multiple=True,
        metavar="HOST:PORT|PATH",
        help="Let COMMAND reach this service on this machine, such as a database, in a replay. PATH: a unix socket. May be repeated.",
    ),
    click.option(
        "--watch",
        type=click.Choice(["seccomp", "poll", "off"]),
        default="seccomp",
        help="How to detect connections past the proxy if COMMAND has no network namespace of its own. Default: seccomp, which"
        " sees all of them; without root, programs such as sudo then gain no privileges. poll: read /proc, which misses short ones.",
    ),
]


def with_isolation(command: Command) -> Command:
    """Add the options of the commands that run the user's command."""
    for option in reversed(_ISOLATION):
        command = option(command)
    return command


def isolation_options(flags: dict[str, Any]) -> IsolationOptions:
    """Remove the isolation options from `flags` and return them."""
    return IsolationOptions(
        mode=flags.pop("isolation"), allow_local=tuple(flags.pop("allow_local")), watch=flags.pop("watch")
    )


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class _RunId(click.ParamType[str]):
    """A run id that the user chooses."""

    name = "ID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if why := invalid_name_reason(value):
            self.fail(f"{value!r} cannot be a run id: {why}", param, ctx)
        return str(value)


RUN_ID: Final = _RunId()


class _Hosts(click.ParamType[tuple[str, ...]]):
    """Hosts separated by commas; `*.example.com` means every host below that name."""

    name = "HOST[,HOST…]"
    _form = re.compile(r"(\*\.)?[a-z0-9._-]{1,253}|[0-9a-f.]*(:[0-9a-f.]*){2,8}")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        hosts = tuple(host.strip().lower() for host in str(value).split(","))
        for host in hosts:
            # A request never goes to anything else, so the option would silently do nothing.
            if not self._form.fullmatch(host):
                self.fail(
                    f"{host!r} is not a host: write api.example.com or *.example.com, separated by commas", param, ctx
                )
        return hosts


HOSTS: Final = _Hosts()

ALLOW_UNUSED: Final = click.option(
    "--allow-unused", is_flag=True, help="Succeed even if the command leaves recorded answers unused."
)


def settings_from_flags(config: Path | None = None, **flags: Any) -> Settings:
    """Load the settings, with these flags on top, and check the profiles. Raise Failure for a mistake."""
    try:
        found = load_settings(flags, config)
    except WrongFlag as error:
        raise click.UsageError(str(error)) from error
    if found.prices:
        from proxy.price_settings import own_prices
        from store.pricing.prices import use_own_prices

        use_own_prices(own_prices(found.prices))
    if found.profile:
        # The profile reader takes as long to import as most commands take to run.

        user_profiles(found)
    return found


def query_store[T](
    flags: dict[str, Any], question: Callable[[Api], T], *, is_silent: bool = True, may_create: bool = False
) -> T:
    """Query the running store server, or one that is started for this query.

    `is_silent`: the question prints nothing itself, so a terminal is told that it takes a while. `may_create`: make the data directory
    if there is none.
    """

    async def ask() -> T:
        async with CommandProcesses(settings_from_flags(**flags)) as processes:
            with (
                await processes.connect_store_server(stays_ready=True, may_create=may_create) as api,
                show_waiting("waiting for the store server") if is_silent else nullcontext(),
            ):
                return await asyncio.to_thread(question_in_context, api)

    # The context of a command belongs to its thread: without it, commands to type next would lack `--data` and `--project`.
    context = click.get_current_context(silent=True)

    def question_in_context(api: Api) -> T:
        with context.scope(cleanup=False) if context else nullcontext():
            return question(api)

    answer: Awaitable[T] = ask()
    return asyncio.run(answer)  # type: ignore[arg-type] # a coroutine, typed as what it is


def print_json(value: Any) -> None:
    """Print a JSON value, indented and safe for a terminal."""
    click.echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=_decimal_text)))


def _decimal_text(number: Decimal) -> str:
    """Write a number that neither int nor float can hold with all its digits (`proxy.processes.store_client`)."""
    if not isinstance(number, Decimal):
        raise TypeError(f"{type(number).__name__} is not JSON")
    return str(number)


def parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    """Parse labels of the form k=v."""
    split = [label.partition("=") for label in labels]
    wrong = next((label for label, (name, sign, _) in zip(labels, split, strict=True) if not (name and sign)), None)
    if wrong is not None:
        raise click.UsageError(f"--label {wrong} is not a label: write it as key=value")
    return {name: value for name, _, value in split}


def parse_time(text: str | None) -> str | None:
    """Convert a time, or an age such as 12h, to a time that the store server accepts."""
    if text is None:
        return None
    if ago := re.fullmatch(r"(\d{1,6})([smhdw])", text):
        unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[ago[2]]
        try:
            return (datetime.now(UTC) - timedelta(**{unit: int(ago[1])})).isoformat()
        except OverflowError:
            raise click.UsageError(
                f"{text} is too long ago: give an age within the last 2,000 years, or a date"
            ) from None
    if not _DAY_AND_TIME.match(text):
        raise click.UsageError(
            f"invalid time {text!r}: use 90s, 15m, 12h, 7d, 2w or an RFC 3339 time such as 2026-11-21T18:30:00Z"
        )
    return text


_DAY_AND_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d")
"""The beginning of an RFC 3339 time. The store server checks the rest."""


def user_profiles(settings: Settings) -> "Profiles":
    """Load the shipped and the user's profiles. Raise Failure with the line of a mistake."""
    # Imported here, because few commands need profiles and reading them is slow.
    from calls.keys.profile import BadProfile
    from store.active_profiles import load_profiles

    text = settings.config.read_text("utf-8") if settings.config and settings.profile else None
    try:
        return load_profiles(text)
    except BadProfile as error:
        raise Failure(f"{settings.config}: {error}") from error


def reading_redactor(settings: Settings, profiles: "Profiles") -> "Redactor":
    """Return the redactor for what a command reads. Nothing of it is stored, so any redaction key will do."""
    from calls.redaction.redactor import create_redactor

    return create_redactor(settings.redaction, secrets.token_bytes(32), profiles)


def step_reader(settings: Settings) -> "tuple[StepReader, Redactor]":
    """Return what reads and redacts steps as the store server does."""
    from store.diff.steps import StepReader

    profiles = user_profiles(settings)
    redactor = reading_redactor(settings, profiles)
    return StepReader(profiles=profiles, clean=redactor.redact_text), redactor
