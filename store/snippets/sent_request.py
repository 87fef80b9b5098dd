"""A request as pieces of bytes and variables: what a command must send so that the service receives the same."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from calls.codec.encoding import Undecodable, decode_content
from calls.model import Body, Headers, Request, header
from calls.placeholder import PREFIX
from calls.redaction.head import CREDENTIALS
from store.snippets.secret_variables import Pieces, SecretVariables

LARGEST: Final = 1 << 20
"""Bytes of a body that a command or code holds; a larger one is sent from a file."""

_MADE_BY_CLIENT: Final = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
        *("x-playhead-run", "x-playhead-step", "x-playhead-actor"),
    )
)
"""Headers that the client of the command sends by itself, or that no other service may see."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SIGNED: Final = "aws4-"


class NotCopyable(ValueError):
    """The exchange cannot be copied in this form; the message says why, and what to do instead."""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a command must send."""

    method: str
    url: Pieces
    headers: tuple[tuple[str, Pieces], ...]
    body: Pieces
    has_body: bool
    """Whether the request has a body, which may be empty."""

    is_streamed: bool
    notes: tuple[str, ...]


def read_sent_request(request: Request, variables: SecretVariables, *, is_streamed: bool = False) -> SentRequest:
    """Return what a command must send. Raises NotCopyable."""
    _check(request)
    notes: list[str] = []
    headers = tuple(_sent_headers(request.headers, variables, notes))
    url = _sent_url(request, variables)
    body, is_decoded = readable_body(request.body, request.headers)
    if is_decoded:
        headers = tuple(pair for pair in headers if pair[0].lower() != "content-encoding")
        notes.append("the body holds a secret, so it is sent without its content-encoding")
    return SentRequest(
        method=request.method,
        url=url,
        headers=headers,
        body=variables.split(body),
        has_body=bool(body) or header(request.headers, "content-length") is not None,
        is_streamed=is_streamed,
        notes=tuple(notes),
    )


def readable_body(body: Body, headers: Headers) -> tuple[bytes, bool]:
    """Return the bytes of a body, and whether they were decoded because a compressed body holds placeholders."""
    coding = header(headers, "content-encoding")
    if coding is None or not body.data:
        return body.data, False
    try:
        decoded = decode_content(body.data, coding)
    except Undecodable:
        return body.data, False
    return (decoded, decoded is not body.data) if PREFIX in decoded else (body.data, False)


def _check(request: Request) -> None:
    body = request.body
    if any(chunk.kind != "data" for chunk in body.chunks) or _is_upgrade(request):
        raise NotCopyable("it is a WebSocket, whose messages a single request cannot send; use as=jsonl or as=har")
    if body.truncated:
        raise NotCopyable("its request was not recorded completely, so what is missing cannot be sent")
    if len(body.data) > LARGEST:
        raise NotCopyable(
            f"its body has {len(body.data):,} bytes, which is too large for a command line: save the body"
            " (GET /v1/exchanges/ID/request) and send that file, or use as=jsonl"
        )
    if not _TOKEN.fullmatch(request.method):
        raise NotCopyable("its method is not a valid HTTP method, so no client sends it")
    url = request.url
    if not url.lower().startswith(("http://", "https://")) or _FORBIDDEN.search(url) or " " in url:
        raise NotCopyable("its URL is not a valid http or https URL, so no client sends it")


def _is_upgrade(request: Request) -> bool:
    return (header(request.headers, "upgrade") or "").lower() == "websocket"


def _sent_url(request: Request, variables: SecretVariables) -> Pieces:
    """Return the URL with variables. A secret in it is the provider's key, as in Google's `?key=`."""
    return variables.split(_encode(request.url), name=variables.api_key(), is_numbered=False)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sent_headers(headers: Headers, variables: SecretVariables, notes: list[str]) -> Iterator[tuple[str, Pieces]]:
    dropped = _connection_headers(headers)
    for name, value in headers:
        lowered = name.lower()
        if lowered in _MADE_BY_CLIENT or lowered in dropped or name.startswith(":"):
            continue
        if not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value) or not _is_latin(value):
            notes.append(f"the header {name!r} is left out: HTTP does not allow its characters")
            continue
        if lowered == "authorization" and value.lower().startswith(_SIGNED):
            notes.append("the request was signed (AWS SigV4): sign it anew, the recorded signature is not stored")
        yield name, header_pieces(name, value, variables)


def _connection_headers(headers: Headers) -> frozenset[str]:
    """Return the names of headers that concern the recorded connection only (RFC 9110 7.6.1)."""
    return frozenset(one.strip().lower() for one in (header(headers, "connection") or "").split(","))


def _is_latin(value: str) -> bool:
    return all(ord(char) < 256 for char in value)


def header_pieces(name: str, value: str, variables: SecretVariables) -> Pieces:
    """Return the value of a header with variables. A credential becomes one even where it was stored as it is."""
    raw = value.encode("latin-1", "replace")
    treatment = CREDENTIALS.get(name.lower())
    if treatment is None:
        return variables.split(raw, name=variables.header_variable(name), is_numbered=False)
    if not raw:
        return ()
    if treatment == "scheme":
        scheme, space, rest = raw.partition(b" ")
        if space and rest:
            return scheme + b" ", variables.for_header(name, rest)
    return (variables.for_header(name, raw),)
