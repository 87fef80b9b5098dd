"""The commands that carry recordings about: export and import."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

from calls.keys.profile import Profiles
from calls.model import Headers
from calls.redaction.redactor import Redactor
from proxy.cli.common import RUN_ID, as_json, asking, print_json, settings, with_settings
from proxy.cli.profiles import user_profiles
from proxy.commands.export import SecretSearch, exported, show_skipped
from proxy.errors import Failure
from proxy.processes.store_client import Api, meant
from proxy.run_names import unfit
from proxy.terminal.text import counted, printable
from store.datadir import DataDirError, opened
from store.foreign import read
from store.foreign.adopt import Adoption, bundle_of
from store.foreign.contents import FORMATS, Format, Found, NotReadable, SkippedEntry

LONG = 600.0
"""Seconds that the store server may take to store one file."""


@click.command("export", short_help="Write a run as one file: a bundle, a VCR cassette or HAR.")
@with_settings
@as_json
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@click.option(
    "--format", "form", type=click.Choice(["bundle", "vcr", "har"]), default="bundle", help="Default: bundle."
)
@click.option(
    "--allow-secret", "allowed", multiple=True, metavar="PLACE", help="Let this place pass; * stands for anything."
)
@click.option("--force", is_flag=True, help="Write the file whatever it holds.")
@click.argument("run", metavar="RUN|last")
def export_command(
    run: str, output: Path | None, form: str, allowed: tuple[str, ...], force: bool, as_json: bool, **flags: Any
) -> None:
    """Write a run as one file.

    A bundle holds all of the run, and replays and verifies without Playhead's database. A VCR cassette (YAML, for VCR.py)
    and HAR hold whole answers; what they cannot hold is named and left out.

    Before anything is written the run is searched for secrets under the rules of today. If there seems to be one, the
    places are named (STEP/request/headers/NAME, STEP/response/body/JSON/POINTER) and no file is written.
    """
    if as_json and output is None:
        raise click.UsageError("--json tells of a file: give one with -o FILE.")
    try:
        redactor = _redactor(flags)[0]
        search = SecretSearch(redactor=redactor, allowed=("*",) if force else allowed)
        made = asking(flags, lambda api: exported(api, meant(api, run), form, search, output))
    except OSError as error:
        if output is None:
            raise
        raise Failure(f"cannot write {output}: {error.strerror}") from error
    if as_json:
        print_json(made.as_json())
    else:
        made.show()


@click.command("import", short_help="Read bundles, VCR cassettes, HAR and fixtures into the store.")
@with_settings
@as_json
@click.option(
    "--as", "name", type=RUN_ID, metavar="RUN", help="Give the run this name instead of its own, or its file's."
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: what each file is seen to be.")
@click.option(
    "--header",
    "added",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Give it to requests that lack it: recorders often leave out headers that answers depend on.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
def import_command(
    files: tuple[Path, ...],
    as_json: bool,
    name: str | None,
    form: Format | None,
    added: tuple[str, ...],
    **flags: Any,
) -> None:
    """Read recordings into the store, each FILE as a run.

    A bundle of Playhead's comes in as it is; one that was altered, or is of a newer format, is refused whole. VCR cassettes
    (YAML or JSON, also .gz), HAR files and llm-fixture-replay JSONL become a run that is called like their file: redacted
    and keyed as if recorded here. What they do not hold (times, chunks, HTTP version) stays unknown; what cannot be
    imported is named with its reason, and the rest is.
    """
    if name and len(files) > 1:
        raise click.UsageError("--as names one run: give one FILE with it.")
    redactor, profiles = _redactor(flags)
    ways = _Ways(
        redactor=redactor,
        profiles=profiles.digest,
        names=dict(zip(files, _names(files), strict=True)),
        name=name,
        form=form,
        added=tuple(map(_header, added)),
    )
    done, failed = asking(flags, lambda api: _each(api, files, ways))
    if as_json:
        print_json([one.as_json() for one in done])
    else:
        for one in done:
            one.show()
    if failed:
        more = f"; {len(done)} of {len(files)} files were imported" if done else ""
        raise Failure(f"{failed[0]}{more}") from failed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """How files become runs."""

    redactor: Redactor
    profiles: str
    names: Mapping[Path, str]
    name: str | None
    form: Format | None
    added: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imported:
    """What became of a file."""

    file: Path
    run: Mapping[str, Any]
    form: Format = "bundle"
    skipped: Sequence[SkippedEntry] = ()
    notes: Sequence[str] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The run, with what is to be said about its file."""
        skipped = [{"place": one.place, "reason": one.reason} for one in self.skipped]
        return {**self.run, "file": str(self.file), "format": self.form, "skipped": skipped, "notes": self.notes}

    def show(self) -> None:
        """Say it to a person: the result on stdout, remarks on stderr."""
        new = self.run["imported"]
        state = "was here already" if self.run["exchanges"] and not new else f"{counted(new, 'exchange')} imported"
        click.echo(f"{self.file}: run {printable(self.run['id'])}, {state}")
        show_skipped(self.skipped)
        if self.notes:
            click.echo(f"playhead: {self.form} does not hold all of the wire: {'; '.join(self.notes)}", err=True)


def _redactor(flags: Mapping[str, Any]) -> tuple[Redactor, Profiles]:
    """What redacts here, as the workers of this data directory do."""
    found = settings(**flags)
    profiles = user_profiles(found)
    try:
        key = opened(found.data).redaction_key()
    except DataDirError as error:
        raise Failure(str(error)) from error
    redactor = Redactor(key=key, profiles=profiles, personal_data=found.redact_personal_data, names=found.redact_names)
    return redactor, profiles


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip() or not line.isascii() or not line.isprintable():
        raise click.UsageError(f"--header {line!r} is no header: write it as 'NAME: VALUE'.")
    return name.strip(), value.strip()


def _names(files: Sequence[Path]) -> list[str]:
    """A name for each file's run; files of one name in several directories take the directory's into it."""
    short = [read.named(file) for file in files]
    return [
        name if short.count(name) == 1 else read.named(Path(f"{file.absolute().parent.name}.{file.name}"))
        for file, name in zip(files, short, strict=True)
    ]


def _each(api: Api, files: Sequence[Path], ways: _Ways) -> tuple[list[_Imported], list[Failure]]:
    done: list[_Imported] = []
    failed: list[Failure] = []
    for file in files:
        try:
            done.append(_imported(api, file, ways))
        except Failure as failure:
            failed.append(failure)
            if len(files) > 1:
                click.echo(f"playhead: {failure}", err=True)
    return done, failed


def _imported(api: Api, file: Path, ways: _Ways) -> _Imported:
    try:
        source = read.opened(file, ways.form)
        if source.form != "bundle":
            return _adopted(api, file, source, ways)
        with read.plain(file) as content:
            return _Imported(file=file, run=_sent(api, content, ways.name))
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from error
    except NotReadable as error:
        raise Failure(
            f"{file} is not imported: {error}; Playhead reads its own bundles, VCR cassettes (YAML or JSON), HAR and"
            " llm-fixture-replay JSONL; --format says which it is where that cannot be seen"
        ) from error
    except Failure as failure:
        # The API says what to add to its own URL.
        raise Failure(f"{file}: {failure}".replace("?as=NAME", "--as NAME")) from failure


def _adopted(api: Api, file: Path, source: read.Source, ways: _Ways) -> _Imported:
    """Made a bundle of, on disk and redacted, so that memory does not hold the file twice; then sent as one."""
    run = ways.name or ways.names[file]
    if why := unfit(run):
        raise Failure(f"{file} would be run {run!r}, which cannot be: {why}; name it with --as NAME")
    adoption = Adoption(
        run=run,
        redactor=ways.redactor,
        at=file.stat().st_mtime_ns,
        added=ways.added,
    )
    with tempfile.TemporaryFile() as content:
        content.writelines(bundle_of(adoption, _told(source, file), ways.profiles, file.name))
        content.seek(0)
        imported = _sent(api, content, None)
    notes = [f"{note} ({number} of {adoption.exchanges})" for note, number in adoption.notes.items()]
    return _Imported(file=file, run=imported, form=source.form, skipped=adoption.skipped, notes=notes)


PATIENCE = 2.0
"""Seconds after which a person is told how far it is."""


def _told(source: read.Source, file: Path) -> Iterator[Found]:
    """The same interactions; while it takes long, how many there were is told on stderr."""
    last = time.monotonic()
    for number, one in enumerate(source.found, 1):
        yield one
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            click.echo(f"playhead: reading {file} ({source.size:,} bytes): {counted(number, 'interaction')}", err=True)


def _sent(api: Api, content: IO[bytes], name: str | None) -> Mapping[str, Any]:
    run: Mapping[str, Any] = api.post(
        "/import", content=_pieces(content), params={"as": name} if name else {}, timeout=LONG
    )
    return run


def _pieces(content: IO[bytes]) -> Iterable[bytes]:
    return iter(lambda: content.read(1 << 20), b"")


COMMANDS = (export_command, import_command)
