"""Find secrets in a recording that is about to be exported, by redacting it again.

What was recorded under the current rules does not change again. Whatever changes now is a secret that the rules of its time
did not cover: one of a newer profile, or in a recording from another machine. Only places are reported, never values.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any, Final

from calls.codec.encoding import Undecodable, decode_content
from calls.codec.json import InvalidJson, parse_json_leniently
from calls.derive import assemble_answer
from calls.effects.items import read_items
from calls.effects.redact_items import redact_item
from calls.events import EffectBatch
from calls.model import Body, Exchange, Headers, Json, header
from calls.placeholder import PATTERN
from calls.redaction.redactor import Redactor
from calls.route import route_request

KINDS: Mapping[str, str] = {
    "H": "a header that is not known to be harmless",
    "A": "an authorization",
    "C": "a cookie",
    "Q": "an authentication parameter",
    "U": "a user name with a password",
    "T": "a token or key of a known format",
    "P": "a private key",
    "J": "a value that is secret by its name or a profile",
    "D": "a card or account number, an e-mail address or a telephone number",
}
"""The meanings of the letters in placeholders."""

SHORT_VALUE = "a short value in the place of a secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A place with a probable secret."""

    place: str
    """The step, the message, and the header or JSON pointer: `3/response/body/choices/0/message/content`."""

    kind: str


def find_leaks(step: int, exchange: Exchange, redactor: Redactor) -> Iterator[Leak]:
    """Find the leaks in one exchange."""
    request, response = exchange.request, exchange.response
    request_redactor = redactor.for_request(request.method, request.url, request.headers)
    yield from _text_leaks(f"{step}/request/url", request.url, request_redactor.redact_url(request.url)[0])
    request_headers = (*request.headers, *request.trailers)
    yield from _header_leaks(
        f"{step}/request/headers", request_headers, redactor.redact_request_headers(request_headers)[0]
    )
    yield from _body_leaks(f"{step}/request/body", request_redactor, request.headers, request.body)
    if response is not None:
        response_headers = (*response.headers, *response.trailers)
        yield from _header_leaks(
            f"{step}/response/headers", response_headers, redactor.redact_response_headers(response_headers)[0]
        )
        found = list(_body_leaks(f"{step}/response/body", redactor, response.headers, response.body))
        yield from found or _answer_leaks(f"{step}/response/answer", exchange, redactor)
        yield from _text_leaks(f"{step}/response/reason", response.reason, redactor.redact_text(response.reason))
    words = {"error": exchange.error, "actor": exchange.actor, **dict(exchange.run_evidence)}
    for name, text in words.items():
        yield from _text_leaks(f"{step}/{name}", text or "", redactor.redact_text(text or ""))


def find_effect_leaks(batch: EffectBatch, redactor: Redactor) -> Iterator[Leak]:
    """Find the leaks in a batch of effects."""
    for n, item in enumerate(read_items(batch.items)):
        if (again := redact_item(item, redactor)).get("redactions", 0) > item.get("redactions", 0):
            place = f"effects/{batch.process}/{batch.number}/{n}/{item['kind']}"
            yield from _json_leaks(place, [*map(item.get, LEAKING)], [*map(again.get, LEAKING)])


LEAKING: Final = ("args", "results", "error")
"""The members of an effect that may have a secret."""


def find_run_leaks(run: Mapping[str, Any], redactor: Redactor) -> Iterator[Leak]:
    """Find the leaks in a run's name and labels."""
    for pointer, text in _text_members("run", run):
        yield from _text_leaks(pointer, text, redactor.redact_text(text))


def disallowed_leaks(leaks: Iterable[Leak], allowed: Iterable[str]) -> list[Leak]:
    """Return the leaks whose places match none of the shell-style patterns."""
    patterns = tuple(allowed)
    return [leak for leak in leaks if not any(fnmatchcase(leak.place, pattern) for pattern in patterns)]


def _text_members(pointer: str, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield pointer, value
        case Mapping():
            for name, item in value.items():
                yield from _text_members(f"{pointer}/{_token(str(name))}", item)
        case list() | tuple():
            for n, item in enumerate(value):
                yield from _text_members(f"{pointer}/{n}", item)
        case _:
            pass


def _text_leaks(place: str, before: str, after: str) -> Iterator[Leak]:
    if before != after:
        yield Leak(place=place, kind=_kind(before, after))


def _header_leaks(place: str, before: Headers, after: Headers) -> Iterator[Leak]:
    for (name, old), (_, new) in zip(before, after, strict=True):
        yield from _text_leaks(f"{place}/{name.lower()}", old, new)


def _body_leaks(place: str, redactor: Redactor, headers: Headers, body: Body) -> Iterator[Leak]:
    if any(chunk.kind != "data" for chunk in body.chunks):
        yield from _message_leaks(place, redactor, body)
        return
    # The limit of a body may lie in the placeholder of a secret, whose first letters are no placeholder any more.
    data = _without_cut_placeholder(body.data) if body.truncated else body.data
    yield from _byte_leaks(place, redactor, data, header(headers, "content-type"), header(headers, "content-encoding"))


def _without_cut_placeholder(data: bytes) -> bytes:
    # Not one expression for both: it would look at a long run of asterisks once from each of them.
    return _CUT_PLACEHOLDER.sub(b"", data) if (rest := data.rstrip(b"*")) == data else rest


_CUT_PLACEHOLDER: Final = re.compile(
    rb"(?:PLAYHEAD_[A-Z2-7]*|%s)\Z" % b"|".join(b"PLAYHEAD"[:end] for end in range(8, 0, -1))
)


def _answer_leaks(place: str, exchange: Exchange, redactor: Redactor) -> Iterator[Leak]:
    """Find the leaks in the answer that a stream is assembled to: its text, thoughts and tool arguments."""
    assembly = assemble_answer(exchange.response, route_request(exchange.request).dialect)
    if assembly is not None and assembly.is_streamed:
        for pointer, text in _text_members(place, assembly.answer):
            yield from _text_leaks(pointer, text, redactor.redact_text(text))


def _message_leaks(place: str, redactor: Redactor, body: Body) -> Iterator[Leak]:
    """Find the leaks in the messages of a WebSocket, including secrets that are split over several messages."""
    work = redactor.new_message_redactor()
    messages = [body.data[chunk.offset : chunk.offset + chunk.size] for chunk in body.chunks]
    fed = [one for data, chunk in zip(messages, body.chunks, strict=True) for one in work.feed(data, 0, chunk.kind)]
    for n, (old, new) in enumerate(zip(messages, [*fed, *work.finish()], strict=True)):
        if new.fault:
            yield Leak(place=f"{place}/message/{n}", kind=f"a message that cannot be searched ({new.fault})")
        elif new.data != old:
            yield from _content_leaks(f"{place}/message/{n}", old, new.data)


def _byte_leaks(
    place: str, redactor: Redactor, data: bytes, kind: str | None = None, coding: str | None = None
) -> Iterator[Leak]:
    if not data:
        return
    work = redactor.new_body_redactor(kind, coding)
    new = b"".join(piece.data for piece in [*work.feed(data, 0), *work.finish()])
    if work.withheld_reason:
        yield Leak(place=place, kind=f"a body that cannot be searched ({work.withheld_reason})")
    elif new != data:
        yield from _content_leaks(place, _decoded_or_raw(data, coding), _decoded_or_raw(new, coding))


def _decoded_or_raw(data: bytes, coding: str | None) -> bytes:
    try:
        return decode_content(data, coding)
    except Undecodable:
        return data


def _content_leaks(place: str, before: bytes, after: bytes) -> Iterator[Leak]:
    """Find the leaks in a body: by JSON pointer where it is JSON, else by line."""
    try:
        yield from _json_leaks(place, parse_json_leniently(before), parse_json_leniently(after))
    except InvalidJson:
        for n, (old, new) in enumerate(zip_longest(before.split(b"\n"), after.split(b"\n"), fillvalue=b""), 1):
            yield from _text_leaks(f"{place}/line/{n}", old.decode("latin-1"), new.decode("latin-1"))


def _json_leaks(place: str, before: Json, after: Json) -> Iterator[Leak]:
    match before, after:
        case Mapping(), Mapping():
            # A secret may also be the name of a member.
            for (name, old), (new_name, new) in zip(before.items(), after.items(), strict=False):
                yield from _text_leaks(f"{place}/(a member's name)", name, new_name)
                yield from _json_leaks(f"{place}/{_token(new_name)}", old, new)
        case list(), list():
            for n, (old, new) in enumerate(zip(before, after, strict=False)):
                yield from _json_leaks(f"{place}/{n}", old, new)
        case _:
            if before != after:
                yield Leak(place=place, kind=_kind(str(before), str(after)))


def _token(name: str) -> str:
    """Escape a name as a token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _kind(before: str, after: str) -> str:
    """Return the kind of a secret, by the first placeholder that is new."""
    old = set(re.findall(PATTERN, before))
    new = next((found for found in re.findall(PATTERN, after) if found not in old), None)
    return SHORT_VALUE if new is None else KINDS.get(new[len("PLAYHEAD_")], "a secret")
