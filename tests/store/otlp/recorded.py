"""Runs that are exported in tests: agents in several dialects, and what the corpus has."""

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from calls.derive import derive_call
from calls.model import Call, Exchange
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.otlp.run_export import RunExport
from store.otlp.target import SpanOptions
from store.pricing.prices import call_cost
from store.query.runs import Runs
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, SECOND, exchange
from tests.support.corpus import Cassette

SECRET = "zanzibar"
"""A word that only prompts, answers, arguments and results have."""


def derive(of: Exchange) -> Call:
    return derive_call(of, PROFILES)


def make_exchange(number: int, run: str, url: str, asked: Any, answer: Any, **more: Any) -> Exchange:
    """An exchange of JSON, two seconds after the one before. Each run has ids of its own."""
    request, response = json.dumps(asked).encode(), json.dumps(answer).encode()
    unique = number + 1000 * zlib.crc32(run.encode())
    return exchange(unique, run=run, at=NOON + 2 * number * SECOND, url=url, request=request, response=response, **more)


def agent(run: str = "night") -> list[Exchange]:
    """An agent of OpenAI: a tool call that is executed, a retrieval, embeddings, a failure, and a cut answer."""
    chat = "https://api.openai.com/v1/chat/completions"
    asked = [{"role": "system", "content": f"Be brief, {SECRET}."}, {"role": "user", "content": f"Where is {SECRET}?"}]
    tool = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look_up", "arguments": json.dumps({"place": SECRET})},
    }
    calls = {"role": "assistant", "content": None, "tool_calls": [tool]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": f"{SECRET} is an island"}
    usage = {
        "prompt_tokens": 120,
        "completion_tokens": 30,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }
    request = {"model": "gpt-4o", "temperature": 0.5, "seed": 7, "stop": [SECRET], "messages": asked}
    definition = {
        "type": "function",
        "function": {"name": "look_up", "description": f"Look up {SECRET}", "parameters": {}},
    }

    def completion(message: Any, finish: str, id_: str) -> Any:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {
            "id": id_,
            "object": "chat.completion",
            "model": "gpt-4o-2024-08-06",
            "choices": [choice],
            "usage": usage,
        }

    found = {"matches": [{"id": "doc-1", "score": 0.75, "metadata": {"text": f"{SECRET} again", "page": 3}}]}
    refused = {"error": {"type": "rate_limit", "message": f"too much {SECRET}"}}
    return [
        make_exchange(
            0,
            run,
            chat,
            {**request, "tools": [definition]},
            completion(calls, "tool_calls", "chatcmpl-1"),
            actor="scout",
        ),
        make_exchange(
            1, run, "https://tools.example.com/places", {"place": SECRET}, {"found": f"{SECRET} is an island"}
        ),
        make_exchange(
            2, run, "https://my-index.svc.pinecone.io/query", {"vector": [0.1], "topK": 1, "query": SECRET}, found
        ),
        make_exchange(
            3,
            run,
            "https://api.openai.com/v1/embeddings",
            {"model": "text-embedding-3-small", "input": [SECRET]},
            {
                "object": "list",
                "model": "text-embedding-3-small",
                "data": [],
                "usage": {"prompt_tokens": 2, "total_tokens": 2},
            },
        ),
        make_exchange(4, run, chat, request, refused, status=429),
        make_exchange(
            5,
            run,
            chat,
            {**request, "messages": [*asked, calls, result]},
            completion({"role": "assistant", "content": f"{SECRET}!"}, "stop", "chatcmpl-2"),
        ),
    ]


def claude(run: str = "claude") -> list[Exchange]:
    """An agent of Anthropic, whose usage counts cached tokens apart."""
    usage = {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 40}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"place": SECRET}}
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-20250514",
        "stop_reason": "tool_use",
    }
    first = {"role": "user", "content": [{"type": "text", "text": f"Where is {SECRET}?"}]}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": f"{SECRET} is far"}
    request = {"model": "claude-sonnet-4-20250514", "max_tokens": 100, "system": f"Know {SECRET}."}
    messages = [first, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    text = {"type": "text", "text": f"{SECRET} is far."}
    headers = (("Content-Type", "application/json"), ("anthropic-version", "2023-06-01"))

    def post(number: int, asked: Any, content: Any, stop: str) -> Exchange:
        one = make_exchange(
            number,
            run,
            "https://api.anthropic.com/v1/messages",
            {**request, "messages": asked},
            {**answer, "content": content, "stop_reason": stop, "usage": usage},
        )
        return replace(one, request=replace(one.request, headers=headers))

    return [post(0, [first], [use], "tool_use"), post(1, messages, [text], "end_turn")]


def from_corpus(tape: Cassette, run: str) -> list[Exchange]:
    """A cassette of the corpus as exchanges of a run."""
    found = []
    for number, one in enumerate(tape.exchanges):
        plain = exchange(
            number + 1000 * zlib.crc32(run.encode()),
            run=run,
            at=NOON + number * SECOND,
            url=one.url,
            status=one.status,
            request=one.request_body,
            response=one.response_body,
        )
        assert plain.response
        found.append(
            replace(
                plain,
                request=replace(plain.request, method=one.method, headers=one.request_headers),
                response=replace(plain.response, headers=one.response_headers),
            )
        )
    return found


async def store_run(database: Database, exchanges: Iterable[Exchange], *, ends: bool = True) -> str:
    """Store exchanges of one run, with their costs, and end it."""
    derived = [(one, derive(one)) for one in exchanges]
    await BatchWriter(database, profile=PROFILES.digest).write_batch(
        [DerivedExchange(one, call, cost=call_cost(one, call)) for one, call in derived]
    )
    run = derived[0][0].run
    if ends:
        await Runs(database).patch(run, ended_at=max(one.started_at for one, _ in derived) + 60 * SECOND)
    return run


async def export_run(database: Database, run: str, **options: Any) -> list[bytes]:
    """The requests with the spans of a run."""
    export = RunExport(database, derive, "default", SpanOptions(**options), NOON + 10_000 * SECOND)
    return [request async for request in export.requests(run)]


def decode_spans(requests: Sequence[bytes]) -> list[Span]:
    """The spans in requests, as OpenTelemetry's own messages."""
    found = ExportTraceServiceRequest.FromString(b"".join(requests))
    return [span for traces in found.resource_spans for scope in traces.scope_spans for span in scope.spans]


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span as plain values."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
