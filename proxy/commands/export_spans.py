"""`playhead export RUN --format otlp`: fetch a run as a trace, and write it to a file or send it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proxy.commands.export import SecretSearch, open_output, require_no_secrets, split_lines
from proxy.errors import Failure
from proxy.processes.store_client import Api, incomplete_reason, path_segment
from proxy.terminal.text import count_text, printable
from store.otlp.sender import OtlpSender, SendFailure
from store.otlp.target import ExportTarget, SpanOptions

ATTEMPTS = 4
"""How often each request is sent to a server that cannot take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanExport:
    """What to export, and where to."""

    options: SpanOptions
    search: SecretSearch
    """Searches what content would be exported."""

    output: Path | None = None
    endpoint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSpans:
    """The exported run, and where it is."""

    run: str
    spans: int
    file: Path | None
    endpoint: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "run": self.run,
            "format": "otlp",
            "spans": self.spans,
            "file": self.file and str(self.file),
            "endpoint": self.endpoint,
        }

    def show(self) -> None:
        """Print the result on stderr, since stdout may be the file."""
        if self.endpoint is not None:
            click.echo(f"sent {count_text(self.spans, 'span')} to {printable(self.endpoint)}", err=True)
        elif self.file is not None:
            click.echo(f"wrote {self.file} ({count_text(self.spans, 'span')})", err=True)


def export_spans(api: Api, run: str, export: SpanExport) -> ExportedSpans:
    """Write or send the spans of a run. Raises Failure, also if content with what seems to be a secret would leave."""
    if lacking := incomplete_reason(api, run):
        raise Failure(f"run {run} is not completely stored yet: {lacking}; wait, or see /readyz of the store server")
    if export.options.content:
        for _ in export.search.search_lines(
            split_lines(api.stream_bytes(f"/runs/{path_segment(run)}/bundle", proof="false"))
        ):
            pass
        require_no_secrets(run, export.search)
    pieces = api.stream_bytes(f"/runs/{path_segment(run)}/spans", **_query(export.options))
    if export.endpoint is None:
        spans = _write_spans(pieces, export.output)
    else:
        spans = asyncio.run(_send_spans(pieces, ExportTarget(endpoint=export.endpoint, headers=dict(export.headers))))
    return ExportedSpans(run=run, spans=spans, file=export.output, endpoint=export.endpoint)


def _query(options: SpanOptions) -> dict[str, str]:
    members: dict[str, str] = {"content": str(options.content).lower(), "semconv": options.semconv}
    return members | ({"receiver_project": options.project} if options.project else {})


def _write_spans(pieces: Iterable[bytes], output: Path | None) -> int:
    data = b"".join(pieces)
    with open_output(output, is_binary=True) as file:
        file.write(data)
    return sum(map(_count_spans, _split_request(data)))


async def _send_spans(pieces: Iterable[bytes], target: ExportTarget) -> int:
    """Send the spans in requests of the size in which the store server made them. Return their number."""
    sender = OtlpSender(target)
    requests = _split_request(b"".join(pieces))
    try:
        for request in requests:
            await sender.send(request.SerializeToString(), ATTEMPTS)
    except SendFailure as error:
        raise Failure(f"the spans were not sent: {error}; check the endpoint {target.url} and its headers") from error
    finally:
        await sender.close()
    return sum(map(_count_spans, requests))


def _split_request(data: bytes) -> Sequence[ExportTraceServiceRequest]:
    """Divide a request into those that were joined in it."""
    return [
        ExportTraceServiceRequest(resource_spans=[one])
        for one in ExportTraceServiceRequest.FromString(data).resource_spans
    ]


def _count_spans(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for traces in request.resource_spans for scope in traces.scope_spans)
