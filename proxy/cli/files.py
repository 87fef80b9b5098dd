"""The commands that write and read files of recordings: export, import."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from calls.keys.profile import Profiles
from calls.redaction.redactor import Redactor, create_redactor
from proxy.cli.common import RUN_ID, as_json, print_json, query_store, settings_from_flags, user_profiles, with_settings
from proxy.cli.run_completion import complete_run
from proxy.commands.export import ExportResult, SecretSearch, export_run
from proxy.commands.export_spans import ExportedSpans, SpanExport, export_spans
from proxy.commands.import_files import ImportOptions, import_files
from proxy.errors import Failure, unwritable_file
from proxy.export_settings import check_endpoint
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, resolve_run_name
from proxy.run_names import missing_run_failure
from proxy.terminal.hangup import exit_when_stopped
from store.datadir import DataDirError, open_data_dir
from store.foreign.contents import FORMATS, Format
from store.otlp.spans.names import DEFAULT_VERSION, VERSIONS
from store.otlp.target import Semconv, SpanOptions


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
    target = endpoint and _parse_endpoint(endpoint), dict(map(_parse_header, headers))
    options = SpanOptions(content=content, project=receiver_project, semconv=semconv or DEFAULT_VERSION)
    CommandProcesses(settings_from_flags(**flags)).require_data_directory()
    with _explain_unwritable_output(output):
        redactor, profiles = _load_redactor(flags)
        search = SecretSearch(redactor=redactor, allowed=allowed)
        spans = SpanExport(options=options, search=search, output=output, endpoint=target[0], headers=target[1])

        def export(api: Api) -> ExportResult | ExportedSpans:
            name = resolve_run_name(api, run)
            try:
                if form == "otlp":
                    return export_spans(api, name, spans)
                with_proof = not no_proof and form != "html"
                return export_run(api, name, form, search, output, with_proof=with_proof, profiles=profiles)
            except NotFound as error:
                raise missing_run_failure(name) from error

        with exit_when_stopped():
            result = query_store(flags, export, is_silent=output is not None)
    if as_json:
        print_json(result.as_json())
    else:
        result.show()


def _require_options_of_format(form: str, *, has_span_options: bool, no_proof: bool) -> None:
    if form != "otlp" and has_span_options:
        raise click.UsageError("--endpoint, --header, --content, --receiver-project and --semconv need --format otlp.")
    if form != "bundle" and no_proof:
        raise click.UsageError("--no-proof needs --format bundle: other formats have none.")


@contextmanager
def _explain_unwritable_output(output: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if output is None:
            raise
        raise unwritable_file(output, error, "name another file with -o") from error


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
    options = ImportOptions(
        redactor=redactor,
        profiles=profiles.digest,
        run=name,
        form=form,
        extra_headers=tuple(map(_parse_header, added)),
    )
    done, failed = query_store(flags, lambda api: import_files(api, files, options), is_silent=False, may_create=True)
    if as_json:
        print_json([one.as_json() for one in done])
    else:
        for one in done:
            one.show()
    if failed:
        more = f"; {len(done)} of {len(files)} files were imported" if done else ""
        raise Failure(f"{failed[0]}{more}") from failed[0]


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


COMMANDS = (export_command, import_command)
