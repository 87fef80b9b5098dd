"""The command that shows a file in the browser: view."""

import os
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import reading_redactor, settings_from_flags, user_profiles, with_settings
from proxy.commands.view import view_file
from proxy.worker.recordings import load_file


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@click.command("view", short_help="Show a file with a recording in the browser, without a database.")
@with_settings
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free port.")
@click.option(
    "--browser/--no-browser", default=None, help="Open the page in the browser. Default: where there is a display."
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def view_command(file: Path, port: int, browser: bool | None, **flags: Any) -> None:
    """Show the recording in FILE in the browser, with no database: a bundle, or what `playhead import` reads.

    Prints the address of the page, which only this user can open, and serves it until Ctrl-C. Nothing is stored or changed.

    \b
    playhead export last -o run.jsonl
    playhead view run.jsonl
    """
    settings = settings_from_flags(**flags)
    profiles = user_profiles(settings)
    redactor = reading_redactor(settings, profiles)
    bundle = load_file(file, redactor, profiles)
    view_file(
        bundle, profiles, redactor.redact_text, port=port, opens_browser=_has_display() if browser is None else browser
    )


COMMANDS = (view_command,)
"""The commands of this module."""
