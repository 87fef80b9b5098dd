"""Tell by the ids that are in no key which of several equal requests was meant.

Such an id, as of a conversation, is in no key, because a client may draw it: it counts by its first occurrence only, or is a
part of the path, or a header, a cookie or a field that says who asks, and is named like a conversation. But what a client
repeats is the same thing throughout a replay: once a request with an id was answered by a recorded one, both ids stand for
the same conversation.
"""

import re
from collections.abc import Container, Iterable, Iterator
from typing import Final

from calls.codec.body import query_pairs
from calls.keys.key import KeyResult
from calls.keys.profile import NEVER_KEYS
from calls.keys.rules import At
from calls.model import Headers, Json
from calls.route import split_url

type Pairs = tuple[tuple[str, str], ...]
"""Recorded ids and present ones."""


def pair_ids(then: KeyResult, now: KeyResult) -> Pairs:
    """Pair the ids of two requests with equal keys."""
    names = {name: was for _, was, name in then.notes.ids}
    link_ids = [(names[name], was) for _, was, name in now.notes.ids if name in names]
    before = dict(_left_out_ids(then))
    path_and_field_ids = [(f"{at} {before[at]}", f"{at} {value}") for at, value in _left_out_ids(now) if at in before]
    return tuple(dict.fromkeys((*link_ids, *path_and_field_ids)))


_CONVERSATION: Final = re.compile(r"session|sessid|\bsid\b|conversation|thread|chat|user", re.IGNORECASE)
"""What a field is called that tells conversations apart. Others, such as a worker's name, change within one."""


def _left_out_ids(key: KeyResult) -> Iterator[tuple[str, str]]:
    """The ids in the path, in headers and cookies, and in fields that are left out because they say who asks, by their places."""
    route = key.route
    if route.path != route.key_path:
        parts, key_parts = route.path.split("/"), route.key_path.split("/")
        if len(parts) == len(key_parts):
            yield from ((f"/path/{n}", part) for n, part in enumerate(parts) if key_parts[n] == "*")
    yield from _head_ids(key.sent_request.headers)
    for at, rule in key.notes.left_out:
        if rule == "identity" and at[0] == "/query":
            query = dict(query_pairs(split_url(key.sent_request.url)[2]))
            yield from _named_texts("/query", str(at[1]), query.get(str(at[1])))
    for place, value in left_out_values(key, ("identity",)):
        yield from _named_texts("/body", place, value)


def left_out_values(key: KeyResult, rules: Container[str]) -> Iterator[tuple[str, Json]]:
    """The values of the fields of the body that these rules left out, by their places."""
    for at, rule in key.notes.left_out:
        if rule in rules and (steps := _body_steps(at)) is not None:
            yield "/".join(map(str, steps)), _value_at(key.request_body, steps)


def _head_ids(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        lowered = name.lower()
        if lowered == "cookie":
            for cookie, _, text in (pair.strip().partition("=") for pair in value.split(";")):
                yield from _named_texts("/cookies", cookie, text)
        elif not NEVER_KEYS.fullmatch(lowered):
            yield from _named_texts("/headers", lowered, value)


def _named_texts(above: str, name: str, value: Json) -> Iterator[tuple[str, str]]:
    place = f"{above}/{name}"
    if isinstance(value, dict):
        for member, text in value.items():
            yield from _named_texts(place, member, text) if isinstance(text, str) else ()
    elif isinstance(value, str) and _CONVERSATION.search(place):
        yield place, value


def _body_steps(at: At) -> list[str | int] | None:
    """The steps from the body to a place; None for a place elsewhere."""
    steps: list[str | int] = []
    while not isinstance(at, str):
        at, step = at
        steps.append(step)
    return steps[::-1] if at == "/body" else None


def _value_at(value: Json, steps: list[str | int]) -> Json:
    for step in steps:
        match value, step:
            case dict(), str():
                value = value.get(step)
            case list(), int() if step < len(value):
                value = value[step]
            case _:
                return None
    return value


_MOST_IDS: Final = 100_000
"""Present ids that are noted: a replay that repeats its answers may go on for months, with new ids in each request."""


class KnownPairs:
    """The ids that stood for one another in a replay so far."""

    def __init__(self) -> None:
        self._now_of: dict[str, str] = {}
        self._then_of: dict[str, str] = {}
        self.echoed_now: dict[str, str] = {}
        """The present ids that stand for recorded ones in answers (`echoed_ids`)."""
        self.echoed_then: dict[str, str] = {}
        """The recorded ids, by the present ones."""

    def note_echoes(self, pairs: Pairs) -> None:
        """Note the ids that the client of an answered request drew anew."""
        for then, now in pairs if len(self.echoed_now) < _MOST_IDS else ():
            # An id that came with a recorded answer is no new one.
            if now not in self.echoed_now and then not in self.echoed_then:
                self.echoed_now.setdefault(then, now)
                self.echoed_then.setdefault(now, then)

    def note(self, pairs: Pairs) -> None:
        """Note the ids of a request that was answered."""
        for then, now in pairs if len(self._then_of) < _MOST_IDS else ():
            self._now_of.setdefault(then, now)
            self._then_of.setdefault(now, then)

    def has_noted(self, pairs: Pairs) -> bool:
        """Return whether any of these ids stood for one another before."""
        return any(self._then_of.get(now) == then for then, now in pairs)

    def distance(self, pairs: Pairs) -> int:
        """Return 0 if the ids stand for one another, 1 if they may, and 2 if one stands for another id."""
        return max((self._distance(then, now) for then, now in pairs), default=0)

    def find_closer(self, pairs: Pairs, others: Iterable[Pairs]) -> int | None:
        """Return the place of the first of the others that are closest; None if none is closer than `pairs`."""
        best, found = self.distance(pairs), None
        for place, other in enumerate(others):
            if best == 0:
                break
            if (distance := self.distance(other)) < best:
                best, found = distance, place
        return found

    def _distance(self, then: str, now: str) -> int:
        if then == now or self._then_of.get(now) == then:
            return 0
        return 2 if then in self._now_of or now in self._then_of else 1
