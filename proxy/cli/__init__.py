"""The command line: the composition root. Each command reads the settings once and hands plain values down."""

import sys
from typing import Any

import click

from proxy.cli import compare, files, fixtures, fork, ground, inference, keys, look, run, why
from proxy.cli.common import OwnFailure
from proxy.errors import Failure


class _Group(click.Group):
    """Lists its commands in the order in which they are needed, not in the alphabet's."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _misplaced(error, args, self) from None


def _misplaced(error: click.NoSuchOption, args: list[str], group: click.Group) -> click.UsageError:
    """An option of a command that was written before the command: say where it goes."""
    name = next((word for word in args if word in group.commands), None)
    command = group.commands.get(name or "ls")
    known = command is not None and any(error.option_name in parameter.opts for parameter in command.params)
    if not known:
        return error
    return click.UsageError(
        f"{error.option_name} is an option of the commands and goes behind one: playhead {name or 'ls'} {error.option_name} …",
        error.ctx,
    )


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


for command in (
    *run.COMMANDS,
    *fork.COMMANDS,
    *why.COMMANDS,
    *look.COMMANDS,
    *compare.COMMANDS,
    *keys.COMMANDS,
    *files.COMMANDS,
    *fixtures.COMMANDS,
    *inference.COMMANDS,
    *ground.COMMANDS,
):
    playhead.add_command(command)


def main() -> None:
    """The console script. Our own failures exit with 125, a wrong command line with 2."""
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
        click.echo(f"playhead: {failure}", err=True)
        code = OwnFailure
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
