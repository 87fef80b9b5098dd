"""To judge by outsiders: what an official SDK accumulates from the bytes of a stream, beside what we make of them."""

import gzip
import json
import random
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import httpx2

from calls.codec.json import dumps
from calls.derive import derive_call
from calls.dialects.table import BY_NAME
from calls.model import Call
from store.active_profiles import load_profiles
from tests.calls.recorded import exchange
from tests.support.corpus import RecordedExchange, cassettes

PROFILES = load_profiles()


@lru_cache(maxsize=1)
def derive_corpus() -> list[tuple[str, RecordedExchange, Call]]:
    """Every exchange of the corpus, with what we make of it."""
    return [
        (one.name, recorded, derive_call(exchange(recorded), PROFILES))
        for one in cassettes()
        for recorded in one.exchanges
    ]


def streams(*dialects: str) -> list[tuple[str, RecordedExchange, Call]]:
    """Every stream of these dialects in the corpus."""
    return [found for found in derive_corpus() if found[2].streamed and found[2].dialect in dialects]


def unpacked_body(recorded: RecordedExchange) -> bytes:
    """The body of its answer, whether or not the corpus kept it packed."""
    data = recorded.response_body
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def in_pieces(name: str, recorded: RecordedExchange, call: Call) -> Any:
    """What we make of an answer that comes in pieces of random sizes, other ones for every answer and the same in every run."""
    body, cuts = unpacked_body(recorded), random.Random(name)
    media = {name.lower(): value for name, value in recorded.response_headers}.get("content-type", "")
    assembly = BY_NAME[call.dialect].assemble(media.lower())
    start = 0
    while start < len(body):
        end = start + cuts.choice((1, 2, 7, 100, 1000, 4096))
        assembly.feed(body[start:end])
        start = end
    assembly.finish()
    return json.loads(dumps(assembly.answer))


def client(data: bytes, media: str = "text/event-stream") -> httpx2.Client:
    """An HTTP client whose every answer is this."""
    head = {"content-type": media}
    return httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=head, content=data)))


def without_defaults(value: Any, added: frozenset[str] = frozenset()) -> Any:
    """The value without what says nothing (null, empty lists), and without what an SDK adds or noise pads."""
    match value:
        case dict():
            return {
                name: without_defaults(item, added)
                for name, item in value.items()
                if item not in (None, []) and name not in added
            }
        case list():
            return [without_defaults(item, added) for item in value]
        case _:
            return value


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """The places at which two values differ."""
    match ours, theirs:
        case dict(), dict():
            for name in {**ours, **theirs}:
                yield from differences(ours.get(name), theirs.get(name), f"{at}/{name}")
        case list(), list() if len(ours) == len(theirs):
            for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from differences(one, other, f"{at}/{place}")
        case _ if ours != theirs:
            yield at


def explain_places(dialect: str, places: list[str], habits: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """The habits that account for these places, and the places that none accounts for."""
    shown = {name for name, shape in habits.items() for at in places if re.fullmatch(shape, f"{dialect} {at}")}
    known = "|".join(habits.values())
    return shown, [at for at in places if not known or not re.fullmatch(known, f"{dialect} {at}")]
