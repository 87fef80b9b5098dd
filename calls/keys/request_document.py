"""Represent a request as one JSON document, so that two can be compared by pointers."""

from calls.codec.body import query_pairs
from calls.codec.lenient_json import as_array, as_object, as_text
from calls.codec.rpc_body import read_rpc_messages
from calls.keys.key import KeyResult
from calls.model import Json, Request
from calls.route import split_url


def key_document(key: KeyResult) -> Json:
    """Return the fields in the key, with the query by name."""
    selected = as_object(key.selected_fields)
    query: dict[str, Json] = {}
    for pair in as_array(selected.get("query")):
        name, value = map(as_text, as_array(pair))
        query[name] = [*as_array(query.get(name)), value]
    return {**selected, "query": query}


def readable_document(key: KeyResult) -> Json:
    """Return the fields in the key, with the messages of a body of protobuf in place of its digest, where they can be read."""
    document = as_object(key_document(key))
    if key.parsed_body.form not in ("bytes", "raw") or (messages := read_rpc_messages(key.sent_request)) is None:
        return document
    return {**{name: value for name, value in document.items() if name != "body"}, "messages": messages}


def full_document(request: Request, key: KeyResult) -> Json:
    """Return the whole body and query, including the fields that are not in the key."""
    query: dict[str, list[str]] = {}
    for name, value in query_pairs(split_url(request.url)[2]):
        query.setdefault(name, []).append(value)
    return {"body": key.request_body, "query": query}
