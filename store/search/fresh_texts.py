"""Hand the texts of a call from ingest, which has just derived it, to the index of words, so that it is not derived a second time.

Of a conversation, which repeats its texts with every call, only those are held that no earlier call of the same run and day has handed
over. Nothing depends on what is held: the index derives a call whose texts are missing, and such a call has all of its texts.
"""

import datetime as dt
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from calls.codec.elements import Element
from calls.model import Call, Exchange
from store.database.rows import storable_text
from store.ingest.partitions import day_of
from store.search.call_texts import Place, call_texts
from store.search.text_hash import hash_text

MOST_CHARACTERS: Final = 8 << 20
"""Characters of texts that are held. Beyond it, texts are not held: the index takes the oldest first."""

MOST_HASHES: Final = 100_000
"""Hashes of texts that were handed over, and of elements of requests that were seen. Beyond it, those of the runs that were noted
first are forgotten."""

HELD_SECONDS: Final = 600.0
"""How long texts are held that nobody takes, because another store server indexes them."""

type _Scope = tuple[str, str, dt.date, uuid.UUID]
"""Project, run, day, and the encoding of the run, which changes when something of it is erased."""


class FreshText(NamedTuple):
    """A text that no earlier call of its run and day has."""

    hash: bytes
    role: str
    text: str


class FreshCall(NamedTuple):
    """The texts of a call that was stored a moment ago."""

    run: str
    day: dt.date
    id: str
    started_at: int
    texts: tuple[FreshText, ...]
    noted_at: float


class FreshTexts:
    """The texts of the newest calls, in a limited amount of memory."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, str], FreshCall] = OrderedDict()
        self._size = 0
        self._hashes: OrderedDict[_Scope, set[bytes]] = OrderedDict()
        self._hash_count = 0

    def note_call(
        self, project: str, exchange: Exchange, call: Call, encoding: uuid.UUID, elements: Sequence[Element]
    ) -> None:
        """Hold the texts of a call that is committed. `encoding` changes when something of its run is erased.

        `elements` are those of its request: one that an earlier call had in the same member has no text that is not held yet.
        """
        now = time.monotonic()
        self._drop_old(now)
        if self._size > MOST_CHARACTERS:
            return
        day = day_of(exchange.id)
        hashes = self._hashes.setdefault((project, exchange.run, day, encoding), set())
        before = len(hashes)
        texts = []
        for role, text in call_texts(call, _note_elements(elements, hashes)):
            stored = storable_text(text)
            if (digest := hash_text(role, stored)) not in hashes:
                hashes.add(digest)
                texts.append(FreshText(digest, role, stored))
        self._hash_count += len(hashes) - before
        self._size += sum([len(one.text) for one in texts]) + 1
        self._calls[project, exchange.id] = FreshCall(
            exchange.run, day, exchange.id, exchange.started_at, tuple(texts), now
        )
        while self._hash_count > MOST_HASHES and len(self._hashes) > 1:
            self._hash_count -= len(self._hashes.popitem(last=False)[1])

    @property
    def is_half_full(self) -> bool:
        """Whether half of what may be held is held. What is not held costs several times as much."""
        return self._size > MOST_CHARACTERS // 2

    def take_calls(self, project: str, ids: Iterable[str]) -> dict[str, FreshCall]:
        """Return what is held of these calls, by their ids, and hold it no longer."""
        return {id: call for id in ids if (call := self._take((project, id))) is not None}  # noqa: A001 - what it is

    def _drop_old(self, now: float) -> None:
        while self._calls:
            key = next(iter(self._calls))
            if self._calls[key].noted_at > now - HELD_SECONDS:
                return
            self._take(key)

    def _take(self, key: tuple[str, str]) -> FreshCall | None:
        call = self._calls.pop(key, None)
        if call is not None:
            self._size -= sum([len(one.text) for one in call.texts]) + 1
        return call


def _note_elements(elements: Iterable[Element], hashes: set[bytes]) -> set[Place]:
    """Add elements to those that were seen, and return the places of those that were."""
    known: set[Place] = set()
    member, prefix, number = "", b"", 0
    for element in elements:
        if element.member == member:
            number += 1
        else:
            member, prefix, number = element.member, element.member.encode(), 0
        name = prefix + element.hash
        if name in hashes:
            known.add((member, number))
        else:
            hashes.add(name)
    return known
