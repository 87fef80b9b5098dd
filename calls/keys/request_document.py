"""Represent a request as one JSON document, so that two can be compared by pointers."""

from calls.codec.body import pairs
from calls.codec.lenient_json import elements, members, text
from calls.keys.key import KeyResult
from calls.model import Json, Request
from calls.route import target


def load_bearing(key: KeyResult) -> Json:
    """What went into the key, with the query by name."""
    selected = members(key.selected)
    query: dict[str, Json] = {}
    for pair in elements(selected.get("query")):
        name, value = map(text, elements(pair))
        query[name] = [*elements(query.get(name)), value]
    return {**selected, "query": query}


def whole(request: Request, key: KeyResult) -> Json:
    """Body and query as they were sent, also what did not go into the key."""
    query: dict[str, list[str]] = {}
    for name, value in pairs(target(request.url)[2]):
        query.setdefault(name, []).append(value)
    return {"body": key.request, "query": query}
