"""`playhead export RUN`: fetch a run, search it for secrets, and write it whole or not at all."""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import click

from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.store_client import Api, lacks, segment
from proxy.recording_file import claim
from proxy.terminal.text import counted, printable, printable_json
from store.bundle.bundle import BundleHead, Entry, parts
from store.bundle.leaks import Leak, leaks, leaks_of_run, not_allowed
from store.foreign.contents import SkippedEntry
from store.foreign.write import Export

SHOWN = 20


@dataclass(slots=True, kw_only=True)
class SecretSearch:
    """Looks for secrets in what passes."""

    redactor: Redactor
    allowed: Sequence[str] = ()
    exchanges: int = 0
    found: list[Leak] = field(default_factory=list)

    def through(self, lines: Iterable[bytes]) -> Iterator[Entry]:
        """The entries of a bundle, searched."""
        for part in parts(lines):
            if isinstance(part, BundleHead):
                self._note(leaks_of_run(part.run, self.redactor))
            elif isinstance(part, Entry):
                self.exchanges += 1
                self._note(leaks(self.exchanges, part.exchange, self.redactor))
                yield part

    def _note(self, found: Iterable[Leak]) -> None:
        self.found += not_allowed(found, self.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was written."""

    run: str
    form: str
    file: Path | None
    exchanges: int
    skipped: Sequence[SkippedEntry]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        skipped = [{"place": one.place, "reason": one.reason} for one in self.skipped]
        told = {"run": self.run, "format": self.form, "file": str(self.file), "exchanges": self.exchanges}
        return {**told, "skipped": skipped}

    def show(self) -> None:
        """For a person; on stderr, since stdout may be the file."""
        show_skipped(self.skipped)
        if self.file is not None:
            click.echo(f"wrote {self.file} ({self.file.stat().st_size:,} bytes)", err=True)


def show_skipped(skipped: Sequence[SkippedEntry]) -> None:
    """Name what was left out; what has one reason in a row, in one line."""
    for reason, group in groupby(skipped, key=lambda one: one.reason):
        places = [one.place for one in group]
        names = places[0] if len(places) == 1 else f"{places[0]} to {places[-1]} ({len(places)})"
        click.echo(f"playhead: skipped {names}: {printable(reason)}", err=True)


def exported(api: Api, run: str, form: str, search: SecretSearch, output: Path | None) -> ExportResult:
    """Write the run. Raises Failure, also where a secret is seen: then nothing is left of the file."""
    export = Export()
    with _place(output) as file:
        if lacking := lacks(api, run):
            raise Failure(
                f"run {run} is not whole in the store yet: {lacking}; wait, or see /readyz of the store server"
            )
        lines = _lines(api.raw(f"/runs/{segment(run)}/bundle"))
        match form:
            case "vcr":
                file.writelines(export.vcr(search.through(lines)))
            case "har":
                file.writelines(map(_printable, export.har(search.through(lines), version("playhead"))))
            case _:
                export.written = sum(1 for _ in search.through(_written(lines, file)))
        if search.found:
            raise Failure(_refusal(run, search.found))
    return ExportResult(run=run, form=form, file=output, exchanges=export.written, skipped=export.skipped)


@contextmanager
def _place(output: Path | None) -> Iterator[IO[bytes]]:
    """A file that is there when all went well, and else never was."""
    if output is None:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            if sys.stdout.isatty():
                # A bundle's lines are sealed as they are; whoever only looks at one needs no seal.
                sys.stdout.buffer.writelines(map(_printable, file))
            else:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    if output.is_dir():
        raise Failure(f"cannot write {output}: it is a directory; name a file in it")
    with claim(output) as claimed:
        yield claimed.part
        claimed.finish()


def _printable(json: bytes) -> bytes:
    """The same JSON, with nothing in it that a terminal acts on."""
    return printable_json(json.decode("utf-8", "backslashreplace")).encode()


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in what comes in pieces, each with its end."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _written(lines: Iterable[bytes], file: IO[bytes]) -> Iterator[bytes]:
    for line in lines:
        file.write(line)
        yield line


def _refusal(run: str, found: Sequence[Leak]) -> str:
    places = "; ".join(f"{leak.place} ({leak.kind})" for leak in found[:SHOWN])
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return (
        f"run {run} is not exported: what looks like a secret is in {counted(len(found), 'place')} of it: {places}{more}."
        " It was recorded under other rules than today's: record it again, or let a place pass knowingly with"
        f" --allow-secret '{found[0].place}' (--force: all of them)"
    )
