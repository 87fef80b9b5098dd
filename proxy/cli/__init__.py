"""The command line. Each command reads the settings once and passes plain values on.

record, replay, fork, up, fixtures, inference, rules    commands of these names
look         the commands that look at recordings
explain      explain, why
compare      diff, bisect, drift
testing      the commands that test what runs did
files        export, import
keys         calibrate, rekey
environment  env, ca, config, doctor, demo
tokens       token
keep         the commands that keep, erase and prove recordings
completion   completion
run_completion  the names of runs that a shell offers
common       options that several commands have
"""

import errno
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from proxy.errors import (
    FAILURE_EXIT_CODE,
    NO_TEMPORARY_DIRECTORY,
    PROCESS_LIMIT,
    Failure,
    is_process_limit,
    is_temporary_directory_missing,
)
from proxy.terminal.text import printable

OUR_PACKAGES: Final = ("calls", "proxy", "replay", "store")

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write to a full disk or over a quota."""

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Record and replay": {
        "record": ("record", "Run a command and record every call it makes."),
        "replay": ("replay", "Run a command with its calls answered from a recording."),
        "fork": ("fork", "Replay a run up to a step, then continue live as a new run."),
        "resume": ("fork", "Continue a run that stopped, without paying for it again."),
        "waiting": ("look.people", "List the questions that wait for a person's answer."),
        "answer": ("look.people", "Answer a question that a run waits for."),
        "up": ("up", "Run Playhead in the foreground: proxy, store server, Postgres."),
        "env": ("environment", "Print the variables that point a shell at the running `up`."),
    },
    "Look": {
        "ls": ("look.lists", "List runs, newest first."),
        "calls": ("look.lists", "List calls of all runs, newest first."),
        "search": ("look.ask", "Find words in prompts, answers, tool arguments and results."),
        "stats": ("look.ask", "Sum up calls by model, tool, day and so on."),
        "cost": ("look.cost", "Show where the money of a run went."),
        "tail": ("look.tail", "Follow what is recorded, live."),
        "show": ("look.show", "Show a run step by step, or one call in full."),
        "why": ("explain", "Explain what a replay missed, and how to fix it."),
        "view": ("look.view", "Show a file with a recording in the browser, without a database."),
    },
    "Compare": {
        "diff": ("compare", "Show where two runs diverge, and why."),
        "bisect": ("compare", "Find the answer that makes a command fail."),
        "drift": ("compare", "Show where a provider changed the model behind a name."),
    },
    "Test": {
        "check": ("testing.check", "Check what runs did against rules: tools, targets, costs, answers."),
        "judge": ("testing.judge", "Have a model judge what runs did, by the criteria of a rubric."),
        "canary": ("testing.canary", "Ask models the same again, and say whether they changed."),
        "regress": ("testing.regress", "Replay many recordings against changed code."),
        "perturb": ("testing.perturb", "Vary what an agent received, and say what breaks it."),
    },
    "Keys": {
        "explain": ("explain", "Show what went into a key, what was left out, and why."),
        "calibrate": ("keys", "Find what differs between two recordings of the same work."),
        "rekey": ("keys", "Key stored calls again under the rules in force."),
    },
    "Files": {
        "export": ("files", "Write a run as one file: a bundle, a page, a VCR cassette, HAR or OpenTelemetry spans."),
        "import": ("files", "Read bundles, VCR cassettes, HAR and fixtures into the store."),
    },
    "Operate": {
        "demo": ("environment", "Show Playhead at work in a minute: record, cut the network, replay, miss."),
        "doctor": ("environment", "Test which clients on this machine are recorded, and which would escape."),
        "config": ("environment", "Print the settings in force."),
        "verify": ("keep.proof", "Show whether a run or bundle is as it was recorded."),
        "signing-key": ("keep.proof", "Print or rotate the key that signs checkpoints."),
        "erase": ("keep.erase", "Erase a run, a call, or a person's data for good."),
        "retention": ("keep.retention", "Remove old runs by the rules of playhead.toml."),
        "backup": ("keep.backup", "Write keys, spools and the database into one file."),
        "restore": ("keep.backup", "Restore a backup into an empty data directory."),
        "token": ("tokens", "Print, create, list or revoke tokens of the REST API and of the proxy."),
        "ca": ("environment", "Print the path of Playhead's CA certificate."),
        "rules": ("rules", "Redirect other programs' connections to `up --transparent`."),
        "completion": ("completion", "Print the script by which a shell completes commands and run names."),
        "inference": ("inference", "Set up, run and probe the bundled batch-invariant vLLM server."),
    },
}
"""The commands in the order of the help: each with its module and its short help."""

COMMANDS: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
"""Every command by name. Only the module of the given command is imported: importing all takes longer than most commands."""

COMPLETION_VARIABLE: Final = "_PLAYHEAD_COMPLETE"
"""The environment variable with which a shell's completion script requests completions (`proxy.cli.completion`)."""

HIDDEN: Final = {"fixtures": "fixtures"}
"""Commands that only Playhead's own plugins start."""


class _CommandGroup(click.Group):
    """Imports the module of a command when the command is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # Click proposes similar commands of those that are imported: none.
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, short) for name, (_, short) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        # Importing every command's module would take over a second, while a person waits.
        return [
            CompletionItem(name, help=short) for name, (_, short) in COMMANDS.items() if name.startswith(incomplete)
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _misplaced_option_error(error, args) from None


def load_command(name: str) -> click.Command | None:
    """Import and return the command of this name; None if there is none."""
    module = COMMANDS[name][0] if name in COMMANDS else HIDDEN.get(name)
    if module is None:
        return None
    with _default_ctrl_c(), _no_collector():
        commands: tuple[click.Command, ...] = import_module(f"proxy.cli.{module}").COMMANDS
    return next(command for command in commands if command.name == name)


@contextmanager
def _default_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process during an import, which could swallow the exception. Nothing has been started yet."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Collect no garbage during an import, which makes none: that would take a tenth of its time."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _misplaced_option_error(error: click.NoSuchOption, args: list[str]) -> click.UsageError:
    """Return an error that says where to put a command's option that was written before the command."""
    name = next((word for word in args if word in COMMANDS), None)
    command = load_command(name or "ls")
    known = command is not None and any(error.option_name in parameter.opts for parameter in command.params)
    kind: type[click.UsageError] = getattr(command, "usage_error", click.UsageError)
    behind = f"is an option of the commands and goes behind one: playhead {name or 'ls'} {error.option_name} …"
    return kind(f"{error.option_name} {behind}" if known else error.format_message(), error.ctx)


def _reopen_missing_streams() -> None:
    """Open /dev/null for standard streams that are closed. Otherwise the next file to be opened would get the number of one, and
    messages would be written into that file."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            # The lowest free file descriptor is this number.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(number, mode))


@click.group(
    cls=_CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `playhead demo`. Then: playhead record -- python agent.py, and playhead replay last -- python agent.py",
)
@click.version_option(package_name="playhead")
def playhead() -> None:
    """The flight recorder for AI agents.

    Records every model and tool call that an agent makes, and answers the same calls from the record, byte for byte, with
    the network cut.
    """


def _system_failure(error: Exception) -> str | None:
    """Return what the environment of the command lacks, and what to do; None if the error is a defect of Playhead's."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        needs = f"this environment has no {package}, which this command needs"
        return None if package in OUR_PACKAGES else f"{needs}: install playhead[store,proxy,embedded] into it"
    # An argument of other bytes than UTF-8, which no message to another process and no request can have.
    if isinstance(error, UnicodeEncodeError) and any("\udc80" <= each <= "\udcff" for each in error.object):
        argument = printable(error.object[max(error.start - 100, 0) : error.end + 100])
        return f"{argument} is not UTF-8; give another word, or rename the file or directory"
    if is_process_limit(error):
        return PROCESS_LIMIT
    if is_temporary_directory_missing(error):
        return NO_TEMPORARY_DIRECTORY
    if isinstance(error, OSError) and error.errno in FULL:
        return f"cannot write: {error.strerror}; make room, and try again"
    return None


def main() -> None:
    """Run the console script. Playhead's own failures exit with 125, a wrong command line with 125 or 2 (`WrappingCommand`)."""
    _reopen_missing_streams()
    try:
        if COMPLETION_VARIABLE in os.environ:
            import_module("proxy.cli.completion")
        code: Any = playhead.main(standalone_mode=False, complete_var=COMPLETION_VARIABLE)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except Failure as failure:
        click.echo("\n".join(map(printable, f"playhead: {failure}".split("\n"))), err=True)
        code = FAILURE_EXIT_CODE
    except (ModuleNotFoundError, OSError, RuntimeError, UnicodeEncodeError) as error:
        if (reason := _system_failure(error)) is None:
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            # Python would try to write the rest of the buffer at exit, and fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"playhead: {reason}", err=True)
        code = FAILURE_EXIT_CODE
    # Python would look for garbage before it ends, which takes longer than anything else that it does then.
    gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)
