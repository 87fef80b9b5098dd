"""The commands that write everything into one file and restore it: backup, restore."""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from proxy.cli.common import as_json, print_json, settings_from_flags, with_settings
from proxy.cli.keep.retention import size_text
from proxy.errors import Failure
from proxy.settings import Settings
from proxy.terminal.hangup import exit_when_stopped
from proxy.terminal.text import count_text
from store.backup.archive import BadArchive
from store.backup.restore import NotEmpty, restore_backup
from store.backup.write_backup import BackupSummary, write_backup
from store.database.connection import DatabaseError, url_without_password
from store.datadir import DataDir, DataDirError, open_data_dir
from store.embedded.postgres import EmbeddedPostgresError, ensure_server

REPORT_EVERY: Final = 2.0
"""Seconds between two lines of progress."""


@click.command("backup", short_help="Write keys, spools and the database into one file.")
@with_settings
@as_json
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup_command(file: Path, as_json: bool, **flags: Any) -> None:
    """Write all that this data directory and its database hold into FILE: recordings of every project, keys, tokens and spools.

    Recording goes on meanwhile: the database is copied as of one moment. FILE is read again and every digest checked before it gets
    its name. It holds prompts and secret keys, and only you can read it.

    \b
        playhead backup nightly.tar
        playhead backup nightly.tar --database-url postgresql://playhead@db/playhead
    """
    settings = settings_from_flags(**flags)
    if file.exists(follow_symlinks=False):
        raise Failure(f"{file} exists, and a backup replaces no file: choose another name, or delete it")
    if not (settings.data / "version").is_file():
        raise Failure(f"there is nothing to back up: {settings.data} is no data directory; name it with --data DIR")
    summary = _run(f"cannot write {file}", lambda: _back_up(settings, file))
    if as_json:
        print_json({"file": str(file), "size": summary.size, "files": summary.files, "rows": summary.rows})
        return
    click.echo(f"{file}: {size_text(summary.size)}, {_contents(summary.files, summary.rows)}, every digest checked")
    if objects := summary.rows.get("objects"):
        click.echo(
            f"playhead: {count_text(objects, 'object')} in object storage are not in this file: copy the bucket as well"
            " (docs/operations.md)",
            err=True,
        )


@click.command("restore", short_help="Restore a backup into an empty data directory.")
@with_settings
@as_json
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def restore_command(file: Path, as_json: bool, **flags: Any) -> None:
    """Restore the backup FILE into an empty data directory, and into its own database or the empty one of --database-url.

    All of FILE is checked before anything is written, and a restore that fails leaves nothing behind. What is derived, such as the
    index of words, is made anew when the store server starts. The keys come with the backup: let only one of the two copies go on
    recording, or rotate the other's (playhead signing-key rotate).

    \b
        playhead restore nightly.tar --data ./restored
        playhead verify --all --data ./restored
        playhead restore nightly.tar --data ./moved --database-url postgresql://playhead@db/empty
    """
    settings = settings_from_flags(**flags)
    url = _database_url(settings)
    summary = _run(
        f"cannot restore {file}",
        lambda: restore_backup(file, settings.data.absolute(), url, report=_Progress("restoring")),
    )
    if as_json:
        shape = {"created_at": summary.created_at, "files": summary.files, "rows": summary.rows}
        print_json({"data": str(settings.data)} | shape)
        return
    where = f" and {url_without_password(url)}" if url else ""
    contents = _contents(summary.files, summary.rows)
    click.echo(f"restored the backup of {summary.created_at} into {settings.data}{where}: {contents}")


async def _back_up(settings: Settings, file: Path) -> BackupSummary:
    data = open_data_dir(settings.data)
    report = _Progress("backing up")

    async def write(url: str) -> BackupSummary:
        now = dt.datetime.now(dt.UTC)
        return await write_backup(file, data.root, url, version=version("playhead"), now=now, report=report)

    if url := _database_url(settings):
        return await write(url)
    _require_embedded_database(data)
    with ensure_server(data.postgres) as embedded:
        return await write(embedded.dsn)


def _database_url(settings: Settings) -> str | None:
    return settings.database_url.get_secret_value() if settings.database_url else None


def _require_embedded_database(data: DataDir) -> None:
    if not data.postgres.is_dir():
        raise Failure(
            f"{data.root} has no database of its own: name the one that it is used with, by --database-url URL or in playhead.toml"
        )


def _run[T](failed: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        with exit_when_stopped():
            return asyncio.run(work())
    except (BadArchive, NotEmpty, DataDirError, EmbeddedPostgresError, DatabaseError) as error:
        raise Failure(f"{failed}: {str(error).rstrip('.')}; nothing was changed") from error
    except OSError as error:
        raise Failure(f"{failed}: {error.strerror or error}; nothing was changed") from error


def _contents(files: int, rows: dict[str, int]) -> str:
    runs, exchanges = rows.get("runs", 0), rows.get("exchanges", 0)
    return f"{count_text(runs, 'run')}, {count_text(exchanges, 'exchange')}, {count_text(files, 'file')}"


class _Progress:
    """Prints what a long command is doing, every few seconds."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._printed_at = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self._printed_at >= REPORT_EVERY:
            self._printed_at = time.monotonic()
            click.echo(f"playhead: {self._doing}: {what}", err=True)


COMMANDS = (backup_command, restore_command)
