"""Write runs as VCR cassettes or HTTP archives, one exchange at a time.

Both formats can represent complete answers only. Other exchanges are skipped with a reason. Bodies are the recorded bytes.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import yaml

from calls.codec.encoding import Undecodable, decode_content
from calls.model import Body, Exchange, Headers, Request, Response, client_outcome, header
from store.bundle.bundle import Entry
from store.bundle.trace import rfc3339_ns
from store.foreign.contents import SkippedEntry
from store.foreign.har import OPCODES, WIRE


class Export(msgspec.Struct):
    """Writes one file, and collects what was skipped."""

    exported: int = 0
    skipped: list[SkippedEntry] = msgspec.field(default_factory=list)

    def vcr(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Yield a cassette in the format of VCR.py."""
        yield b"interactions:\n"
        for _, exchange, response in self._whole_exchanges(entries, messages=False):
            interaction = {"request": _vcr_request(exchange.request), "response": _vcr_response(response)}
            yield _yaml([interaction])
        if not self.exported:
            yield b"  []\n"
        yield b"version: 1\n"

    def har(self, entries: Iterable[Entry], version: str) -> Iterator[bytes]:
        """Yield an HTTP archive of version 1.2."""
        creator = _json({"name": "Playhead", "version": version})
        yield b'{"log": {"version": "1.2", "creator": ' + creator + b', "pages": [], "entries": ['
        for step, exchange, response in self._whole_exchanges(entries, messages=True):
            yield (b"," if self.exported > 1 else b"") + b"\n" + _json(_entry(step, exchange, response))
        yield b"\n]}}\n"

    def _whole_exchanges(self, entries: Iterable[Entry], *, messages: bool) -> Iterator[tuple[int, Exchange, Response]]:
        """Yield the exchanges that the format can represent, with their steps."""
        for step, entry in enumerate(entries, 1):
            response = entry.exchange.response
            why = _skip_reason(entry, messages=messages)
            if why or response is None:
                self.skipped.append(SkippedEntry(place=f"step {step}", reason=why or "it has no response"))
            else:
                self.exported += 1
                yield step, entry.exchange, response


def _skip_reason(entry: Entry, *, messages: bool) -> str | None:
    exchange = entry.exchange
    if exchange.is_truncated:
        return "its bodies were not recorded completely"
    if is_websocket(exchange):
        return None if messages else "it is a WebSocket, which a cassette cannot represent"
    if not _is_whole(entry):
        return f"its answer is incomplete ({exchange.outcome}), which this format cannot represent"
    return None


def _is_whole(entry: Entry) -> bool:
    """Whether the client received the whole answer."""
    exchange, call = entry.exchange, entry.call or {}
    if exchange.ended_at is None:
        return False
    return client_outcome(exchange, answer_ended=call.get("complete") is True) == "completed"


def is_websocket(exchange: Exchange) -> bool:
    """Whether this is a WebSocket."""
    answer = exchange.response.body.chunks if exchange.response else ()
    return any(chunk.kind != "data" for chunk in (*exchange.request.body.chunks, *answer))


# -- VCR


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # one of two bases
    """Writes text of several lines as literal blocks, where YAML preserves it exactly."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - aliases are hard to review
        return True


# Text that a literal block preserves: lines without trailing blanks, of characters that YAML does not escape.
_UNESCAPED: Final = r"\xa1-\u2027\u2030-\ud7ff\ue000-\ufefe"
_BLOCK: Final = re.compile(
    rf"[!-~{_UNESCAPED}](?:[ -~{_UNESCAPED}]*[!-~{_UNESCAPED}])?(?:\n(?:[ -~{_UNESCAPED}]*[!-~{_UNESCAPED}])?)+"
)


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text and _BLOCK.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(value: Any) -> bytes:
    dumped: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    # libyaml adds an end marker after an open-ended scalar; here the next interaction follows.
    return (dumped.removesuffix("...\n") if dumped.endswith("\n...\n") else dumped).encode()


def _vcr_request(request: Request) -> dict[str, Any]:
    return {
        "body": _body(request.body.data) if request.body.data else None,
        "headers": _vcr_headers(request.headers),
        "method": request.method,
        "uri": request.url,
    }


def _vcr_response(response: Response) -> dict[str, Any]:
    return {
        "body": {"string": _body(response.body.data)},
        "headers": _vcr_headers(response.headers),
        "status": {"code": response.status, "message": response.reason},
    }


def _vcr_headers(headers: Headers) -> dict[str, list[str]]:
    """Group the values by name, in the first spelling of each name, as VCR.py does."""
    found: dict[str, list[str]] = {}
    spelled: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(spelled.setdefault(name.lower(), name), []).append(value)
    return found


def _body(data: bytes) -> str | bytes:
    """Return a body as text where it is UTF-8; VCR.py encodes it again."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# -- HAR

_encode = msgspec.json.Encoder(order=None)


def _json(value: Any) -> bytes:
    return _encode.encode(value)


def _entry(step: int, exchange: Exchange, response: Response) -> dict[str, Any]:
    first, last = exchange.first_byte_at, exchange.ended_at
    whole = None if first is None or last is None else last / 1_000_000
    wait = -1 if first is None else first / 1_000_000
    raw: dict[str, Any] = {
        "startedDateTime": rfc3339_ns(exchange.started_at)[:-4] + "Z",
        "time": whole or 0,
        "request": _har_request(exchange.request),
        "response": _har_response(response),
        "cache": {},
        "timings": {"send": 0, "wait": wait, "receive": 0 if whole is None else whole - wait},
        "_step": step,
    }
    if is_websocket(exchange):
        raw["_resourceType"] = "websocket"
        raw["_webSocketMessages"] = list(_messages(exchange, response))
    return raw


def _har_request(request: Request) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "method": request.method,
        "url": request.url,
        "httpVersion": request.http_version or "unknown",
        "cookies": [],
        "headers": _har_headers(request.headers),
        "queryString": [
            {"name": name, "value": value}
            for name, value in parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
        ],
        "headersSize": -1,
        # The messages of a WebSocket are no body, and are beside it.
        "bodySize": 0 if _has_frames(request.body) else len(request.body.data),
    }
    if request.body.data and not _has_frames(request.body):
        text, encoding, wire = _har_text(request.body.data, request.headers)
        raw["postData"] = {"mimeType": header(request.headers, "content-type") or "", "text": text, **wire}
        if encoding:
            # HAR has no such member for requests; custom members begin with an underscore.
            raw["postData"]["_encoding"] = encoding
    return raw


def _har_response(response: Response) -> dict[str, Any]:
    data = b"" if _has_frames(response.body) else response.body.data
    text, encoding, wire = _har_text(data, response.headers)
    content: dict[str, Any] = {
        "size": len(_decompress(data, response.headers)),
        "mimeType": header(response.headers, "content-type") or "",
        "text": text,
        **({"encoding": encoding} if encoding else {}),
        **wire,
    }
    return {
        "status": response.status,
        "statusText": response.reason,
        "httpVersion": response.http_version or "unknown",
        "cookies": [],
        "headers": _har_headers(response.headers),
        "content": content,
        "redirectURL": header(response.headers, "location") or "",
        "headersSize": -1,
        "bodySize": len(data),
    }


def _has_frames(body: Body) -> bool:
    return any(chunk.kind != "data" for chunk in body.chunks)


def _har_headers(headers: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers]


def _har_text(data: bytes, headers: Headers) -> tuple[str, str | None, dict[str, str]]:
    """Return a body's text, the encoding of that text, and a member with the bytes of the wire if they were compressed."""
    opened = _decompress(data, headers)
    wire = {} if opened is data else {WIRE: b64encode(data).decode()}
    try:
        return opened.decode(), None, wire
    except UnicodeDecodeError:
        return b64encode(opened).decode(), "base64", wire


def _decompress(data: bytes, headers: Headers) -> bytes:
    coding = header(headers, "content-encoding")
    if not data or coding is None:
        return data
    try:
        return decode_content(data, coding)
    except Undecodable:
        return data


def _messages(exchange: Exchange, response: Response) -> Iterator[dict[str, Any]]:
    """Yield the messages of both sides in the order of time, as browsers write them."""
    sides = (("send", exchange.request.body), ("receive", response.body))
    both = [(chunk.at, side, chunk, body) for side, body in sides for chunk in body.chunks]
    for at, side, chunk, body in sorted(both, key=lambda one: one[0]):
        if chunk.kind in OPCODES:
            data = body.data[chunk.offset : chunk.offset + chunk.size]
            text = data.decode("utf-8", "replace") if chunk.kind == "text" else b64encode(data).decode()
            time = (exchange.started_at + at) / 1_000_000_000
            yield {"type": side, "time": time, "opcode": OPCODES[chunk.kind], "data": text}
