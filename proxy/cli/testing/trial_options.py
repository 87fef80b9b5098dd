"""What the commands that run trials have in common: the words after `--`, and their options."""

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import click

from calls.side_effects import BadRule, parse_side_effects
from proxy.capture.command import IsolationOptions
from proxy.cli.common import isolation_options
from proxy.processes.user_command import require_command
from proxy.settings import Settings
from proxy.terminal.hangup import call_when_stopped
from proxy.terminal.text import printable
from proxy.trials.completion import parse_model_url
from proxy.trials.trial import TrialRunner

type Command = Callable[..., Any]

COMMAND_KEY: Final = "playhead.trial_command"


class CommandAfterDashes(click.Command):
    """A command with any number of arguments before `--`, and the words of another command after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND_KEY] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "COMMAND..."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What to run many times, and how."""

    command: tuple[str, ...]
    isolation: IsolationOptions
    limit_s: float
    """Seconds that one replay may take."""

    jobs: int
    effects: tuple[str, ...]
    """Rules for live calls that may change something."""

    model_origin: str | None
    """The server that answers live requests to models in their place."""


def take_trial_options(flags: dict[str, Any], example: str) -> TrialOptions:
    """Remove the options of `with_trial_options` and `with_isolation` from `flags` and return them with the words after `--`.

    Raises UsageError if there are no such words, or a rule or a URL cannot be parsed, and Failure if the command does not exist.
    """
    command: tuple[str, ...] = click.get_current_context().meta[COMMAND_KEY]
    if not command:
        raise click.UsageError(f"there is no command to run: write it behind --, as in {example}")
    require_command(command)
    effects, model_url = flags.pop("effects"), flags.pop("model_url")
    try:
        parse_side_effects(effects, ())
    except BadRule as error:
        raise click.UsageError(str(error)) from error
    return TrialOptions(
        command=command,
        isolation=isolation_options(flags),
        limit_s=flags.pop("limit_s"),
        jobs=flags.pop("jobs") or min(8, os.cpu_count() or 1),
        effects=effects,
        model_origin=parse_model_url(model_url) if model_url else None,
    )


@contextmanager
def scratch_runner(
    name: str, settings: Settings, flags: dict[str, Any], options: TrialOptions, *, allow_unused: bool
) -> Iterator[TrialRunner]:
    """The runner of a command's trials, with a scratch directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"playhead-{name}-", ignore_cleanup_errors=True) as scratch:
        yield TrialRunner(
            settings=settings,
            flags=given_settings(flags),
            config=settings.config,
            command=options.command,
            limit_s=options.limit_s,
            scratch=Path(scratch),
            allow_unused=allow_unused,
            isolation=options.isolation,
        )


def given_settings(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the command line, without the configuration file, for the processes of trials."""
    return {name: value for name, value in flags.items() if name != "config"}


def run_until_stopped[T](work: Coroutine[Any, Any, T]) -> T:
    """Run this to its end. SIGTERM and SIGHUP stop it like Ctrl-C: what was started is ended, and scratch directories are removed."""
    signals: list[signal.Signals] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            signals.append(number)
            task.cancel()

        call_when_stopped(stop, [signal.SIGTERM])
        return await work

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise click.exceptions.Exit(128 + (signals or [signal.SIGTERM])[0]) from None


def show_progress(line: str) -> None:
    """Print a line about trials that are under way."""
    click.echo(f"playhead: {printable(line)}", err=True)


_TRIALS = [
    click.option(
        "--jobs",
        type=click.IntRange(1, 64),
        help="How many replays run at a time. Default: the number of processors, at most 8.",
    ),
    click.option(
        "--timeout",
        "limit_s",
        type=click.FloatRange(min=0.1, max=86_400),
        default=300.0,
        metavar="SECONDS",
        help="How long one replay may take. Default: 300.",
    ),
    click.option(
        "--side-effects",
        "effects",
        multiple=True,
        metavar="[[METHOD ]HOST=]POLICY",
        help="Decide about live calls that may change something, as in `playhead fork`: block, allow or serve-recorded; with HOST,"
        " calls to that host. May be repeated. Default: block.",
    ),
    click.option(
        "--model-url",
        metavar="URL",
        help="A server that answers live requests to models in their place, such as http://127.0.0.1:8000.",
    ),
]


def with_trial_options(command: Command) -> Command:
    """Add the options of trials, and of their calls that go out."""
    for option in reversed(_TRIALS):
        command = option(command)
    return command


def parse_usd(text: str) -> Decimal:
    """Parse an amount such as 2.00USD. Raises UsageError."""
    found = re.fullmatch(r"\$?(\d{1,9}(?:\.\d{1,6})?) ?(?:USD)?", text)
    if found is None or not Decimal(found[1]):
        raise click.UsageError(f"{text!r} is not an amount of money: write 2.00USD")
    return Decimal(found[1])


JUNIT_HELP: Final = "Also write the results as JUnit XML, which CI systems show."
