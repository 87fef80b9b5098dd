"""Find the calls whose request or answer has a value at an RFC 9535 path, over all runs of a project."""

import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from calls.codec.json import parse_json_leniently
from calls.model import Call, Exchange
from store.database.connection import Database
from store.query.exchanges import ExchangeQueries

BATCH = 20
"""Exchanges that are read at a time."""


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
    from calls.keys.jsonpath import parse_path

    reason = "there is no ="
    for at in (index for index, letter in enumerate(text) if letter == "="):
        try:
            return BodyMatch(parse_path(text[:at].strip()), text[at + 1 :])
        except ValueError as error:
            reason = str(error)
    raise BadMatch(
        f"invalid match {text[:200]!r}: {reason}; write JSONPATH=VALUE, such as $.user=anna or $..email=anna@example.com"
    )


async def find_calls(
    database: Database, derive: Callable[[Exchange], Call], project: str, match: BodyMatch
) -> AsyncIterator[tuple[str, str]]:
    """Yield the runs and ids of all exchanges whose request or answer fits."""
    queries = ExchangeQueries(database, derive, project)
    after = uuid.UUID(int=0)
    while True:
        async with database.connection() as connection:
            ids = [row["id"] for row in await connection.fetch(IDS, project, after, BATCH)]
        if not ids:
            return
        for exchange in (await queries.exchanges_by_id(map(str, ids))).values():
            if any(map(match.fits, _documents(exchange, derive))):
                yield exchange.run, exchange.id
        after = ids[-1]


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


IDS = "SELECT id FROM exchanges WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"
