"""The commands that write and read files of recordings: export, import."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

from calls.keys.profile import Profiles
from calls.model import Headers
from calls.redaction.redactor import Redactor, create_redactor
from proxy.cli.common import RUN_ID, as_json, print_json, query_store, settings_from_flags, user_profiles, with_settings
from proxy.cli.run_completion import complete_run
from proxy.commands.export import ExportResult, SecretSearch, export_run, show_skipped
from proxy.commands.export_spans import ExportedSpans, SpanExport, export_spans
from proxy.errors import Failure, unwritable_file
from proxy.export_settings import check_endpoint
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, resolve_run_name
from proxy.run_names import invalid_name_reason, missing_run_failure
from proxy.terminal.text import count_text, printable
from store.datadir import DataDirError, open_data_dir
from store.foreign import read
from store.foreign.adopt import Adoption, adopt_bundle
from store.foreign.contents import FORMATS, Format, Found, NotReadable, SkippedEntry
from store.otlp.spans.names import DEFAULT_VERSION, VERSIONS
from store.otlp.target import Semconv, SpanOptions

IMPORT_TIMEOUT = 600.0
"""Seconds that the store server may take to store one file."""


@click.command(
    "export", short_help="Write a run as one file: a bundle, a page, a VCR cassette, HAR or OpenTelemetry spans."
)
@with_settings
@as_json
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["bundle", "vcr", "har", "html", "otlp"]),
    default="bundle",
    help="Default: bundle.",
)
@click.option(
    "--allow-secret",
    "allowed",
    multiple=True,
    metavar="PLACE",
    help="Write the file although this place seems to hold a secret; * matches anything. May be repeated.",
)
@click.option(
    "--no-proof",
    is_flag=True,
    help="bundle: without the proof that `verify` checks; it is then shorter, and the same for copies.",
)
@click.option("--endpoint", metavar="URL", help="otlp: send the spans to this server, instead of writing a file.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="otlp: send this header with them. May be repeated.",
)
@click.option("--content", is_flag=True, help="otlp: also export prompts, answers, arguments and results.")
@click.option("--receiver-project", metavar="NAME", help="otlp: the project of the receiver.")
@click.option(
    "--semconv", type=click.Choice(list(VERSIONS)), help="otlp: the version of the GenAI semantic conventions."
)
@click.argument("run", metavar="RUN|last", shell_complete=complete_run)
def export_command(
    run: str,
    output: Path | None,
    form: str,
    allowed: tuple[str, ...],
    as_json: bool,
    endpoint: str | None,
    headers: tuple[str, ...],
    content: bool,
    no_proof: bool,
    receiver_project: str | None,
    semconv: Semconv | None,
    **flags: Any,
) -> None:
    """Write a run as one file.

    A bundle holds the complete run; it can be replayed and verified without the database. A VCR cassette (YAML, for VCR.py) and HAR
    hold whole answers; what they cannot represent is listed and left out. With html, the file is the web page of the run: a browser
    shows it offline, and bodies that are too large are left out. With otlp, the run is a trace of OpenTelemetry: a file with
    an ExportTraceServiceRequest in protobuf, or with --endpoint it is sent to a server such as Phoenix or a Collector.

    First the run is searched for secrets under today's rules. If it seems to hold any, their places are listed
    (STEP/request/headers/NAME, STEP/response/body/JSON/POINTER) and no file is written.
    """
    if as_json and output is None and endpoint is None:
        raise click.UsageError("--json describes the written file: name one with -o FILE.")
    has_span_options = bool(endpoint or headers or content or receiver_project or semconv)
    _require_options_of_format(form, has_span_options=has_span_options, no_proof=no_proof)
    if endpoint and output:
        raise click.UsageError("--endpoint sends the spans and -o writes them: choose one.")
    receiver, receiver_headers = endpoint and _parse_endpoint(endpoint), dict(map(_parse_header, headers))
    CommandProcesses(settings_from_flags(**flags)).require_data_directory()
    try:
        redactor, profiles = _load_redactor(flags)
        search = SecretSearch(redactor=redactor, allowed=allowed)
        spans = SpanExport(
            options=SpanOptions(content=content, project=receiver_project, semconv=semconv or DEFAULT_VERSION),
            search=search,
            output=output,
            endpoint=receiver,
            headers=receiver_headers,
        )
        with_proof = not no_proof and form != "html"

        def export(api: Api) -> ExportResult | ExportedSpans:
            name = resolve_run_name(api, run)
            try:
                if form == "otlp":
                    return export_spans(api, name, spans)
                return export_run(api, name, form, search, output, with_proof=with_proof, profiles=profiles)
            except NotFound as error:
                raise missing_run_failure(name) from error

        result = query_store(flags, export, is_silent=False)
    except OSError as error:
        if output is None:
            raise
        raise unwritable_file(output, error, "name another file with -o") from error
    if as_json:
        print_json(result.as_json())
    else:
        result.show()


def _require_options_of_format(form: str, *, has_span_options: bool, no_proof: bool) -> None:
    if form != "otlp" and has_span_options:
        raise click.UsageError("--endpoint, --header, --content, --receiver-project and --semconv need --format otlp.")
    if form != "bundle" and no_proof:
        raise click.UsageError("--no-proof needs --format bundle: other formats have none.")


@click.command("import", short_help="Read bundles, VCR cassettes, HAR and fixtures into the store.")
@with_settings
@as_json
@click.option(
    "--run",
    "name",
    type=RUN_ID,
    metavar="ID",
    help="The id of the run. Default: that of the bundle, or the name of the file.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: detected for each file.")
@click.option(
    "--header",
    "added",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Add this header to requests without it: recorders often leave out headers that answers depend on. May be repeated.",
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
    """Import recordings into the store, each FILE as a run.

    A Playhead bundle is imported unchanged; one that was altered or has a newer format is refused. VCR cassettes (YAML or JSON, also
    .gz), HAR files and llm-fixture-replay JSONL become a run named like their file, redacted and keyed as if recorded here. What they
    do not hold (times, chunks, HTTP version) stays unknown. Entries that cannot be imported are listed with the reason, and the
    others are imported.
    """
    if name and len(files) > 1:
        raise click.UsageError("--run names one run, and several FILEs are given: import them one by one.")
    redactor, profiles = _load_redactor(flags)
    options = _ImportOptions(
        redactor=redactor,
        profiles=profiles.digest,
        names=dict(zip(files, _run_names(files), strict=True)),
        name=name,
        form=form,
        added=tuple(map(_parse_header, added)),
    )
    done, failed = query_store(flags, lambda api: _import_files(api, files, options), is_silent=False, may_create=True)
    if as_json:
        print_json([one.as_json() for one in done])
    else:
        for one in done:
            one.show()
    if failed:
        more = f"; {len(done)} of {len(files)} files were imported" if done else ""
        raise Failure(f"{failed[0]}{more}") from failed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportOptions:
    """How to import files."""

    redactor: Redactor
    profiles: str
    names: Mapping[Path, str]
    name: str | None
    form: Format | None
    added: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _ImportedFile:
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


def _load_redactor(flags: Mapping[str, Any]) -> tuple[Redactor, Profiles]:
    """Return the redactor that the workers of this data directory use, and its profiles."""
    found = settings_from_flags(**flags)
    profiles = user_profiles(found)
    try:
        key = open_data_dir(found.data).redaction_key()
    except DataDirError as error:
        raise Failure(str(error)) from error
    return create_redactor(found.redaction, key, profiles), profiles


def _parse_endpoint(url: str) -> str:
    try:
        return check_endpoint(url)
    except ValueError as error:
        raise click.UsageError(f"--endpoint: {error}") from error


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip() or not line.isascii() or not line.isprintable():
        raise click.UsageError(f"--header {line!r} is not a header: write it as 'NAME: VALUE'.")
    return name.strip(), value.strip()


def _run_names(files: Sequence[Path]) -> list[str]:
    """Name a run after each file; files of the same name get that of their directory in front."""
    short = [read.default_run_name(file) for file in files]
    return [
        name if short.count(name) == 1 else read.default_run_name(Path(f"{file.absolute().parent.name}.{file.name}"))
        for file, name in zip(files, short, strict=True)
    ]


def _import_files(
    api: Api, files: Sequence[Path], options: _ImportOptions
) -> tuple[list[_ImportedFile], list[Failure]]:
    done: list[_ImportedFile] = []
    failed: list[Failure] = []
    for file in files:
        try:
            done.append(_import_file(api, file, options))
        except Failure as failure:
            failed.append(failure)
            if len(files) > 1:
                click.echo(f"playhead: {failure}", err=True)
    return done, failed


def _import_file(api: Api, file: Path, options: _ImportOptions) -> _ImportedFile:
    try:
        source = read.open_source(file, options.form)
        if source.form != "bundle":
            return _import_foreign_file(api, file, source, options)
        with read.open_plain(file) as content:
            return _ImportedFile(file=file, run=_send_bundle(api, content, options.name))
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


def _import_foreign_file(api: Api, file: Path, source: read.Source, options: _ImportOptions) -> _ImportedFile:
    """Convert another program's file to a redacted bundle on disk, to save memory, and import that."""
    run = options.name or options.names[file]
    if why := invalid_name_reason(run):
        raise Failure(f"{file} would become run {run!r}, which is not a valid id: {why}; choose one with --run ID")
    adoption = Adoption(
        run=run,
        redactor=options.redactor,
        default_started_at=file.stat().st_mtime_ns,
        extra_headers=options.added,
    )
    with tempfile.TemporaryFile() as content:
        content.writelines(adopt_bundle(adoption, _report_progress(source, file), options.profiles, file.name))
        content.seek(0)
        imported = _send_bundle(api, content, None)
    notes = [f"{note} ({number} of {adoption.exchanges})" for note, number in adoption.notes.items()]
    return _ImportedFile(file=file, run=imported, form=source.form, skipped=adoption.skipped, notes=notes)


PROGRESS_INTERVAL = 2.0
"""Seconds between progress messages."""


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


def _send_bundle(api: Api, content: IO[bytes], name: str | None) -> Mapping[str, Any]:
    run: Mapping[str, Any] = api.post(
        "/import", content=_read_pieces(content), params={"as": name} if name else {}, timeout=IMPORT_TIMEOUT
    )
    return run


def _read_pieces(content: IO[bytes]) -> Iterable[bytes]:
    return iter(lambda: content.read(1 << 20), b"")


COMMANDS = (export_command, import_command)
