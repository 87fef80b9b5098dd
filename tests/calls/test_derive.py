"""From an exchange to the call that it means."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.derive import derive_call, deriver, unkeyed_deriver
from calls.model import Body, Call, Exchange, Outcome, Response, ToolCall
from calls.redaction.redactor import Redactor
from tests.calls.sample_requests import ANTHROPIC, OPENAI, PROFILES, TICKETS, VERSION, chat, json_request, user
from tests.calls.strategies import exchanges

CLEAN = Redactor(key=b"k" * 32).redact_text
CAPTURES = Path(__file__).parent / "captures"


def answered_exchange(
    url: str,
    body: Any,
    data: bytes,
    media: str = "application/json",
    *,
    outcome: Outcome = "completed",
    encoding: str = "",
    truncated: bool = False,
) -> Exchange:
    headers = (("Content-Type", media), *((("Content-Encoding", encoding),) if encoding else ()))
    return Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run="run",
        request=json_request(url, body, VERSION),
        response=Response(
            status=200, headers=headers, body=Body(data=data, size=len(data) + truncated, truncated=truncated)
        ),
        outcome=outcome,
        started_at=0,
        first_byte_at=0,
        ended_at=1,
    )


def derive_stream(url: str, body: Any, name: str, **more: Any) -> Call:
    data = (CAPTURES / name).read_bytes()
    return derive_call(answered_exchange(url, body, data, "text/event-stream", **more), PROFILES)


def test_a_streamed_chat_is_a_call() -> None:
    tool = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    body = chat(user("hi"), {"role": "assistant", "content": "…"}, tool, temperature=0.5, stream=True, user="u")
    call = derive_stream(OPENAI, body, "openai_chat/text.sse")
    assert (call.kind, call.provider, call.dialect, call.operation) == ("model", "openai", "openai_chat", "chat")
    assert (call.model_requested, call.model_returned, call.system_fingerprint) == ("m", "gpt-4o-2024-08-06", "fp_1")
    assert (call.text, call.finish_reason) == ("Grüß dich 😀", "stop")
    assert (call.usage.input_tokens, call.usage.cached_tokens, call.usage.reasoning_tokens) == (9, 4, 1)
    assert json.loads(json.dumps(call.params, default=float)) == {"temperature": 0.5}
    assert call.tool_results == ({"id": "call_1", "name": None, "content": "42"},)
    assert (call.streamed, call.complete) == (True, True)


def test_a_streamed_message_is_a_call() -> None:
    results = [{"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True}]
    asked = chat({"role": "assistant", "content": [{"type": "tool_use"}]}, user(results), max_tokens=9, stream=True)
    call = derive_stream(ANTHROPIC, asked, "anthropic/thinking_and_tools.sse")
    assert (call.provider, call.dialect, call.params) == ("anthropic", "anthropic", {"max_tokens": 9})
    assert call.tool_calls[0] == ToolCall(id="toolu_1", name="lookup", arguments={"id": 9007199254740993})
    assert call.tool_results == ({"id": "t1", "content": "no", "is_error": True},)
    assert call.finish_reason == "tool_use"


def test_only_the_results_since_the_last_word_of_the_assistant_are_this_call_s() -> None:
    def result(name: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": name, "content": name}

    spoke = {"role": "assistant", "content": None}
    call = derive_stream(OPENAI, chat(spoke, result("old"), spoke, result("a"), result("b")), "openai_chat/text.sse")
    assert [one["id"] for one in call.tool_results] == ["a", "b"]  # type: ignore[index,call-overload] # objects


def test_a_client_that_leaves_after_the_end_mark_has_a_complete_answer() -> None:
    assert derive_stream(OPENAI, chat(), "openai_chat/text.sse", outcome="client_closed").complete
    assert not derive_stream(OPENAI, chat(), "openai_chat/cut_in_a_tool_call.sse", outcome="client_closed").complete


def test_an_answer_of_which_bytes_are_missing_is_never_complete() -> None:
    assert not derive_stream(OPENAI, chat(), "openai_chat/text.sse", truncated=True).complete


@pytest.mark.parametrize("outcome", ["client_closed", "server_closed", "timed_out"])
@pytest.mark.parametrize("data", [b"text", b"{}"])
def test_only_http_can_tell_where_what_is_no_stream_ends(data: bytes, outcome: Outcome) -> None:
    whole = answered_exchange(TICKETS, {}, data, "text/plain")
    assert derive_call(whole, PROFILES).complete
    assert not derive_call(replace(whole, outcome=outcome), PROFILES).complete


def test_an_exchange_without_an_answer_means_a_call_without_one() -> None:
    refused = replace(answered_exchange(OPENAI, chat(), b""), response=None, outcome="refused")
    call = derive_call(refused, PROFILES)
    assert (call.answer, call.text, call.complete, call.streamed) == (None, None, False, False)
    assert call.model_requested == "m"


def test_a_page_of_html_from_a_gateway_is_no_answer() -> None:
    call = derive_call(answered_exchange(OPENAI, chat(), b"<html>502</html>", "text/html"), PROFILES)
    assert (call.answer, call.streamed) == (None, False)


@pytest.mark.parametrize("encoding", ["gzip", "", "br"])
def test_the_bytes_are_believed_before_the_label(encoding: str) -> None:
    body = (CAPTURES / "openai_chat" / "whole.json").read_bytes()
    packed = gzip.compress(body)
    assert (
        derive_call(
            answered_exchange(OPENAI, chat(), packed, encoding="" if encoding == "br" else encoding), PROFILES
        ).text
        == "Hi"
    )
    assert derive_call(answered_exchange(OPENAI, chat(), body, encoding="gzip"), PROFILES).text == "Hi"


SECRETS = {"password": "correcthorse99battery", "note": "use sk-proj-" + "Q7w8E9r0" * 5, "kept": "né"}


@pytest.mark.parametrize("derive", [deriver(PROFILES, CLEAN), unkeyed_deriver(CLEAN)])
@pytest.mark.parametrize("media", ["application/json", "text/plain", "application/gzip"])
def test_secrets_in_an_answer_that_does_not_say_that_it_is_compressed_are_in_no_call(
    derive: Callable[[Exchange], Call], media: str
) -> None:
    """Its bytes were recorded as a file's, which redaction does not open (docs/security.md)."""
    packed = gzip.compress(json.dumps(SECRETS, ensure_ascii=False).encode())
    call = derive(answered_exchange(TICKETS, {}, packed, media))
    assert not re.search("horse99|Q7w8E9", repr(call))
    assert "né" in repr(call)
    assert not re.search("horse99|Q7w8E9", repr(derive(answered_exchange(OPENAI, chat(), packed, media))))


def test_a_large_file_that_does_not_say_that_it_is_compressed_is_not_read() -> None:
    packed = gzip.compress(json.dumps([*range(800_000)]).encode())
    assert deriver(PROFILES, CLEAN)(answered_exchange(TICKETS, {}, packed)).answer is None


def test_what_cannot_be_opened_is_no_answer_and_no_crash() -> None:
    call = derive_call(answered_exchange(OPENAI, chat(), b"\x1f\x8b\x08broken", encoding="gzip"), PROFILES)
    assert (call.answer, call.complete) == (None, False)


def test_any_api_is_a_call_without_configuration() -> None:
    call = derive_call(answered_exchange(TICKETS, {"query": "q"}, b'{"items": []}'), PROFILES)
    assert (call.kind, call.provider, call.dialect) == ("tool", "tickets.example.com", "generic")
    assert (call.request, call.answer, call.complete) == ({"query": "q"}, {"items": []}, True)
    assert (call.profile, call.warnings) == ("rest/1", ())


@given(exchanges(), st.sampled_from([OPENAI, ANTHROPIC, TICKETS]))
def test_every_exchange_means_a_call(exchange: Exchange, url: str) -> None:
    request = replace(exchange.request, url=url, method="POST", headers=(*exchange.request.headers, VERSION))
    call = derive_call(replace(exchange, request=request), PROFILES)
    assert call.exchanges == (exchange.id,)
