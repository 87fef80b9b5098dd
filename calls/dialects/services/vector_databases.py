"""Vector databases and search engines: the query, and what it found.

Pinecone, Qdrant, Chroma, Milvus, Elasticsearch and OpenSearch, Azure AI Search, Marqo, Meilisearch and Typesense, Turbopuffer, Upstash,
S3 Vectors, MongoDB's data API, Vertex and Bedrock. Each finds in a shape of its own; all of them come out as pieces with an id, a
score and a content.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import elements, members
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.generic import WholeBody
from calls.model import Headers, Json, header

NAME: Final = "vectors"

_SEARCHES: Final = re.compile(
    r".*/collections/[^/]+/points(/(search|query|recommend|discover|scroll)(/batch|/groups)?)?"  # Qdrant
    r"|.*/api/v[12](/tenants/[^/]+/databases/[^/]+)?/collections/[^/]+/(query|get|search)"  # Chroma
    r"|(.*/)?_(search|msearch|knn_search|async_search|mget)(/template|/scroll|/point_in_time)?"  # Elasticsearch
    r"|.*/indexes(/[^/]+|\('[^']+'\))/(search|docs/(search|suggest|autocomplete)(\.post\.\w+)?)"  # Marqo, Meilisearch, Azure
    r"|.*/v2/vectordb/entities/(search|query|get|hybrid_search)|.*/v1/vector/(search|query|get)"  # Milvus
    r"|.*/knowledgebases/[^/]+/retrieve|.*/memories/[^/]+/retrieve|.*/v\d/memories/search/?"  # Bedrock, Mem0
    r"|.*/collections/[^/]+/documents/search|(.*/)?multi[-_]search"  # Typesense, Meilisearch
    r"|.*/data/v1/action/(find|findOne|aggregate)"  # MongoDB
    r"|.*/locations/[^/]+(/ragCorpora/[^/:]+)?:retrieveContexts|.*/indexEndpoints/[^/:]+:findNeighbors"  # Vertex
    r"|.*/vector-search/indexes/[^/]+/query(-next-page)?|.*/cortex-search-services/[^/:]+:query"  # Databricks, Snowflake
    r"|.*/servingConfigs/[^/:]+:(search|searchLite|recommend)|.*/1/indexes/[^/]+/(query|queries)"  # Google's Discovery Engine, Algolia
)
_LOOKUPS: Final = re.compile(
    r".*/collections/[^/]+/points/[\w-]+"
    r"|.*/indexes(/[^/]+|\('[^']+'\))/docs(/[^/$]+|\('[^']+'\))|.*/_doc/[^/]+"
)
"""One piece by its name."""

_WRITES: Final = re.compile(
    r".*/collections/[^/]+/points(/(delete|payload|vectors|batch))?"
    r"|.*/api/v[12](/tenants/[^/]+/databases/[^/]+)?/collections/[^/]+/(add|upsert|update|delete)"
    r"|(.*/)?_(bulk|delete_by_query|update_by_query|doc(/.+)?)"
    r"|.*/indexes/[^/]+/documents(/.*)?|.*/docs/(index|search\.index)"
    r"|.*/v2/vectordb/entities/(insert|upsert|delete)|.*/v1/vector/(insert|upsert|delete)"
)
_PINECONE: Final = (
    re.compile(r"/(query|vectors/fetch|vectors/list|records/namespaces/[^/]+/search|assistant/chat/[^/]+/context)"),
    re.compile(r"/(vectors/(upsert|update|delete)|records/namespaces/[^/]+/upsert)"),
)
_BY_HOST: Final = (
    (
        re.compile(r"(.+[.-])?upstash\.io"),
        re.compile(r"/(query|query-data|fetch|range)(/[^/]+)?"),
        re.compile(r"/(upsert|upsert-data|update|delete)(/[^/]+)?"),
    ),
    (
        re.compile(r"(.+\.)?turbopuffer\.com"),
        re.compile(r"/v\d/(namespaces|vectors)/[^/]+/query"),
        re.compile(r"/v\d/(namespaces|vectors)/[^/]+"),
    ),
    (
        re.compile(r"s3vectors\..+"),
        re.compile(r"/(QueryVectors|GetVectors|ListVectors)"),
        re.compile(r"/(PutVectors|DeleteVectors)"),
    ),
)
"""Whose paths may be anybody's: the host, how it is searched, how it is written to."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Paths that only such a store has; at some hosts also plain ones."""
    operation = _operation(method, path, *_shapes(host, headers))
    if operation is None:
        return None
    return Claim(dialect=NAME, operation=operation, kind="retrieval" if operation == "search" else "tool")


def _shapes(host: str, headers: Headers) -> tuple[re.Pattern[str], re.Pattern[str]]:
    if host.endswith(".pinecone.io") or header(headers, "x-pinecone-api-version") is not None:
        return _PINECONE
    return next(((searches, writes) for at, searches, writes in _BY_HOST if at.fullmatch(host)), (_SEARCHES, _WRITES))


def _operation(method: str, path: str, searches: re.Pattern[str], writes: re.Pattern[str]) -> str | None:
    if method in ("GET", "POST") and searches.fullmatch(path):
        return "search"
    if method == "GET" and _LOOKUPS.fullmatch(path):
        return "search"
    return "write" if method in ("POST", "PUT", "PATCH", "DELETE") and writes.fullmatch(path) else None


def asked(body: Json) -> RequestSummary:  # noqa: ARG001 # as the protocol has it
    """The whole request is the question."""
    return RequestSummary()


def told(answer: Json) -> AnswerSummary:
    """What was found, piece by piece."""
    found = members(answer)
    reader = next((read for name, read in _READERS.items() if name in found), None)
    return AnswerSummary(results=tuple(reader(found)) if reader else ())


def assemble(content_type: str) -> Assembly:
    """An assembly for one value."""
    return WholeBody(content_type)


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


def _vectors(answer: Fields) -> Iterator[Json]:
    """Pinecone's vectors by their names; those of S3, which have a distance and a key, in their order."""
    found = answer.get("vectors")
    for vector in map(members, found.values() if isinstance(found, Mapping) else elements(found)):
        yield (
            _piece(vector, vector.get("metadata"), "distance", "key")
            if "key" in vector
            else _piece(vector, vector.get("metadata"))
        )


def _results(answer: Fields) -> Iterator[Json]:
    """Qdrant's points under `result`, and Pinecone's records, which have hits there."""
    result = answer.get("result")
    if "hits" in members(result):
        yield from _hits(members(result))
        return
    if "data_array" in members(result):
        yield from _rows(answer, members(result))
        return
    groups = _each(result if not isinstance(result, Mapping) else result.get("points") or result.get("groups"))
    for one in groups:
        for point in _each(one.get("points") or one.get("hits")) if "hits" in one or "points" in one else [one]:
            # Upstash has a text and metadata where Qdrant has a payload.
            yield _piece(point, point.get("payload") or _without(point, "id", "score", "version", "vector"))


def _rows(answer: Fields, result: Fields) -> Iterator[Json]:
    """Rows of Databricks: the first column is the name, the last one the score."""
    names = [str(members(one).get("name")) for one in elements(members(answer.get("manifest")).get("columns"))]
    for row in map(elements, elements(result.get("data_array"))):
        content = dict(zip(names, row, strict=False))
        yield {"id": row[0] if row else None, "score": content.pop("score", None), "content": content}


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
    """Hits of Elasticsearch, of Pinecone's records, of Typesense, and the bare ones of Marqo and Meilisearch."""
    for hit in _each(answer.get("hits")):
        content = (
            hit.get("_source") or hit.get("fields") or hit.get("document") or _without(hit, "_id", "_score", "_index")
        )
        named = hit if "_id" in hit or "id" in hit else members(hit.get("document"))
        score = next((hit[name] for name in ("_score", "vector_distance", "text_match") if name in hit), None)
        yield {"id": named.get("_id", named.get("id")), "score": score, "content": content}


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


def _named(scored: str, *without: str) -> Callable[[Json], Iterator[Json]]:
    """Pieces whose score has this name, and whose content is all else."""

    def read(found: Json) -> Iterator[Json]:
        for one in _each(found):
            yield _piece(one, _without(one, "id", scored, *without), scored)

    return read


def _contexts(answer: Fields) -> Iterator[Json]:
    """What Vertex's RAG found."""
    for one in _each(members(answer.get("contexts")).get("contexts")):
        yield {"id": one.get("sourceUri"), "score": one.get("score"), "content": one.get("text")}


def _documents(answer: Fields) -> Iterator[Json]:
    """MongoDB's documents."""
    for one in _each(answer.get("documents")):
        yield _piece(one, _without(one, "_id", "score"), id_="_id")


def _memories(answer: Fields) -> Iterator[Json]:
    for one in _each(answer.get("memoryRecordSummaries")):
        yield _piece(one, one.get("content"), id_="memoryRecordId")


def _batch(answer: Fields) -> Iterator[Json]:
    """Several searches at once, each with hits; else bare pieces."""
    for one in _each(answer.get("results")):
        if "hits" in one:
            yield from _hits(one)
        else:
            yield _piece(one, one.get("document") or _without(one, "id", "score"))


_READERS: Final[Mapping[str, Callable[[Fields], Iterator[Json]]]] = {
    "matches": _pinecone,
    "vectors": _vectors,
    "result": _results,
    "ids": _chroma,
    "hits": _elastic,
    "responses": _elastic,
    "docs": _docs,
    "value": _azure,
    "data": _milvus,
    "retrievalResults": _bedrock,
    "results": _batch,
    "rows": lambda answer: _named("$dist", "vector")(answer.get("rows")),
    "contexts": _contexts,
    "documents": _documents,
    "memoryRecordSummaries": _memories,
}
"""How pieces are read, by a member that the answer has."""
