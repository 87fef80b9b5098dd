"""Searches: at whose paths, with which keys, and what they found. GraphQL in one spelling; JSON by lines."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps, parse_json
from calls.derive import derive_call
from calls.dialects.table import BY_NAME
from calls.keys.graphql import normalize_document
from calls.keys.key import make_key
from calls.model import CallKind, Headers, Json
from calls.route import find_route
from tests.calls.sample_requests import PROFILES, TICKETS, explained_key, json_request, key, request
from tests.calls.test_derive import CAPTURES, answered_exchange

PINECONE = "https://books-1a2b.svc.us-east-1.pinecone.io/query"
ELASTIC = "http://localhost:9200/docs/_msearch"
GRAPHQL = "https://api.example.com/graphql"
WEAVIATE = "http://localhost:8080/v1/graphql"
LOCAL: Headers = (("X-Pinecone-API-Version", "2025-04"),)


@pytest.mark.parametrize(
    ("method", "host", "path", "headers", "operation", "kind"),
    [
        ("POST", "a-1.svc.pinecone.io", "/query", (), "search", "retrieval"),
        ("POST", "localhost:5080", "/query", LOCAL, "search", "retrieval"),
        ("GET", "a-1.svc.pinecone.io", "/vectors/fetch", (), "search", "retrieval"),
        ("POST", "a-1.svc.pinecone.io", "/records/namespaces/n/search", (), "search", "retrieval"),
        ("POST", "a-1.svc.pinecone.io", "/vectors/upsert", (), "write", "tool"),
        ("POST", "localhost:6333", "/collections/c/points/search", (), "search", "retrieval"),
        ("POST", "localhost:6333", "/collections/c/points/query/batch", (), "search", "retrieval"),
        ("POST", "localhost:6333", "/collections/c/points", (), "search", "retrieval"),
        ("PUT", "localhost:6333", "/collections/c/points", (), "write", "tool"),
        ("POST", "localhost:8000", "/api/v2/tenants/t/databases/d/collections/u/query", (), "search", "retrieval"),
        ("POST", "localhost:8000", "/api/v1/collections/u/add", (), "write", "tool"),
        ("GET", "localhost:9200", "/docs/_search", (), "search", "retrieval"),
        ("POST", "localhost:9200", "/_msearch", (), "search", "retrieval"),
        ("POST", "localhost:9200", "/_bulk", (), "write", "tool"),
        ("POST", "x.search.windows.net", "/indexes/i/docs/search", (), "search", "retrieval"),
        ("POST", "localhost:19530", "/v2/vectordb/entities/search", (), "search", "retrieval"),
        (
            "POST",
            "bedrock-agent-runtime.us-east-1.amazonaws.com",
            "/knowledgebases/K/retrieve",
            (),
            "search",
            "retrieval",
        ),
    ],
)
def test_where_is_searched(method: str, host: str, path: str, headers: Headers, operation: str, kind: CallKind) -> None:
    found = find_route(method, host, path, headers)
    assert (found.dialect, found.operation, found.kind) == ("vectors", operation, kind)


@pytest.mark.parametrize("path", ["/query", "/search", "/collections/c", "/docs/_settings", "/indexes"])
def test_what_may_be_anybody_s_is_nobody_s(path: str) -> None:
    assert find_route("POST", "shop.example.com", path).dialect == "generic"


def test_a_search_is_a_call_that_says_what_was_found() -> None:
    data = (CAPTURES / "vectors" / "pinecone.json").read_bytes()
    call = derive_call(answered_exchange(PINECONE, {"vector": [0.1], "topK": 2}, data), PROFILES)
    assert (call.kind, call.operation, call.complete) == ("retrieval", "search", True)
    first, second = call.tool_results
    assert first == {"id": "a", "score": Decimal("0.82"), "content": {"text": "once"}}
    assert second["id"] == "b"  # type: ignore[index,call-overload] # it is an object


def test_a_search_counts_by_everything_that_is_asked() -> None:
    plain = {"vector": [0.1, 0.25], "topK": 2, "filter": {"a": {"$eq": 1}}}
    assert key(PINECONE, plain) == key(PINECONE, {**plain, "namespace": None})
    others: list[dict[str, object]] = [{"topK": 3}, {"vector": [0.1, 0.26]}, {"filter": {}}, {"newField": 1}]
    for other in others:
        assert key(PINECONE, plain) != key(PINECONE, {**plain, **other})
    assert key(PINECONE, plain) != key(PINECONE.replace("books", "films"), plain)


def test_a_key_in_the_body_is_a_secret() -> None:
    made = [
        explained_key("https://api.tavily.com/search", {"query": "q", "api_key": token}) for token in ("one", "two")
    ]
    assert made[0].key == made[1].key
    assert "one" not in str(made[0].selected_fields)


def lines(*values: Any, indent: str = "", end: str = "\n") -> bytes:
    return "".join(indent + json.dumps(value) + end for value in values).encode()


@pytest.mark.parametrize(
    "media", ["application/x-ndjson", "application/json", "application/vnd.elasticsearch+x-ndjson"]
)
def test_json_by_lines_counts_by_its_values(media: str) -> None:
    head: dict[str, Json] = {"index": "i"}
    body: dict[str, Json] = {"query": {"match_all": {}}}
    sent = [
        lines(head, body),
        lines(dict(head), body, indent=" ", end="\r\n\r\n"),
        b'{"index":"i"}\n{"query" : {"match_all": {}}}',
    ]
    made = [make_key(request(ELASTIC, data, ("content-type", media)), PROFILES) for data in sent]
    assert len({one.key for one in made}) == 1
    assert made[0].warnings == ()
    assert made[0].request_body == [head, body]
    other = make_key(request(ELASTIC, lines(body, head), ("content-type", media)), PROFILES)
    assert other.key != made[0].key


def test_lines_of_which_one_is_no_json_count_by_their_bytes() -> None:
    made = make_key(request(ELASTIC, b'{"a": 1}\n{"b": \n', ("content-type", "application/json")), PROFILES)
    assert "raw bytes" in made.warnings[0]


QUERY = 'query Q($a: Int = 1) { user(id: $a, name: "a, b  # c") { ...F @include(if: true) posts(first: -1.5e3) } }'

SPELLINGS = [
    'query Q($a:Int=1){user(id:$a name:"a, b  # c"){...F@include(if:true)posts(first:-1.5e3)}}',
    "\ufeff# a comment, with words\n" + QUERY.replace(" ", "\n\t").replace("a,\n\tb\n\t\n\t#\n\tc", "a, b  # c"),
    QUERY.replace("{ ", "{,,, "),
]


@pytest.mark.parametrize("other", SPELLINGS)
def test_a_document_counts_in_one_spelling(other: str) -> None:
    assert normalize_document(other) == normalize_document(QUERY)
    assert key(GRAPHQL, {"query": other}) == key(GRAPHQL, {"query": QUERY, "variables": None})
    assert explained_key(GRAPHQL, {"query": other}).warnings == ()


@pytest.mark.parametrize(
    "other",
    [
        QUERY.replace("a, b  # c", "a, b # c"),
        QUERY.replace("posts", "post s"),
        QUERY.replace("-1.5e3", "-1.5e4"),
        QUERY.replace("...F", "... F { x }"),
        'query { a(b: """block  string""") }',
        'query { a(b: """block string""") }',
        'query { a(b: """\\""" block""") }',
    ],
)
def test_a_document_that_says_something_else_is_another(other: str) -> None:
    assert key(GRAPHQL, {"query": other}) != key(GRAPHQL, {"query": QUERY})


@pytest.mark.parametrize(
    "other", ['{ a(b: "unfinished) }', '{ a(b: """unfinished) }', "{ a ; b }", "{ a(b: 1x) }", "\\", '"']
)
def test_what_is_no_graphql_counts_as_it_is(other: str) -> None:
    assert normalize_document(other) == other


def test_operation_and_variables_count() -> None:
    plain = {"query": QUERY, "operationName": "Q", "variables": {"a": 1}}
    assert key(GRAPHQL, plain) == key(GRAPHQL, {**plain, "extensions": {}})
    for other in (
        {"operationName": "R"},
        {"variables": {"a": 2}},
        {"extensions": {"persistedQuery": {"sha256Hash": "x"}}},
    ):
        assert key(GRAPHQL, plain) != key(GRAPHQL, {**plain, **other})


@given(st.text(st.sampled_from('{}()!:$"\\#,. \na1_-é')))
def test_no_document_surprises_the_reader_and_one_spelling_is_its_own(document: str) -> None:
    once = normalize_document(document)
    assert normalize_document(once) == once


def test_a_hostile_document_is_read_in_linear_time() -> None:
    for document in ('"""' + '\\"""' * 50_000, '"' + "\\\\" * 100_000, "#" * 200_000, "{" * 200_000):
        assert normalize_document(document) is not None


def test_weaviate_s_searches_are_found_in_their_data() -> None:
    data = (CAPTURES / "graphql" / "weaviate.json").read_bytes()
    call = derive_call(answered_exchange(WEAVIATE, {"query": "{ Get { Article { text } } }"}, data), PROFILES)
    assert (call.kind, call.dialect, len(call.tool_results)) == ("retrieval", "graphql", 2)
    assert find_route("POST", "shop.example.com", "/graphql").kind == "tool"


def test_any_other_tool_still_works_without_configuration() -> None:
    assert make_key(json_request(TICKETS, {"query": "{ a  b }"}), PROFILES).dialect == "generic"
    assert key(TICKETS, {"query": "{ a  b }"}) != key(TICKETS, {"query": "{ a b }"})


FOUND: list[tuple[str, str, Any, list[Any]]] = [
    (
        "vectors",
        "upstash",
        {"result": [{"id": "a", "score": 0.9, "metadata": {"k": 1}, "data": "once"}]},
        [{"id": "a", "score": 0.9, "content": {"metadata": {"k": 1}, "data": "once"}}],
    ),
    (
        "vectors",
        "turbopuffer",
        {"rows": [{"id": 1, "$dist": 0.1, "text": "once"}], "billing": {"billable_logical_bytes_queried": 1}},
        [{"id": 1, "score": 0.1, "content": {"text": "once"}}],
    ),
    (
        "vectors",
        "typesense",
        {"found": 1, "hits": [{"document": {"id": "a", "text": "once"}, "highlights": [], "vector_distance": 0.25}]},
        [{"id": "a", "score": 0.25, "content": {"id": "a", "text": "once"}}],
    ),
    (
        "vectors",
        "s3",
        {"vectors": [{"key": "a", "distance": 0.25, "metadata": {"text": "once"}}], "distanceMetric": "cosine"},
        [{"id": "a", "score": 0.25, "content": {"text": "once"}}],
    ),
    (
        "vectors",
        "mongodb",
        {"documents": [{"_id": "a", "text": "once", "score": 0.9}]},
        [{"id": "a", "score": 0.9, "content": {"text": "once"}}],
    ),
    (
        "vectors",
        "vertex_rag",
        {"contexts": {"contexts": [{"sourceUri": "gs://b/o", "text": "once", "score": 0.3}]}},
        [{"id": "gs://b/o", "score": 0.3, "content": "once"}],
    ),
    (
        "vectors",
        "meilisearch_multi",
        {"results": [{"indexUid": "i", "hits": [{"id": 1, "title": "once"}], "query": "q"}]},
        [{"id": 1, "score": None, "content": {"id": 1, "title": "once"}}],
    ),
    (
        "vectors",
        "databricks",
        {
            "manifest": {"column_count": 3, "columns": [{"name": "id"}, {"name": "text"}, {"name": "score"}]},
            "result": {"row_count": 1, "data_array": [["a", "once", 0.5]]},
        },
        [{"id": "a", "score": 0.5, "content": {"id": "a", "text": "once"}}],
    ),
    (
        "searches",
        "brave",
        {
            "query": {"original": "q"},
            "type": "search",
            "web": {
                "type": "search",
                "results": [{"title": "E", "url": "https://e.example", "description": "once", "age": "2 days ago"}],
            },
        },
        [
            {
                "id": "https://e.example",
                "score": None,
                "content": {"title": "E", "url": "https://e.example", "description": "once", "age": "2 days ago"},
            }
        ],
    ),
    (
        "searches",
        "serper",
        {
            "searchParameters": {"q": "q", "type": "search"},
            "organic": [{"title": "E", "link": "https://e.example", "snippet": "once", "position": 1}],
            "credits": 1,
        },
        [
            {
                "id": "https://e.example",
                "score": None,
                "content": {"title": "E", "link": "https://e.example", "snippet": "once", "position": 1},
            }
        ],
    ),
    (
        "searches",
        "firecrawl_search",
        {
            "success": True,
            "data": {
                "web": [
                    {"url": "https://e.example", "title": "E", "description": "once", "position": 1, "markdown": "# E"}
                ]
            },
        },
        [
            {
                "id": "https://e.example",
                "score": None,
                "content": {
                    "url": "https://e.example",
                    "title": "E",
                    "description": "once",
                    "position": 1,
                    "markdown": "# E",
                },
            }
        ],
    ),
    (
        "searches",
        "firecrawl_page",
        {
            "success": True,
            "data": {"markdown": "# E", "metadata": {"sourceURL": "https://e.example", "statusCode": 200}},
        },
        [
            {
                "id": "https://e.example",
                "score": None,
                "content": {"markdown": "# E", "metadata": {"sourceURL": "https://e.example", "statusCode": 200}},
            }
        ],
    ),
]
"""Answers of stores and services, as small as they can be, and the pieces that are in them."""


@pytest.mark.parametrize(("dialect", "answer", "pieces"), [pytest.param(d, a, p, id=n) for d, n, a, p in FOUND])
def test_what_was_found_comes_out_as_pieces(dialect: str, answer: Any, pieces: list[Any]) -> None:
    found = BY_NAME[dialect].summarize_answer(parse_json(json.dumps(answer).encode())).results
    assert json.loads(dumps(found)) == pieces
