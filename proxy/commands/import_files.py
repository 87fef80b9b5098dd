"""`playhead import FILE…`: read recordings of Playhead and of other programs into the store, each file as a run."""

import datetime as dt
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import click

from calls.model import Headers
from calls.redaction.redactor import Redactor
from proxy.commands.export import show_skipped
from proxy.errors import Failure
from proxy.processes.store_client import Api
from proxy.run_names import invalid_name_reason
from proxy.terminal.text import count_text, printable
from store.foreign import read
from store.foreign.adopt import Adoption, adopt_bundle
from store.foreign.contents import Format, Found, NotReadable, SkippedEntry
from store.foreign.first_day import first_day

IMPORT_TIMEOUT = 3600.0
"""Seconds that the store server may take to store one file."""

GOES_ON = (
    "interrupted, but the store server has the whole file and goes on storing it; import the file again to wait for"
    " that, or erase its run when it is stored"
)

MOST_DAYS = 400
"""Days that are named ahead: as many as one request may name."""

PROGRESS_INTERVAL = 2.0
"""Seconds between progress messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How to import files."""

    redactor: Redactor
    profiles: str
    """The digest of the profiles."""

    run: str | None
    """The run of the only file. Without it a run is named by its bundle, or after its file."""

    form: Format | None
    """Without it the format is detected for each file."""

    extra_headers: Headers
    """What requests without such a header get."""

    days: Sequence[dt.date] = ()
    """Days of all files, for which the store server is to make room before it stores the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFile:
    """An imported file and its run."""

    file: Path
    run: Mapping[str, Any]
    form: Format = "bundle"
    skipped: Sequence[SkippedEntry] = ()
    notes: Sequence[str] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the run with facts about its file."""
        skipped = [{"place": one.place, "reason": one.reason} for one in self.skipped]
        return {**self.run, "file": str(self.file), "format": self.form, "skipped": skipped, "notes": self.notes}

    def show(self) -> None:
        """Print the result on stdout and remarks on stderr."""
        new = self.run["imported"]
        state = "was here already" if self.run["exchanges"] and not new else f"{count_text(new, 'exchange')} imported"
        click.echo(f"{self.file}: run {printable(self.run['id'])}, {state}")
        show_skipped(self.skipped)
        if self.notes:
            click.echo(f"playhead: the {self.form} file does not hold everything: {'; '.join(self.notes)}", err=True)


def import_files(api: Api, files: Sequence[Path], options: ImportOptions) -> tuple[list[ImportedFile], list[Failure]]:
    """Import the files one after the other. Return those that were imported, and the failures of the others."""
    done: list[ImportedFile] = []
    failed: list[Failure] = []
    if len(files) > 1:
        options = replace(options, days=_first_days(files, options.form))
    for file, name in zip(files, _run_names(files), strict=True):
        try:
            done.append(_import_file(api, file, options.run or name, options))
            options = replace(options, days=())
        except Failure as failure:
            failed.append(failure)
            if len(files) > 1:
                click.echo(f"playhead: {failure}", err=True)
    return done, failed


def _first_days(files: Iterable[Path], form: Format | None) -> list[dt.date]:
    """Return the days on which the files begin."""
    days: set[dt.date] = set()
    for file in files:
        if len(days) < MOST_DAYS and (day := first_day(file, form)):
            days.add(day)
    return sorted(days)


def _run_names(files: Sequence[Path]) -> list[str]:
    """Name a run after each file; files of the same name get that of their directory in front."""
    short = [read.default_run_name(file) for file in files]
    return [
        name if short.count(name) == 1 else read.default_run_name(Path(f"{file.absolute().parent.name}.{file.name}"))
        for file, name in zip(files, short, strict=True)
    ]


def _import_file(api: Api, file: Path, run: str, options: ImportOptions) -> ImportedFile:
    try:
        source = read.open_source(file, options.form)
        if source.form != "bundle":
            return _import_foreign_file(api, file, source, run, options)
        with read.open_plain(file) as content:
            return ImportedFile(file=file, run=_send_bundle(api, content, options.run, options.days))
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}; name a file that can be read") from error
    except NotReadable as error:
        raise Failure(
            f"{file} is not imported: {error}; Playhead reads its own bundles, VCR cassettes (YAML or JSON), HAR and"
            " llm-fixture-replay JSONL; --format says which it is where that cannot be seen"
        ) from error
    except Failure as failure:
        # The API's message names the parameter of its URL.
        raise Failure(f"{file}: {failure}".replace("?as=NAME", "--run ID")) from failure


def _import_foreign_file(api: Api, file: Path, source: read.Source, run: str, options: ImportOptions) -> ImportedFile:
    """Convert another program's file to a redacted bundle on disk, to save memory, and import that."""
    if why := invalid_name_reason(run):
        raise Failure(f"{file} would become run {run!r}, which is not a valid id: {why}; choose one with --run ID")
    adoption = Adoption(
        run=run,
        redactor=options.redactor,
        default_started_at=file.stat().st_mtime_ns,
        extra_headers=options.extra_headers,
    )
    began = time.monotonic()
    with tempfile.TemporaryFile() as content:
        content.writelines(adopt_bundle(adoption, _report_progress(source, file), options.profiles, file.name))
        content.seek(0)
        if time.monotonic() - began > PROGRESS_INTERVAL:
            click.echo(f"playhead: storing {count_text(adoption.exchanges, 'exchange')} as run {run}", err=True)
        imported = _send_bundle(api, content, None, options.days)
    notes = [f"{note} ({number} of {adoption.exchanges})" for note, number in adoption.notes.items()]
    return ImportedFile(file=file, run=imported, form=source.form, skipped=adoption.skipped, notes=notes)


def _report_progress(source: read.Source, file: Path) -> Iterator[Found]:
    """Yield the interactions, printing how many there were every few seconds."""
    last = time.monotonic()
    for number, one in enumerate(source.items, 1):
        yield one
        if time.monotonic() - last > PROGRESS_INTERVAL:
            last = time.monotonic()
            click.echo(
                f"playhead: reading {file} ({source.size:,} bytes): {count_text(number, 'interaction')}", err=True
            )


def _send_bundle(api: Api, content: IO[bytes], name: str | None, days: Sequence[dt.date]) -> Mapping[str, Any]:
    params = {"as": name} if name else {}
    if days:
        params["days"] = ",".join(map(str, days))
    try:
        run: Mapping[str, Any] = api.post(
            "/import", content=_read_pieces(content), params=params, timeout=IMPORT_TIMEOUT
        )
    except KeyboardInterrupt:
        if not content.read(1):
            click.echo(f"playhead: {GOES_ON}", err=True)
        raise
    return run


def _read_pieces(content: IO[bytes]) -> Iterable[bytes]:
    return iter(lambda: content.read(1 << 20), b"")
