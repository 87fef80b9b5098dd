"""Report how a request that hit differs from the recorded one outside its key.

A change of the program can make a field matter that no rule puts into the key. So every hit compares the whole request and
reports the differences. Values that differ each time a request is sent (dates, traces, connection headers, boundaries, nonces,
secrets) are not drift.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.body import media_type_without_boundary
from calls.keys.divergence import ABSENT, AbsentValue, is_same_json
from calls.keys.key import KeyResult
from calls.keys.key_selection import pointer_to
from calls.keys.profile import NEVER_KEYS
from calls.keys.request_document import full_document
from calls.model import Headers, Json, Request
from calls.placeholder import is_placeholder

MAX_POINTERS: Final = 50
"""The number of pointers that are kept for one request."""

_EXPECTED_RULES: Final = frozenset(("secret", "null", "nonce"))


def drift_pointers(recorded: Request, recorded_key: KeyResult, now: Request, now_key: KeyResult) -> list[str]:
    """Return the pointers of the differences outside the key, in the document of `full_document`."""
    places = [*_body_drift(recorded_key, recorded, now_key, now), *_header_drift(recorded.headers, now.headers)]
    return places[:MAX_POINTERS]


def _body_drift(recorded_key: KeyResult, recorded: Request, now_key: KeyResult, now: Request) -> Iterator[str]:
    left_out = [*recorded_key.left_out_fields, *now_key.left_out_fields]
    places = dict.fromkeys(omission.pointer for omission in left_out if omission.rule not in _EXPECTED_RULES)
    before, after = full_document(recorded, recorded_key), full_document(now, now_key)
    return (place for place in places if not is_same_json(at(before, place), at(after, place)))


def _header_drift(recorded: Headers, now: Headers) -> Iterator[str]:
    before, after = _stable_headers(recorded), _stable_headers(now)
    differ = (name for name in {**before, **after} if not _is_same_header(before.get(name), after.get(name)))
    return (pointer_to(("/headers", name)) for name in differ)


def _stable_headers(headers: Headers) -> dict[str, list[str]]:
    """Return the headers that do not change each time a request is sent, by name."""
    values_by_name: dict[str, list[str]] = {}
    for name, value in headers:
        lowered = name.lower()
        if not NEVER_KEYS.fullmatch(lowered):
            stable = media_type_without_boundary(value) if lowered == "content-type" else value
            values_by_name.setdefault(lowered, []).append(stable)
    return values_by_name


def _is_same_header(before: list[str] | None, after: list[str] | None) -> bool:
    """Return whether a header has the same values. Placeholders of different secrets count as the same."""
    if before is None or after is None or len(before) != len(after):
        return False
    return all(a == b or (_is_secret(a) and _is_secret(b)) for a, b in zip(before, after, strict=True))


def _is_secret(value: str) -> bool:
    return is_placeholder(value.encode("latin-1", "replace"))


def at(value: Json, place: str) -> Json | AbsentValue:
    """Return the value at a pointer (RFC 6901)."""
    current: Json | AbsentValue = value
    for token in place.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(current, Mapping) and name in current:
            current = current[name]
        elif isinstance(current, list) and name.isdecimal() and int(name) < len(current):
            current = current[int(name)]
        else:
            return ABSENT
    return current
