"""Find secrets in a recording that is about to be exported, by redacting it again.

What was recorded under today's rules passes unchanged, so whatever changes now is a secret that those of its day did not
know: of a profile that was written since, or in a recording that another machine made. Values are never told, only places.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

from calls.codec.encoding import Undecodable, decode
from calls.codec.json import NotLossless, lenient
from calls.derive import assembled
from calls.model import Body, Exchange, Headers, Json, header
from calls.placeholder import PATTERN
from calls.redaction.redactor import Redactor
from calls.route import route_of

KINDS: Mapping[str, str] = {
    "H": "a header that nobody declared harmless",
    "A": "an authorization",
    "C": "a cookie",
    "Q": "a parameter that proves who asks",
    "U": "a name with a password",
    "T": "a token or key of a known make",
    "P": "a private key",
    "J": "a value that its name or a profile calls secret",
    "D": "a card, an account, an e-mail address or a telephone number",
}
"""What the letter of a placeholder means."""

SHORT = "a short value in a secret's place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A place where a secret seems to be."""

    place: str
    """Step, message, and header or JSON pointer: `3/response/body/choices/0/message/content`."""

    kind: str


def leaks(step: int, exchange: Exchange, redactor: Redactor) -> Iterator[Leak]:
    """The places of one exchange."""
    request, response = exchange.request, exchange.response
    ours = redactor.of(request.method, request.url, request.headers)
    yield from _text(f"{step}/request/url", request.url, ours.url(request.url)[0])
    asked = (*request.headers, *request.trailers)
    yield from _headers(f"{step}/request/headers", asked, redactor.request_headers(asked)[0])
    yield from _body(f"{step}/request/body", ours, request.headers, request.body)
    if response is not None:
        answered = (*response.headers, *response.trailers)
        yield from _headers(f"{step}/response/headers", answered, redactor.response_headers(answered)[0])
        found = list(_body(f"{step}/response/body", redactor, response.headers, response.body))
        yield from found or _answer(f"{step}/response/answer", exchange, redactor)
        yield from _text(f"{step}/response/reason", response.reason, redactor.text(response.reason))
    words = {"error": exchange.error, "actor": exchange.actor, **dict(exchange.run_evidence)}
    for name, text in words.items():
        yield from _text(f"{step}/{name}", text or "", redactor.text(text or ""))


def leaks_of_run(run: Mapping[str, Any], redactor: Redactor) -> Iterator[Leak]:
    """The places in what people wrote about a run."""
    for pointer, text in _texts("run", run):
        yield from _text(pointer, text, redactor.text(text))


def not_allowed(found: Iterable[Leak], allowed: Iterable[str]) -> list[Leak]:
    """The leaks whose places no pattern (as the shell's, for the whole place) lets pass."""
    patterns = tuple(allowed)
    return [leak for leak in found if not any(fnmatchcase(leak.place, pattern) for pattern in patterns)]


def _texts(pointer: str, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield pointer, value
        case Mapping():
            for name, item in value.items():
                yield from _texts(f"{pointer}/{_token(str(name))}", item)
        case list() | tuple():
            for n, item in enumerate(value):
                yield from _texts(f"{pointer}/{n}", item)
        case _:
            pass


def _text(place: str, before: str, after: str) -> Iterator[Leak]:
    if before != after:
        yield Leak(place=place, kind=_kind(before, after))


def _headers(place: str, before: Headers, after: Headers) -> Iterator[Leak]:
    for (name, old), (_, new) in zip(before, after, strict=True):
        yield from _text(f"{place}/{name.lower()}", old, new)


def _body(place: str, redactor: Redactor, headers: Headers, body: Body) -> Iterator[Leak]:
    if any(chunk.kind != "data" for chunk in body.chunks):
        yield from _messages(place, redactor, body)
        return
    yield from _bytes(place, redactor, body.data, header(headers, "content-type"), header(headers, "content-encoding"))


def _answer(place: str, exchange: Exchange, redactor: Redactor) -> Iterator[Leak]:
    """The places in what a stream comes to when it is put together: its text, thoughts and arguments of tools."""
    assembly = assembled(exchange.response, route_of(exchange.request).dialect)
    if assembly is not None and assembly.streamed:
        for pointer, text in _texts(place, assembly.answer):
            yield from _text(pointer, text, redactor.text(text))


def _messages(place: str, redactor: Redactor, body: Body) -> Iterator[Leak]:
    """The places in the messages of a WebSocket, also of what they spell out together."""
    work = redactor.messages()
    said = [body.data[chunk.offset : chunk.offset + chunk.size] for chunk in body.chunks]
    fed = [one for data, chunk in zip(said, body.chunks, strict=True) for one in work.feed(data, 0, chunk.kind)]
    for n, (old, new) in enumerate(zip(said, [*fed, *work.finish()], strict=True)):
        if new.fault:
            yield Leak(place=f"{place}/message/{n}", kind=f"a message that cannot be looked through ({new.fault})")
        elif new.data != old:
            yield from _within(f"{place}/message/{n}", old, new.data)


def _bytes(
    place: str, redactor: Redactor, data: bytes, kind: str | None = None, coding: str | None = None
) -> Iterator[Leak]:
    if not data:
        return
    work = redactor.stream(kind, coding)
    new = b"".join(piece.data for piece in [*work.feed(data, 0), *work.finish()])
    if work.withheld:
        yield Leak(place=place, kind=f"a body that cannot be looked through ({work.withheld})")
    elif new != data:
        yield from _within(place, _readable(data, coding), _readable(new, coding))


def _readable(data: bytes, coding: str | None) -> bytes:
    try:
        return decode(data, coding)
    except Undecodable:
        return data


def _within(place: str, before: bytes, after: bytes) -> Iterator[Leak]:
    """Where in a body: by pointer where it is JSON, else by line."""
    try:
        yield from _differing(place, lenient(before), lenient(after))
    except NotLossless:
        for n, (old, new) in enumerate(zip_longest(before.split(b"\n"), after.split(b"\n"), fillvalue=b""), 1):
            yield from _text(f"{place}/line/{n}", old.decode("latin-1"), new.decode("latin-1"))


def _differing(place: str, before: Json, after: Json) -> Iterator[Leak]:
    match before, after:
        case Mapping(), Mapping():
            # A secret may also be the name of a member.
            for (name, old), (new_name, new) in zip(before.items(), after.items(), strict=False):
                yield from _text(f"{place}/(a member's name)", name, new_name)
                yield from _differing(f"{place}/{_token(new_name)}", old, new)
        case list(), list():
            for n, (old, new) in enumerate(zip(before, after, strict=False)):
                yield from _differing(f"{place}/{n}", old, new)
        case _:
            if before != after:
                yield Leak(place=place, kind=_kind(str(before), str(after)))


def _token(name: str) -> str:
    """A name as a token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _kind(before: str, after: str) -> str:
    """What was found: by the first placeholder that was not there."""
    old = set(re.findall(PATTERN, before))
    new = next((found for found in re.findall(PATTERN, after) if found not in old), None)
    return SHORT if new is None else KINDS.get(new[len("PLAYHEAD_")], "a secret")
