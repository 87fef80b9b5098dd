"""Write one exchange as a file: a bundle, an HTTP archive or a VCR cassette. Secrets are names of variables in it."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Literal

from msgspec.structs import replace

from calls.model import Body, Chunk, Exchange, Headers, Response
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.snippets.secret_variables import SecretVariables, TextSpan, Variable
from store.snippets.sent_request import NotCopyable, header_pieces, readable_body

type FileForm = Literal["jsonl", "har", "vcr"]


def write_step(exchange: Exchange, form: FileForm, variables: SecretVariables, *, run: str, profiles: str) -> str:
    """Return the text of the file. Raises NotCopyable if the form cannot represent the exchange."""
    clean = name_secrets(exchange, variables)
    if form == "jsonl":
        bundle = Bundle(run={"id": run}, profiles=profiles, entries=(Entry(exchange=replace(clean, run=run)),))
        return b"".join(bundle_lines(bundle)).decode()
    # It is imported with YAML, and hardly ever needed.
    from store.foreign.write import Export

    export = Export()
    entries = [Entry(exchange=clean, call={"complete": True})]
    pieces = export.vcr(entries) if form == "vcr" else export.har(entries, version("playhead"))
    text = b"".join(pieces).decode()
    if export.skipped:
        raise NotCopyable(f"{export.skipped[0].reason}; use as=jsonl, which holds everything")
    return text


def name_secrets(exchange: Exchange, variables: SecretVariables) -> Exchange:
    """Return an exchange in which the name of a variable is in the place of each secret."""
    request, response = exchange.request, exchange.response
    body, headers = _named_body(request.body, request.headers, variables)
    url = variables.split(request.url.encode("utf-8", "surrogateescape"), name=variables.api_key(), is_numbered=False)
    clean = replace(
        request,
        url=_join(url).decode("utf-8", "surrogateescape"),
        headers=headers,
        trailers=_named_headers(request.trailers, variables),
        body=body,
    )
    return replace(exchange, request=clean, response=response and _named_response(response, variables))


def _named_response(response: Response, variables: SecretVariables) -> Response:
    body, headers = _named_body(response.body, response.headers, variables)
    return replace(response, headers=headers, body=body, trailers=_named_headers(response.trailers, variables))


def _named_headers(headers: Headers, variables: SecretVariables) -> Headers:
    return tuple((name, _join(header_pieces(name, value, variables)).decode("latin-1")) for name, value in headers)


def _named_body(body: Body, headers: Headers, variables: SecretVariables) -> tuple[Body, Headers]:
    """Return a body with the names of variables, and the headers that describe it."""
    new_headers = _named_headers(headers, variables)
    data, is_decoded = readable_body(body, headers)
    spans = variables.split_spans(data)
    if not is_decoded and not any(isinstance(span.piece, Variable) for span in spans):
        return body, new_headers
    written = _join(span.piece for span in spans)
    # The pieces of a compressed body are not those of its content.
    chunks = () if is_decoded else tuple(_moved_chunks(body.chunks, spans))
    described = tuple(
        (name, str(len(written)) if name.lower() == "content-length" else value)
        for name, value in new_headers
        if not (is_decoded and name.lower() == "content-encoding")
    )
    return replace(body, data=written, size=len(written) + max(0, body.size - len(body.data)), chunks=chunks), described


def _moved_chunks(chunks: Iterable[Chunk], spans: Sequence[TextSpan]) -> Iterator[Chunk]:
    for chunk in chunks:
        start, end = _moved_offset(chunk.offset, spans), _moved_offset(chunk.offset + chunk.size, spans)
        yield replace(chunk, offset=start, size=end - start)


def _moved_offset(offset: int, spans: Sequence[TextSpan]) -> int:
    """Return where an offset of the stored bytes is in what is written; one within a secret moves to its beginning."""
    written = 0
    for span in spans:
        size = len(_join([span.piece]))
        if offset < span.end:
            return written + (offset - span.start if isinstance(span.piece, bytes) else 0)
        written += size
    return written


def _join(pieces: Iterable[bytes | Variable]) -> bytes:
    return b"".join(f"${piece.name}".encode() if isinstance(piece, Variable) else piece for piece in pieces)
