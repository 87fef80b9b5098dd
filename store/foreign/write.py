"""Write runs as VCR cassettes or HTTP archives, one exchange at a time.

Both formats know whole answers only: what broke off, or is no HTTP, is left out and named. Bodies are the recorded bytes.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import yaml

from calls.codec.encoding import Undecodable, decode
from calls.model import Body, Exchange, Headers, Request, Response, ended, header
from store.bundle.bundle import Entry
from store.bundle.trace import rfc3339_ns
from store.foreign.contents import SkippedEntry
from store.foreign.har import WIRE


@dataclass(slots=True)
class Export:
    """The pieces of one file, and what did not get into it."""

    written: int = 0
    skipped: list[SkippedEntry] = field(default_factory=list)

    def vcr(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """A cassette as VCR.py reads it."""
        yield b"interactions:\n"
        for _, exchange, response in self._whole(entries, messages=False):
            made = {"request": _vcr_request(exchange.request), "response": _vcr_response(response)}
            yield _yaml([made])
        if not self.written:
            yield b"  []\n"
        yield b"version: 1\n"

    def har(self, entries: Iterable[Entry], version: str) -> Iterator[bytes]:
        """An HTTP archive of version 1.2."""
        creator = _json({"name": "Playhead", "version": version})
        yield b'{"log": {"version": "1.2", "creator": ' + creator + b', "pages": [], "entries": ['
        for step, exchange, response in self._whole(entries, messages=True):
            yield (b"," if self.written > 1 else b"") + b"\n" + _json(_entry(step, exchange, response))
        yield b"\n]}}\n"

    def _whole(self, entries: Iterable[Entry], *, messages: bool) -> Iterator[tuple[int, Exchange, Response]]:
        """Those that the format can hold, with their steps."""
        for step, entry in enumerate(entries, 1):
            response = entry.exchange.response
            why = _unfit(entry, messages=messages)
            if why or response is None:
                self.skipped.append(SkippedEntry(place=f"step {step}", reason=why or "it has no response"))
            else:
                self.written += 1
                yield step, entry.exchange, response


def _unfit(entry: Entry, *, messages: bool) -> str | None:
    exchange = entry.exchange
    if exchange.truncated:
        return "bytes of its bodies were not kept"
    if is_conversation(exchange):
        return None if messages else "it is a WebSocket, which a cassette cannot hold"
    if not _whole(entry):
        return f"its answer broke off ({exchange.outcome}), which this format cannot say"
    return None


def _whole(entry: Entry) -> bool:
    """Whether the client had all of the answer."""
    exchange, call = entry.exchange, entry.call or {}
    if exchange.ended_at is None:
        return False
    return ended(exchange, concluded=call.get("complete") is True) == "completed"


def is_conversation(exchange: Exchange) -> bool:
    """Whether this is a WebSocket."""
    answer = exchange.response.body.chunks if exchange.response else ()
    return any(chunk.kind != "data" for chunk in (*exchange.request.body.chunks, *answer))


# -- VCR


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc] # one of two bases
    """Texts of several lines as blocks that a person can read, where YAML gives them back as they were."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - a cassette is reviewed: nothing stands for something else
        return True


# What a literal block keeps to the byte: lines without blanks at their ends, of characters that YAML does not escape.
_SEEN: Final = r"\xa1-\u2027\u2030-\ud7ff\ue000-\ufefe"
_BLOCK: Final = re.compile(rf"[!-~{_SEEN}](?:[ -~{_SEEN}]*[!-~{_SEEN}])?(?:\n(?:[ -~{_SEEN}]*[!-~{_SEEN}])?)+")


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text and _BLOCK.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _yaml(value: Any) -> bytes:
    dumped: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
    # libyaml ends a document after what could go on; here the next interaction does.
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
    """By the first spelling of their names: VCR.py keeps them so."""
    found: dict[str, list[str]] = {}
    spelled: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(spelled.setdefault(name.lower(), name), []).append(value)
    return found


def _body(data: bytes) -> str | bytes:
    """Text where it is text; VCR.py makes UTF-8 of it again."""
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
    told: dict[str, Any] = {
        "startedDateTime": rfc3339_ns(exchange.started_at)[:-4] + "Z",
        "time": whole or 0,
        "request": _har_request(exchange.request),
        "response": _har_response(response),
        "cache": {},
        "timings": {"send": 0, "wait": wait, "receive": 0 if whole is None else whole - wait},
        "_step": step,
    }
    if is_conversation(exchange):
        told["_resourceType"] = "websocket"
        told["_webSocketMessages"] = list(_messages(exchange, response))
    return told


def _har_request(request: Request) -> dict[str, Any]:
    told: dict[str, Any] = {
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
        "bodySize": len(request.body.data),
    }
    if request.body.data and not _frames(request.body):
        text, encoding, wire = _har_text(request.body.data, request.headers)
        told["postData"] = {"mimeType": header(request.headers, "content-type") or "", "text": text, **wire}
        if encoding:
            # HAR has no word for it here; ours begins with an underscore, as it asks.
            told["postData"]["_encoding"] = encoding
    return told


def _har_response(response: Response) -> dict[str, Any]:
    data = b"" if _frames(response.body) else response.body.data
    text, encoding, wire = _har_text(data, response.headers)
    content: dict[str, Any] = {
        "size": len(_opened(data, response.headers)),
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


def _frames(body: Body) -> bool:
    return any(chunk.kind != "data" for chunk in body.chunks)


def _har_headers(headers: Headers) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in headers]


def _har_text(data: bytes, headers: Headers) -> tuple[str, str | None, dict[str, str]]:
    """A body as HAR shows it, how that is encoded, and the bytes of the wire where they were compressed."""
    opened = _opened(data, headers)
    wire = {} if opened is data else {WIRE: b64encode(data).decode()}
    try:
        return opened.decode(), None, wire
    except UnicodeDecodeError:
        return b64encode(opened).decode(), "base64", wire


def _opened(data: bytes, headers: Headers) -> bytes:
    coding = header(headers, "content-encoding")
    if not data or coding is None:
        return data
    try:
        return decode(data, coding)
    except Undecodable:
        return data


def _messages(exchange: Exchange, response: Response) -> Iterator[dict[str, Any]]:
    """In the order in which they came, as browsers write them."""
    sides = (("send", exchange.request.body), ("receive", response.body))
    both = [(chunk.at, side, chunk, body) for side, body in sides for chunk in body.chunks]
    for at, side, chunk, body in sorted(both, key=lambda one: one[0]):
        if chunk.kind in ("text", "binary"):
            data = body.data[chunk.offset : chunk.offset + chunk.size]
            text = data.decode("utf-8", "replace") if chunk.kind == "text" else b64encode(data).decode()
            time = (exchange.started_at + at) / 1_000_000_000
            yield {"type": side, "time": time, "opcode": 1 if chunk.kind == "text" else 2, "data": text}
