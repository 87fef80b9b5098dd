"""Report how a request that hit differs from the recorded one outside its key.

A fix can make load-bearing what no rule calls so. Hence every hit compares the whole request, and what differs is shown.
What differs in every sending (dates, traces, what belongs to the connection, nonces, secrets) is no drift.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from calls.keys.divergence import ABSENT, AbsentValue, same
from calls.keys.key import KeyResult
from calls.keys.key_selection import pointer
from calls.keys.profile import NEVER_KEYS
from calls.keys.request_document import whole
from calls.model import Headers, Json, Request
from calls.placeholder import is_placeholder

LISTED: Final = 50
"""Pointers of one request that are kept."""

_BY_DESIGN: Final = frozenset(("secret", "null", "nonce"))


def drift(recorded: Request, recorded_key: KeyResult, now: Request, now_key: KeyResult) -> list[str]:
    """Pointers of what differs, in the document that `explain` shows."""
    places = [*_left_out(recorded_key, recorded, now_key, now), *_headers(recorded.headers, now.headers)]
    return places[:LISTED]


def _left_out(recorded_key: KeyResult, recorded: Request, now_key: KeyResult, now: Request) -> Iterator[str]:
    left_out = [*recorded_key.left_out, *now_key.left_out]
    places = dict.fromkeys(left.pointer for left in left_out if left.rule not in _BY_DESIGN)
    before, after = whole(recorded, recorded_key), whole(now, now_key)
    return (place for place in places if not same(at(before, place), at(after, place)))


def _headers(recorded: Headers, now: Headers) -> Iterator[str]:
    before, after = _compared(recorded), _compared(now)
    differ = (name for name in {**before, **after} if not _alike(before.get(name), after.get(name)))
    return (pointer(("/headers", name)) for name in differ)


def _compared(headers: Headers) -> dict[str, list[str]]:
    """The headers that tell something of the request, by name."""
    given: dict[str, list[str]] = {}
    for name, value in headers:
        lowered = name.lower()
        if not NEVER_KEYS.fullmatch(lowered):
            given.setdefault(lowered, []).append(value)
    return given


def _alike(before: list[str] | None, after: list[str] | None) -> bool:
    """The same values; another machine's secrets count as the same."""
    if before is None or after is None or len(before) != len(after):
        return False
    return all(a == b or (_secret(a) and _secret(b)) for a, b in zip(before, after, strict=True))


def _secret(value: str) -> bool:
    return is_placeholder(value.encode("latin-1", "replace"))


def at(value: Json, place: str) -> Json | AbsentValue:
    """What stands at a pointer (RFC 6901)."""
    found: Json | AbsentValue = value
    for token in place.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return ABSENT
    return found
