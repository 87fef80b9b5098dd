"""Vector stores and search services: what was looked for, and the pieces that were found.

Pinecone, Qdrant, Chroma, Milvus, Elasticsearch and OpenSearch, Azure AI Search, Marqo and Meilisearch, Bedrock's knowledge bases,
Tavily and Exa. Each finds in a shape of its own; all of them come out as pieces with an id, a score and a content.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.dialects import Asked, Assembly, Claim, Told
from calls.dialects.generic import Whole
from calls.model import Headers, Json, header
from calls.shape import elements, members

NAME: Final = "vectors"

_SEARCHES: Final = re.compile(
    r".*/collections/[^/]+/points(/(search|query|recommend|discover|scroll)(/batch|/groups)?)?"  # Qdrant
    r"|.*/api/v[12](/tenants/[^/]+/databases/[^/]+)?/collections/[^/]+/(query|get|search)"  # Chroma
    r"|(.*/)?_(search|msearch|knn_search|async_search|mget)(/template|/scroll|/point_in_time)?"  # Elasticsearch
    r"|.*/indexes(/[^/]+|\('[^']+'\))/(search|docs/search(\.post\.search)?)"  # Marqo, Meilisearch, Azure
    r"|.*/v2/vectordb/entities/(search|query|get|hybrid_search)"  # Milvus
    r"|.*/knowledgebases/[^/]+/retrieve"  # Bedrock
)
_WRITES: Final = re.compile(
    r".*/collections/[^/]+/points(/(delete|payload|vectors|batch))?"
    r"|.*/api/v[12](/tenants/[^/]+/databases/[^/]+)?/collections/[^/]+/(add|upsert|update|delete)"
    r"|(.*/)?_(bulk|delete_by_query|update_by_query|doc(/.+)?)"
    r"|.*/indexes/[^/]+/documents(/.*)?|.*/docs/index"
    r"|.*/v2/vectordb/entities/(insert|upsert|delete)"
)
_PINECONE_SEARCHES: Final = re.compile(r"/(query|vectors/fetch|vectors/list|records/namespaces/[^/]+/search)")
_PINECONE_WRITES: Final = re.compile(r"/(vectors/(upsert|update|delete)|records/namespaces/[^/]+/upsert)")
_SERVICES: Final = re.compile(r"api\.(tavily\.com|exa\.ai)")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Paths that only such a store has; at Pinecone and the search services also plain ones."""
    operation = _operation(method, path, pinecone=_is_pinecone(host, headers))
    if operation is None and _SERVICES.fullmatch(host) and method == "POST" and path.startswith("/search"):
        operation = "search"
    if operation is None:
        return None
    return Claim(dialect=NAME, operation=operation, kind="retrieval" if operation == "search" else "tool")


def _is_pinecone(host: str, headers: Headers) -> bool:
    return host.endswith(".pinecone.io") or header(headers, "x-pinecone-api-version") is not None


def _operation(method: str, path: str, *, pinecone: bool) -> str | None:
    searches, writes = (_PINECONE_SEARCHES, _PINECONE_WRITES) if pinecone else (_SEARCHES, _WRITES)
    if method in ("GET", "POST") and searches.fullmatch(path):
        return "search"
    return "write" if method in ("POST", "PUT", "PATCH", "DELETE") and writes.fullmatch(path) else None


def asked(body: Json) -> Asked:  # noqa: ARG001 # as the protocol has it
    """The whole request is the question."""
    return Asked()


def told(answer: Json) -> Told:
    """What was found, piece by piece."""
    found = members(answer)
    reader = next((read for name, read in _READERS.items() if name in found), None)
    return Told(results=tuple(reader(found)) if reader else ())


def assemble(content_type: str) -> Assembly:
    """An assembly for one value."""
    return Whole(content_type)


type Fields = Mapping[str, Json]


def _piece(one: Fields, content: Json, score: str = "score", id_: str = "id") -> Json:
    return {"id": one.get(id_), "score": one.get(score), "content": content}


def _without(one: Fields, *names: str) -> Json:
    return {name: value for name, value in one.items() if name not in names}


def _each(value: Json) -> Iterator[Fields]:
    """The objects of a list, or of lists in it (a batch of searches)."""
    for one in elements(value):
        if isinstance(one, Mapping):
            yield one
        else:
            yield from map(members, elements(one))


def _pinecone(answer: Fields) -> Iterator[Json]:
    for match in _each(answer.get("matches")):
        yield _piece(match, match.get("metadata"))


def _pinecone_fetch(answer: Fields) -> Iterator[Json]:
    for vector in map(members, members(answer.get("vectors")).values()):
        yield _piece(vector, vector.get("metadata"))


def _results(answer: Fields) -> Iterator[Json]:
    """Qdrant's points under `result`, and Pinecone's records, which have hits there."""
    result = answer.get("result")
    if "hits" in members(result):
        yield from _hits(members(result))
        return
    groups = _each(result if not isinstance(result, Mapping) else result.get("points") or result.get("groups"))
    for one in groups:
        for point in _each(one.get("points") or one.get("hits")) if "payload" not in one else [one]:
            yield _piece(point, point.get("payload"))


def _chroma(answer: Fields) -> Iterator[Json]:
    """Columns; lists of them, where several things were looked for."""
    rows = _columns(answer, *("ids", "distances", "documents", "metadatas"))
    for name, distance, document, metadata in rows:
        yield {"id": name, "score": distance, "content": {"document": document, "metadata": metadata}}


def _columns(answer: Fields, *names: str) -> Iterator[tuple[Json, ...]]:
    columns = [_flat(answer.get(name)) for name in names]
    for place in range(len(columns[0])):
        yield tuple(column[place] if place < len(column) else None for column in columns)


def _flat(column: Json) -> list[Json]:
    nested = [elements(one) if not isinstance(one, str | Mapping | None) else [one] for one in elements(column)]
    return [one for part in nested for one in (part or [None])]


def _elastic(answer: Fields) -> Iterator[Json]:
    responses = [members(one) for one in elements(answer.get("responses"))] or [answer]
    for response in responses:
        hits = response.get("hits")
        yield from _hits(members(hits) if isinstance(hits, Mapping) else response)


def _hits(answer: Fields) -> Iterator[Json]:
    """Hits of Elasticsearch, of Pinecone's records, and the bare ones of Marqo and Meilisearch."""
    for hit in _each(answer.get("hits")):
        content = hit.get("_source") or hit.get("fields") or _without(hit, "_id", "_score", "_index")
        yield {"id": hit.get("_id", hit.get("id")), "score": hit.get("_score"), "content": content}


def _docs(answer: Fields) -> Iterator[Json]:
    for doc in _each(answer.get("docs")):
        yield _piece(doc, doc.get("_source"), "_score", "_id")


def _azure(answer: Fields) -> Iterator[Json]:
    for one in _each(answer.get("value")):
        yield _piece(one, _without(one, "@search.score"), "@search.score")


def _milvus(answer: Fields) -> Iterator[Json]:
    for one in _each(answer.get("data")):
        yield _piece(one, _without(one, "id", "distance"), "distance")


def _bedrock(answer: Fields) -> Iterator[Json]:
    for one in _each(answer.get("retrievalResults")):
        yield {"id": one.get("location"), "score": one.get("score"), "content": one.get("content")}


def _pages(answer: Fields) -> Iterator[Json]:
    """What Tavily and Exa found on the web."""
    for one in _each(answer.get("results")):
        yield _piece(one, _without(one, "score", "id"), id_="id" if "id" in one else "url")


_READERS: Final[Mapping[str, Callable[[Fields], Iterator[Json]]]] = {
    "matches": _pinecone,
    "vectors": _pinecone_fetch,
    "result": _results,
    "ids": _chroma,
    "hits": _elastic,
    "responses": _elastic,
    "docs": _docs,
    "value": _azure,
    "data": _milvus,
    "retrievalResults": _bedrock,
    "results": _pages,
}
"""How pieces are read, by a member that the answer has."""
