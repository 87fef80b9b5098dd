"""A run is exported as a trace whose spans have ids, times, links, counts and content as recorded."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from calls.events import Gap
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.otlp.spans.names import VERSIONS
from store.query.runs import Runs
from tests.store.otlp.recorded import (
    SECRET,
    agent,
    attributes,
    claude,
    decode_spans,
    export_run,
    from_corpus,
    store_run,
)
from tests.store.samples import NOON, SECOND
from tests.support.corpus import cassettes


def kinds(spans: list[Span]) -> list[str]:
    return [attributes(span)["openinference.span.kind"] for span in spans]


async def test_a_run_is_a_trace_with_a_span_for_each_call(database: Database) -> None:
    run = await store_run(database, agent())
    spans = decode_spans(await export_run(database, run))
    *calls, root = spans
    assert kinds(spans) == ["LLM", "TOOL", "RETRIEVER", "EMBEDDING", "LLM", "LLM", "AGENT"]
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert len({span.span_id for span in spans}) == len(spans)
    assert root.name == "invoke_agent night"
    assert not root.parent_span_id
    tool = calls[1]
    assert tool.parent_span_id == calls[0].span_id, "the model call that requested it"
    assert {span.parent_span_id for span in calls if span is not tool} == {root.span_id}
    assert tool.name == "execute_tool look_up"
    assert calls[0].name == "chat gpt-4o"
    assert calls[2].name == "retrieval my-index.svc.pinecone.io"
    assert calls[0].start_time_unix_nano == NOON
    assert calls[0].end_time_unix_nano == NOON + 478_901_234, "to the nanosecond, as recorded"
    assert root.start_time_unix_nano <= NOON
    assert root.end_time_unix_nano >= calls[-1].end_time_unix_nano
    assert [span.kind for span in (calls[0], root)] == [Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL]


async def test_every_export_of_a_run_is_the_same(database: Database) -> None:
    run = await store_run(database, agent())
    assert await export_run(database, run, content=True) == await export_run(database, run, content=True)


async def test_a_run_that_was_recorded_again_is_another_trace(database: Database) -> None:
    run = await store_run(database, agent())
    first = decode_spans(await export_run(database, run))
    await Runs(database).delete(run)
    await store_run(database, agent())
    second = decode_spans(await export_run(database, run))
    assert first[0].trace_id != second[0].trace_id


async def test_tokens_costs_and_parameters_are_numbers_of_both_vocabularies(database: Database) -> None:
    span = attributes(decode_spans(await export_run(database, await store_run(database, agent())))[0])
    expected: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o-2024-08-06",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.reasoning.output_tokens": 8,
        "gen_ai.conversation.id": "night",
        "gen_ai.agent.name": "scout",
        "server.address": "api.openai.com",
        "http.response.status_code": 200,
        "llm.model_name": "gpt-4o-2024-08-06",
        "llm.token_count.prompt": 120,
        "llm.token_count.completion": 30,
        "llm.token_count.total": 150,
        "llm.token_count.prompt_details.cache_read": 20,
        "llm.token_count.completion_details.reasoning": 8,
        "session.id": "night",
        "playhead.step": 1,
    }
    assert {name: span.get(name) for name in expected} == expected
    # 100 tokens at $2.50, 20 cached ones at $1.25, and 30 at $10 a million.
    assert span["llm.cost.total"] == pytest.approx(0.000575)
    assert span["llm.cost.prompt"] == pytest.approx(0.000275)
    assert span["llm.cost.completion"] == pytest.approx(0.0003)


async def test_tokens_that_a_provider_counts_apart_are_part_of_the_input(database: Database) -> None:
    span = attributes(decode_spans(await export_run(database, await store_run(database, claude())))[0])
    assert span["gen_ai.usage.input_tokens"] == span["llm.token_count.prompt"] == 350
    assert span["gen_ai.usage.cache_read.input_tokens"] == 300
    assert span["gen_ai.usage.cache_write.input_tokens"] == span["llm.token_count.prompt_details.cache_write"] == 40


@pytest.mark.parametrize("made", [agent, claude])
async def test_without_content_nothing_that_was_said_is_exported(database: Database, made: Any) -> None:
    run = await store_run(database, made())
    said = b"".join(await export_run(database, run)).lower()
    assert SECRET.encode() not in said
    assert SECRET.encode() in b"".join(await export_run(database, run, content=True)).lower()


async def test_content_is_exported_in_both_vocabularies(database: Database) -> None:
    first, tool, found, embedded, failed, last, root = map(
        attributes, decode_spans(await export_run(database, await store_run(database, agent()), content=True))
    )
    assert first["llm.input_messages.0.message.role"] == "system"
    assert first["llm.input_messages.1.message.content"] == "Where is zanzibar?"
    assert first["llm.output_messages.0.message.tool_calls.0.tool_call.function.name"] == "look_up"
    arguments = first["llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments"]
    assert json.loads(arguments) == {"place": "zanzibar"}
    output = json.loads(first["gen_ai.output.messages"])
    part = {"type": "tool_call", "id": "call_1", "name": "look_up", "arguments": {"place": "zanzibar"}}
    assert output == [{"role": "assistant", "parts": [part], "finish_reason": "tool_calls"}]
    assert last["llm.input_messages.3.message.role"] == "tool"
    assert last["llm.input_messages.3.message.tool_call_id"] == "call_1"
    assert last["output.value"] == "zanzibar!"
    assert json.loads(tool["input.value"]) == json.loads(tool["gen_ai.tool.call.arguments"]) == {"place": "zanzibar"}
    assert (tool["tool.name"], tool["gen_ai.tool.call.id"]) == ("look_up", "call_1")
    assert found["retrieval.documents.0.document.id"] == "doc-1"
    assert found["retrieval.documents.0.document.score"] == 0.75
    assert found["retrieval.documents.0.document.content"] == "zanzibar again"
    assert json.loads(found["retrieval.documents.0.document.metadata"]) == {"page": 3}
    assert found["gen_ai.retrieval.query.text"] == "zanzibar"
    assert embedded["embedding.embeddings.0.embedding.text"] == "zanzibar"
    assert root["input.value"] == "Where is zanzibar?"
    assert root["output.value"] == "zanzibar!"
    assert failed["error.type"] == "429"


async def test_anthropics_messages_are_distinguished(database: Database) -> None:
    _, last, _ = map(
        attributes, decode_spans(await export_run(database, await store_run(database, claude()), content=True))
    )
    roles = [last[f"llm.input_messages.{number}.message.role"] for number in range(4)]
    assert roles == ["system", "user", "assistant", "tool"]
    assert last["llm.input_messages.2.message.tool_calls.0.tool_call.id"] == "toolu_1"
    assert last["llm.input_messages.3.message.content"] == "zanzibar is far"
    assert json.loads(last["gen_ai.system_instructions"]) == [{"type": "text", "content": "Know zanzibar."}]
    assert [message["role"] for message in json.loads(last["gen_ai.input.messages"])] == ["user", "assistant", "tool"]


async def test_errors_have_a_status_and_a_type(database: Database) -> None:
    lean = decode_spans(await export_run(database, await store_run(database, agent())))[4]
    assert (lean.status.code, lean.status.message) == (Status.STATUS_CODE_ERROR, "HTTP 429")
    full = decode_spans(await export_run(database, "night", content=True))[4]
    assert full.status.message == "too much zanzibar"
    assert [event.name for event in full.events] == ["exception"]


async def test_gaps_and_cut_answers_are_events(database: Database) -> None:
    *others, last = agent()
    cut = replace(last, outcome="server_closed")
    run = await store_run(database, [*others, cut])
    await BatchWriter(database).write_batch((), [Gap(run, NOON + SECOND, "the disk was full", None, 3)])
    *_, span, root = decode_spans(await export_run(database, run))
    assert "playhead.cut_answer" in [event.name for event in span.events] or attributes(span)["playhead.complete"]
    assert attributes(span)["error.type"] == "server_closed"
    (gap,) = root.events
    assert (gap.name, gap.time_unix_nano) == ("playhead.gap", NOON + SECOND)
    assert attributes(gap)["playhead.reason"] == "the disk was full"
    assert attributes(root)["playhead.complete"] is False


async def test_a_fork_is_linked_to_the_trace_of_its_parent(database: Database) -> None:
    parent = decode_spans(await export_run(database, await store_run(database, agent())))[-1]
    fork = await store_run(database, agent("fork"))
    await Runs(database).put(fork, NOON, parent="night", forked_at=3)
    root = decode_spans(await export_run(database, fork))[-1]
    (link,) = root.links
    assert (link.trace_id, link.span_id) == (parent.trace_id, parent.span_id)
    assert attributes(root)["playhead.parent"] == "night"
    await Runs(database).delete("night")
    assert not decode_spans(await export_run(database, fork))[-1].links


async def test_a_run_that_does_not_exist_is_nothing(database: Database) -> None:
    assert await export_run(database, "nowhere") == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_version_of_the_conventions_has_its_names(database: Database, version: str) -> None:
    span = attributes(
        decode_spans(await export_run(database, await store_run(database, agent()), content=True, semconv=version))[0]
    )
    known = {*VERSIONS[version].values()}
    assert {name for name in span if name.startswith("gen_ai.")} <= known
    assert ("gen_ai.system" in span) == (version == "1.36")
    assert ("gen_ai.input.messages" in span) == (version != "1.36")


async def test_every_run_of_the_corpus_can_be_exported(database: Database) -> None:
    for number, tape in enumerate(cassettes()[::25]):
        run = await store_run(database, from_corpus(tape, f"tape-{number}"))
        *calls, root = decode_spans(await export_run(database, run, content=True))
        assert not root.parent_span_id
        assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in calls)
