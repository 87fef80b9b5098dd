"""Vector databases and search engines: the query, and what it found.

Pinecone, Qdrant, Chroma, Milvus, Elasticsearch and OpenSearch, Azure AI Search, Marqo, Meilisearch and Typesense, Turbopuffer, Upstash,
S3 Vectors, MongoDB's data API, Vertex and Bedrock. Each has a shape of its own; all results become pieces with an id, a
score and a content.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, Service
from calls.dialects.generic import WholeBody
from calls.dialects.parts.answer_forms import never_streamed
from calls.dialects.parts.unclaimed_kinds import always_retrieval
from calls.model import Headers, Json, header

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
"""Paths that fetch one piece by its id."""

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
"""Services whose paths mean something else at other hosts: the host, its search paths and its write paths."""


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim paths that only such a database has, and at some hosts also common ones."""
    operation = _operation(method, path, *_path_patterns(host, headers))
    if operation is None:
        return None
    return Claim(operation=operation, kind="retrieval" if operation == "search" else "tool")


def _path_patterns(host: str, headers: Headers) -> tuple[re.Pattern[str], re.Pattern[str]]:
    if host.endswith(".pinecone.io") or header(headers, "x-pinecone-api-version") is not None:
        return _PINECONE
    return next(((searches, writes) for at, searches, writes in _BY_HOST if at.fullmatch(host)), (_SEARCHES, _WRITES))


def _operation(method: str, path: str, searches: re.Pattern[str], writes: re.Pattern[str]) -> str | None:
    if method in ("GET", "POST") and searches.fullmatch(path):
        return "search"
    if method == "GET" and _LOOKUPS.fullmatch(path):
        return "search"
    return "write" if method in ("POST", "PUT", "PATCH", "DELETE") and writes.fullmatch(path) else None


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the results, one by one."""
    found = as_object(answer)
    reader = next((read for name, read in _READERS.items() if name in found), None)
    return AnswerSummary(results=tuple(reader(found)) if reader else ())


def assemble(content_type: str) -> Assembly:
    """Make an assembly for one value."""
    return WholeBody(content_type)


type Fields = Mapping[str, Json]


def _search_result(one: Fields, content: Json, score: str = "score", id_: str = "id") -> Json:
    return {"id": one.get(id_), "score": one.get(score), "content": content}


def _omit_members(one: Fields, *names: str) -> Json:
    return {name: value for name, value in one.items() if name not in names}


def _flatten_objects(value: Json) -> Iterator[Fields]:
    """Iterate over the objects of a list, or of lists in it (a batch of searches)."""
    for one in as_array(value):
        if isinstance(one, Mapping):
            yield one
        else:
            yield from map(as_object, as_array(one))


def _read_pinecone(answer: Fields) -> Iterator[Json]:
    for match in _flatten_objects(answer.get("matches")):
        yield _search_result(match, match.get("metadata"))


def _read_vectors(answer: Fields) -> Iterator[Json]:
    """Read Pinecone's vectors, by id; or those of S3, a list with distances and keys."""
    found = answer.get("vectors")
    for vector in map(as_object, found.values() if isinstance(found, Mapping) else as_array(found)):
        yield (
            _search_result(vector, vector.get("metadata"), "distance", "key")
            if "key" in vector
            else _search_result(vector, vector.get("metadata"))
        )


def _read_points(answer: Fields) -> Iterator[Json]:
    """Read `result`: Qdrant's points, Pinecone's hits, or Databricks' rows."""
    result = answer.get("result")
    if "hits" in as_object(result):
        yield from _read_hits(as_object(result))
        return
    if "data_array" in as_object(result):
        yield from _read_rows(answer, as_object(result))
        return
    groups = _flatten_objects(
        result if not isinstance(result, Mapping) else result.get("points") or result.get("groups")
    )
    for one in groups:
        for point in (
            _flatten_objects(one.get("points") or one.get("hits")) if "hits" in one or "points" in one else [one]
        ):
            # Upstash has a text and metadata where Qdrant has a payload.
            yield _search_result(
                point, point.get("payload") or _omit_members(point, "id", "score", "version", "vector")
            )


def _read_rows(answer: Fields, result: Fields) -> Iterator[Json]:
    """Read the rows of Databricks: the first column is the id."""
    names = [str(as_object(one).get("name")) for one in as_array(as_object(answer.get("manifest")).get("columns"))]
    for row in map(as_array, as_array(result.get("data_array"))):
        content = dict(zip(names, row, strict=False))
        yield {"id": row[0] if row else None, "score": content.pop("score", None), "content": content}


def _read_chroma(answer: Fields) -> Iterator[Json]:
    """Read columns, or a list of columns for a batch of searches."""
    rows = _zip_columns(answer, *("ids", "distances", "documents", "metadatas"))
    for name, distance, document, metadata in rows:
        yield {"id": name, "score": distance, "content": {"document": document, "metadata": metadata}}


def _zip_columns(answer: Fields, *names: str) -> Iterator[tuple[Json, ...]]:
    columns = [_flatten_column(answer.get(name)) for name in names]
    for place in range(len(columns[0])):
        yield tuple(column[place] if place < len(column) else None for column in columns)


def _flatten_column(column: Json) -> list[Json]:
    nested = [as_array(one) if not isinstance(one, str | Mapping | None) else [one] for one in as_array(column)]
    return [one for part in nested for one in (part or [None])]


def _read_elastic(answer: Fields) -> Iterator[Json]:
    responses = [as_object(one) for one in as_array(answer.get("responses"))] or [answer]
    for response in responses:
        hits = response.get("hits")
        yield from _read_hits(as_object(hits) if isinstance(hits, Mapping) else response)


def _read_hits(answer: Fields) -> Iterator[Json]:
    """Read the hits of Elasticsearch, of Pinecone's records and of Typesense, and the plain ones of Marqo and Meilisearch."""
    for hit in _flatten_objects(answer.get("hits")):
        content = (
            hit.get("_source")
            or hit.get("fields")
            or hit.get("document")
            or _omit_members(hit, "_id", "_score", "_index")
        )
        identified = hit if "_id" in hit or "id" in hit else as_object(hit.get("document"))
        score = next((hit[name] for name in ("_score", "vector_distance", "text_match") if name in hit), None)
        yield {"id": identified.get("_id", identified.get("id")), "score": score, "content": content}


def _read_docs(answer: Fields) -> Iterator[Json]:
    for doc in _flatten_objects(answer.get("docs")):
        yield _search_result(doc, doc.get("_source"), "_score", "_id")


def _read_azure(answer: Fields) -> Iterator[Json]:
    for one in _flatten_objects(answer.get("value")):
        yield _search_result(one, _omit_members(one, "@search.score"), "@search.score")


def _read_milvus(answer: Fields) -> Iterator[Json]:
    for one in _flatten_objects(answer.get("data")):
        yield _search_result(one, _omit_members(one, "id", "distance"), "distance")


def _read_bedrock(answer: Fields) -> Iterator[Json]:
    for one in _flatten_objects(answer.get("retrievalResults")):
        yield {"id": one.get("location"), "score": one.get("score"), "content": one.get("content")}


def _score_reader(scored: str, *without: str) -> Callable[[Json], Iterator[Json]]:
    """Make a reader of pieces whose score has this name, and whose content is everything else."""

    def read(results: Json) -> Iterator[Json]:
        for one in _flatten_objects(results):
            yield _search_result(one, _omit_members(one, "id", scored, *without), scored)

    return read


def _read_contexts(answer: Fields) -> Iterator[Json]:
    """Read the contexts of Vertex's RAG."""
    for one in _flatten_objects(as_object(answer.get("contexts")).get("contexts")):
        yield {"id": one.get("sourceUri"), "score": one.get("score"), "content": one.get("text")}


def _read_documents(answer: Fields) -> Iterator[Json]:
    """Read MongoDB's documents."""
    for one in _flatten_objects(answer.get("documents")):
        yield _search_result(one, _omit_members(one, "_id", "score"), id_="_id")


def _read_memories(answer: Fields) -> Iterator[Json]:
    for one in _flatten_objects(answer.get("memoryRecordSummaries")):
        yield _search_result(one, one.get("content"), id_="memoryRecordId")


def _read_batch(answer: Fields) -> Iterator[Json]:
    """Read a batch of searches, each with hits; or else plain pieces."""
    for one in _flatten_objects(answer.get("results")):
        if "hits" in one:
            yield from _read_hits(one)
        else:
            yield _search_result(one, one.get("document") or _omit_members(one, "id", "score"))


_READERS: Final[Mapping[str, Callable[[Fields], Iterator[Json]]]] = {
    "matches": _read_pinecone,
    "vectors": _read_vectors,
    "result": _read_points,
    "ids": _read_chroma,
    "hits": _read_elastic,
    "responses": _read_elastic,
    "docs": _read_docs,
    "value": _read_azure,
    "data": _read_milvus,
    "retrievalResults": _read_bedrock,
    "results": _read_batch,
    "rows": lambda answer: _score_reader("$dist", "vector")(answer.get("rows")),
    "contexts": _read_contexts,
    "documents": _read_documents,
    "memoryRecordSummaries": _read_memories,
}
"""Readers by a member that the answer has."""


DIALECT: Final = Dialect(
    name="vectors",
    claim=claim,
    precedence=8,  # claims paths that are not only a database's
    headers=("x-pinecone-api-version",),
    services=(
        Service(
            provider=None,
            host_pattern=r".+\.(pinecone\.io|weaviate\.network|weaviate\.cloud|qdrant\.io|trychroma\.com)",
            only_models=False,
            unclaimed_kind=always_retrieval,
        ),
    ),
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=never_streamed,
    why_no_answer="each database has a form of its own for what it found",
)
