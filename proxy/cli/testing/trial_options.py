"""What the commands that run trials have in common: the words after `--`, and their options."""

from typing import Any, Final

import click

COMMAND_KEY: Final = "playhead.trial_command"


class CommandAfterDashes(click.Command):
    """A command with any number of arguments before `--`, and the words of another command after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND_KEY] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "COMMAND..."]


def command_after_dashes(example: str) -> tuple[str, ...]:
    """Return the words after `--`. Raises UsageError if there are none."""
    command: tuple[str, ...] = click.get_current_context().meta[COMMAND_KEY]
    if not command:
        raise click.UsageError(f"there is no command to run: write it behind --, as in {example}")
    return command


def given_settings(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the command line, without the configuration file, for the processes of trials."""
    return {name: value for name, value in flags.items() if name != "config"}


TIMEOUT: Final = click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(min=0.1, max=86_400),
    default=300.0,
    metavar="SECONDS",
    help="How long one replay may take. Default: 300.",
)

JUNIT_HELP: Final = "Also write the results as JUnit XML, which CI systems show."
