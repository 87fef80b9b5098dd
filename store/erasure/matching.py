"""Find the calls whose request or answer has a value at an RFC 9535 path, over all runs of a project."""

import asyncio
import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from calls.codec.json import parse_json_leniently
from calls.model import Call, Exchange
from store.database.blobs import CorruptData, unpacked_size
from store.database.connection import Database
from store.query.call_reader import CallReader

BATCH: Final = 20
"""Exchanges whose stored forms are read at a time."""

HELD: Final = 8 << 20
"""Bytes of bodies that are held at a time; an exchange with more is held alone."""


MOST_FOUND: Final = 2000
"""Exchanges that one step of a search finds, at most a batch more."""

BEGINNING: Final = uuid.UUID(int=0)
"""The place before the first exchange."""


class BadMatch(ValueError):
    """The text is not of the form JSONPATH=VALUE."""


class BodyMatch(NamedTuple):
    """A path and the value that it must have: a text, or JSON."""

    path: Any
    value: str

    def fits(self, document: Any) -> bool:
        """Whether a document has the value at the path."""
        return any(_is_value(node, self.value) for node in self.path.findall(document))


def parse_match(text: str) -> BodyMatch:
    """Parse `$.user.email=anna@example.com`: the last `=` after which the path is valid divides. Raises `BadMatch`."""
    # Imported here, because python-jsonpath takes long to import and most store servers erase nothing by content.
    from calls.keys.jsonpath import parse_own_path

    reason = "there is no ="
    for at in (index for index, letter in enumerate(text) if letter == "="):
        try:
            return BodyMatch(parse_own_path(text[:at].strip()), text[at + 1 :])
        except ValueError as error:
            reason = str(error)
    raise BadMatch(
        f"invalid match {text[:200]!r}: {reason}; write JSONPATH=VALUE, such as $.user=anna or $..email=anna@example.com"
    )


class SearchStep(NamedTuple):
    """What a part of a search has found."""

    found: Mapping[str, Sequence[str]]
    """The ids of the exchanges that fit, by their runs."""

    looked_at: int
    unreadable: Mapping[str, str]
    """Why exchanges could not be looked into, by their ids."""

    next: uuid.UUID | None
    """The exchange after which the search goes on; None at its end."""


async def find_calls(
    database: Database,
    derive: Callable[[Exchange], Call],
    project: str,
    match: BodyMatch,
    after: uuid.UUID = BEGINNING,
    seconds: float = math.inf,
) -> SearchStep:
    """Look for exchanges whose request or answer fits, after a place in the order of their ids, for so many seconds or until enough fit.

    As many are held as have bodies of `HELD` bytes, or one; they are read and derived in a thread, so that recording goes on.
    """
    queries = CallReader(database, derive, project)
    exchanges_by_run: defaultdict[str, list[str]] = defaultdict(list)
    unreadable: dict[str, str] = {}
    looked_at, until = 0, time.monotonic() + seconds
    while True:
        async with database.connection() as connection:
            rows = await connection.fetch(FORMS, project, after, BATCH)
        if not rows:
            return SearchStep(exchanges_by_run, looked_at, unreadable, None)
        for ids in _held_together(rows):
            exchanges = await _load_readable(queries, ids, unreadable)
            for run, exchange in await asyncio.to_thread(_matching, exchanges, derive, match):
                exchanges_by_run[run].append(exchange)
        after, looked_at = rows[-1]["id"], looked_at + len(rows)
        if time.monotonic() >= until or sum(map(len, exchanges_by_run.values())) >= MOST_FOUND:
            return SearchStep(exchanges_by_run, looked_at, unreadable, after)


async def _load_readable(queries: CallReader, ids: Sequence[str], unreadable: dict[str, str]) -> Collection[Exchange]:
    """Load exchanges; why one cannot be read is added to `unreadable`. Bodies that retention has erased have nothing to find."""
    try:
        loaded = await queries.readable_exchanges(ids)
    except CorruptData as error:
        if len(ids) == 1:
            unreadable[ids[0]] = str(error)
            return []
        return [one for each in ids for one in await _load_readable(queries, [each], unreadable)]
    unreadable |= {one: error.reason for one, error in loaded.unavailable.items() if error.kind != "erased"}
    return loaded.found.values()


def _held_together(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Divide rows into those whose bodies may be held together; yield their ids."""
    some: list[str] = []
    size = 0
    for row in rows:
        own = sum(unpacked_size(form) for form in (row["request_body"], row["response_body"]) if form)
        if some and size + own > HELD:
            yield some
            some, size = [], 0
        some.append(str(row["id"]))
        size += own
    yield some


def _matching(
    exchanges: Iterable[Exchange], derive: Callable[[Exchange], Call], match: BodyMatch
) -> list[tuple[str, str]]:
    return [(one.run, one.id) for one in exchanges if any(map(match.fits, _documents(one, derive)))]


def _documents(exchange: Exchange, derive: Callable[[Exchange], Call]) -> list[Any]:
    """Return the JSON of the request and of the answer, as it was sent and as it was understood."""
    call = derive(exchange)
    documents = [call.request, call.answer]
    bodies = [exchange.request.body, *([exchange.response.body] if exchange.response else [])]
    for body in bodies:
        try:
            documents.append(parse_json_leniently(body.data))
        except ValueError:
            continue  # not JSON, or compressed: `derive` has decoded it
    return [document for document in documents if isinstance(document, dict | list)]


def _is_value(node: Any, value: str) -> bool:
    if isinstance(node, str):
        return node == value
    try:
        return bool(json.loads(value) == node)
    except ValueError:
        return False


FORMS = """
SELECT id, request_body, response_body FROM exchanges WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3
"""
