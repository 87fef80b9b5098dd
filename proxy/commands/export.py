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

from calls.events import EffectBatch, Gap
from calls.keys.profile import Profiles
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.store_client import Api, incomplete_reason, path_segment
from proxy.recording_file import lock_for_replacement
from proxy.terminal.text import count_text, printable, printable_json
from store.bundle.bundle import BundleHead, BundleTooLarge, Entry, collect_bundle, read_parts
from store.bundle.leaks import Leak, disallowed_leaks, find_effect_leaks, find_leaks, find_run_leaks
from store.foreign.contents import SkippedEntry
from store.foreign.write import Export

SHOWN = 20

LARGEST_PAGE_RUN = 256 << 20
"""Bytes of all bodies of a run that is written as a page, which is held in memory."""


@dataclass(slots=True, kw_only=True)
class SecretSearch:
    """Search a bundle for secrets while it is written."""

    redactor: Redactor
    allowed: Sequence[str] = ()
    exchanges: int = 0
    found: list[Leak] = field(default_factory=list)

    def search_lines(self, lines: Iterable[bytes]) -> Iterator[Entry]:
        """Yield the entries of a bundle after searching them."""
        return (part for part in self.search_parts(lines) if isinstance(part, Entry))

    def search_parts(
        self, lines: Iterable[bytes], room: int | None = None
    ) -> Iterator[BundleHead | Entry | Gap | EffectBatch]:
        """Yield the parts of a bundle after searching them. Raises `BundleTooLarge` before their bodies exceed `room` bytes."""
        for part in read_parts(lines, room):
            if isinstance(part, BundleHead):
                self._add_leaks(find_run_leaks(part.run, self.redactor))
            elif isinstance(part, Entry):
                self.exchanges += 1
                self._add_leaks(find_leaks(self.exchanges, part.exchange, self.redactor))
            elif isinstance(part, EffectBatch):
                self._add_leaks(find_effect_leaks(part, self.redactor))
            yield part

    def _add_leaks(self, leaks: Iterable[Leak]) -> None:
        self.found += disallowed_leaks(leaks, self.allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """The exported run and its file."""

    run: str
    form: str
    file: Path | None
    exchanges: int
    skipped: Sequence[SkippedEntry]

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        skipped = [{"place": one.place, "reason": one.reason} for one in self.skipped]
        members = {"run": self.run, "format": self.form, "file": str(self.file), "exchanges": self.exchanges}
        return {**members, "skipped": skipped}

    def show(self) -> None:
        """Print the result on stderr, since stdout may be the file."""
        show_skipped(self.skipped)
        if self.file is not None:
            click.echo(f"wrote {self.file} ({self.file.stat().st_size:,} bytes)", err=True)


def show_skipped(skipped: Sequence[SkippedEntry]) -> None:
    """Print the entries that were left out, one line for consecutive ones with the same reason."""
    for reason, group in groupby(skipped, key=lambda one: one.reason):
        places = [one.place for one in group]
        names = places[0] if len(places) == 1 else f"{places[0]} to {places[-1]} ({len(places)})"
        click.echo(f"playhead: skipped {names}: {printable(reason)}", err=True)


def export_run(
    api: Api,
    run: str,
    form: str,
    search: SecretSearch,
    output: Path | None,
    *,
    with_proof: bool = True,
    profiles: Profiles,
) -> ExportResult:
    """Write the run. Raise Failure and leave no file if it seems to contain a secret."""
    export = Export()
    with open_output(output) as file:
        if lacking := incomplete_reason(api, run):
            raise Failure(
                f"run {run} is not completely stored yet: {lacking}; wait, or see /readyz of the store server"
            )
        lines = split_lines(api.stream_bytes(f"/runs/{path_segment(run)}/bundle", proof=str(with_proof).lower()))
        match form:
            case "vcr":
                file.writelines(export.vcr(search.search_lines(lines)))
            case "har":
                file.writelines(map(_printable_line, export.har(search.search_lines(lines), version("playhead"))))
            case "html":
                export.exported = _write_page(run, search, lines, file, export.skipped, profiles)
            case _:
                export.exported = sum(1 for _ in search.search_lines(_write_through(lines, file)))
        require_no_secrets(run, search)
    return ExportResult(run=run, form=form, file=output, exchanges=export.exported, skipped=export.skipped)


def _write_page(
    run: str,
    search: SecretSearch,
    lines: Iterable[bytes],
    file: IO[bytes],
    skipped: list[SkippedEntry],
    profiles: Profiles,
) -> int:
    """Write the page of the run. Return how many exchanges it has."""
    # Not at the top: no other export needs the parts of the store server that make its documents.
    from store.page.assets import load_assets
    from store.page.single_file import write_single_file
    from store.recorded_file.documents import FileDocuments
    from store.recorded_file.embedding import embed_documents, encode_document

    try:
        bundle = collect_bundle(search.search_parts(lines, LARGEST_PAGE_RUN))
    except BundleTooLarge as error:
        raise Failure(
            f"run {run} is too large for a page in one file: its bodies have more than {LARGEST_PAGE_RUN >> 20} MB;"
            " export it as a bundle, and look at it with: playhead view FILE"
        ) from error
    found = embed_documents(FileDocuments(bundle, profiles, search.redactor.redact_text))
    skipped += [
        SkippedEntry(place=address, reason=f"it is too large for the page ({size:,} bytes)")
        for address, size in found.left_out.items()
    ]
    documents = {"left-out": encode_document(found.left_out).decode(), **found.documents}
    file.write(write_single_file(load_assets(), documents, f"{run} · Playhead"))
    return len(bundle.entries)


def require_no_secrets(run: str, search: SecretSearch) -> None:
    """Raise Failure if the search has found what seems to be a secret."""
    if search.found:
        raise Failure(_secrets_message(run, search.found))


@contextmanager
def open_output(output: Path | None, *, is_binary: bool = False) -> Iterator[IO[bytes]]:
    """Open the output. A file appears under its name only if the block succeeds."""
    if output is None:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            if sys.stdout.isatty() and not is_binary:
                # Escaping breaks the bundle's digests, which only matter in a file.
                sys.stdout.buffer.writelines(map(_printable_line, file))
            else:
                shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        return
    if output.is_dir():
        raise Failure(f"cannot write {output}: it is a directory; name a file in it")
    with lock_for_replacement(output) as claimed:
        yield claimed.part_file
        claimed.finish_replacement()


def _printable_line(json: bytes) -> bytes:
    """Escape everything in a line of JSON that a terminal would act on."""
    return printable_json(json.decode("utf-8", "backslashreplace")).encode()


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines, with their ends, of bytes that arrive in pieces."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _write_through(lines: Iterable[bytes], file: IO[bytes]) -> Iterator[bytes]:
    for line in lines:
        file.write(line)
        yield line


def _secrets_message(run: str, leaks: Sequence[Leak]) -> str:
    places = "; ".join(f"{leak.place} ({leak.kind})" for leak in leaks[:SHOWN])
    more = f"; and {len(leaks) - SHOWN} more" if len(leaks) > SHOWN else ""
    return (
        f"run {run} is not exported: what looks like a secret is in {count_text(len(leaks), 'place')} of it: {places}{more}."
        " It was recorded under other rules than today's: record it again, or let a place pass with"
        f" --allow-secret '{leaks[0].place}' ('*': all of them)"
    )
