"""The command line. Each command reads the settings once and passes plain values on.

record, replay, fork, up, fixtures, inference, rules, why, explain    commands of these names
look         ls, show
compare      diff, bisect, drift
files        export, import
keys         calibrate, rekey
ground       env, ca, config, doctor, demo
common       options that several commands have
profiles     the profiles of a command
"""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import click

from proxy.errors import OWN_FAILURE, Failure
from proxy.terminal.text import printable

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that takes no more."""

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Record and replay": {
        "record": ("record", "Run a command and record every call it makes."),
        "replay": ("replay", "Run a command with its calls answered from a recording."),
        "fork": ("fork", "Replay a run up to a step, then go on live as a run of its own."),
        "resume": ("fork", "Go on with a run that stopped, without paying for it again."),
        "up": ("up", "Run Playhead in the foreground: proxy, store server, Postgres."),
        "env": ("ground", "Print what points a shell at the running `up`."),
    },
    "Look": {
        "ls": ("look", "List runs, newest first."),
        "show": ("look", "Show a run step by step, or one call whole."),
        "why": ("why", "Explain what a replay missed, and what would mend it."),
    },
    "Compare": {
        "diff": ("compare", "Show where two runs part, and why."),
        "bisect": ("compare", "Find the answer that makes a command fail."),
        "drift": ("compare", "Show where a provider changed the model behind a name."),
    },
    "Keys": {
        "explain": ("explain", "Show what went into a key, what was left out, and why."),
        "calibrate": ("keys", "Find what differs between two recordings of the same work."),
        "rekey": ("keys", "Key stored calls again under the rules in force."),
    },
    "Files": {
        "export": ("files", "Write a run as one file: a bundle, a VCR cassette or HAR."),
        "import": ("files", "Read bundles, VCR cassettes, HAR and fixtures into the store."),
    },
    "Operate": {
        "demo": ("ground", "See the whole of it in a minute: record, cut the network, replay, miss."),
        "doctor": ("ground", "Test which clients on this machine are recorded, and which would escape."),
        "config": ("ground", "Print the settings in force."),
        "token": ("ground", "Print the token of the REST API, or of the proxy."),
        "ca": ("ground", "Print the path of our CA certificate."),
        "rules": ("rules", "Redirect other programs' connections to `up --transparent`."),
        "inference": ("inference", "Set up, run and probe the bundled batch-invariant vLLM server."),
    },
}
"""The commands as the help shows them: each with the module that has it, and its short help."""

COMMANDS: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
"""Every command by its name. Only the module of the command that is given is imported: all of them together take longer than
most commands."""

HIDDEN: Final = {"fixtures": "fixtures"}
"""What only our own plugins start."""


class _Group(click.Group):
    """Knows its commands by name, and imports what one needs when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return loaded(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, short) for name, (_, short) in section.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _misplaced(error, args) from None


def loaded(name: str) -> click.Command | None:
    """The command of this name, if there is one."""
    module = COMMANDS[name][0] if name in COMMANDS else HIDDEN.get(name)
    if module is None:
        return None
    with _ended_by_ctrl_c():
        commands: tuple[click.Command, ...] = import_module(f"proxy.cli.{module}").COMMANDS
    return next(command for command in commands if command.name == name)


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """The exception that Ctrl-C raises can be lost in an import; nothing has begun yet, so let the signal do what it does."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _misplaced(error: click.NoSuchOption, args: list[str]) -> click.UsageError:
    """An option of a command that was written before the command: say where it goes."""
    name = next((word for word in args if word in COMMANDS), None)
    command = loaded(name or "ls")
    known = command is not None and any(error.option_name in parameter.opts for parameter in command.params)
    if not known:
        return error
    return click.UsageError(
        f"{error.option_name} is an option of the commands and goes behind one: playhead {name or 'ls'} {error.option_name} …",
        error.ctx,
    )


def _reopened() -> None:
    """Put what reads and says nothing in place of streams that we were started without: else the next file that is opened
    would get the number of one, and what is said would be written into that."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # It takes the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode))


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `playhead demo`. Then: playhead record -- python agent.py, and playhead replay last -- python agent.py",
)
@click.version_option(package_name="playhead")
def playhead() -> None:
    """The flight recorder for AI agents.

    Records every model and tool call that an agent makes, and answers the same calls from the record, byte for byte, with
    the network cut.
    """


def main() -> None:
    """The console script. Our own failures exit with 125, a wrong command line with 2."""
    _reopened()
    try:
        code: Any = playhead.main(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except Failure as failure:
        click.echo("\n".join(map(printable, f"playhead: {failure}".split("\n"))), err=True)
        code = OWN_FAILURE
    except OSError as error:
        if error.errno not in FULL:
            raise
        # What is still in the buffer cannot be written either, and Python would try.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"playhead: cannot write: {error.strerror}; make room, and try again", err=True)
        code = OWN_FAILURE
    sys.exit(code if isinstance(code, int) else 0)
