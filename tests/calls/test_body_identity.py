"""Whose a call is, by its body: the requests of agents and gateways, as captures and their sources show them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Json
from calls.project_runs import RUN_ID
from calls.request_identifiers import MAX_LENGTH, body_identifiers, run_id_for
from tests.calls.strategies import json_values

UUID = "3f2a9c1e-8b7d-4c6a-9e5f-0a1b2c3d4e5f"
RUN_UUID = "0b5c8e0fe4b04c7fa2a6dcb4e8b1f9d3"


@pytest.mark.parametrize(
    ("body", "source", "name"),
    [
        # Claude Code before 2.1.86, and as of then (coder/aibridge 241)
        ({"metadata": {"user_id": f"user_{'0a' * 32}_account_{UUID[::-1]}_session_{UUID}"}}, "metadata.user_id", UUID),
        ({"metadata": {"user_id": f"user_{'0a' * 32}_account__session_{UUID}"}}, "metadata.user_id", UUID),
        (
            {"metadata": {"user_id": json.dumps({"device_id": "0a" * 32, "account_uuid": "", "session_id": UUID})}},
            "metadata.user_id",
            UUID,
        ),
        # OpenAI's Agents SDK (run_grouping.py), Codex
        ({"prompt_cache_key": f"agents-sdk:run:{RUN_UUID}"}, "prompt_cache_key", f"agents-sdk:run:{RUN_UUID}"),
        ({"prompt_cache_key": UUID}, "prompt_cache_key", UUID),
        # A session of the Agents SDK, digested by it
        (
            {"prompt_cache_key": f"agents-sdk:session:{'0a' * 16}"},
            "prompt_cache_key",
            f"agents-sdk:session:{'0a' * 16}",
        ),
        # OpenAI's metadata, LiteLLM, OpenRouter, Langfuse's wrapper
        ({"metadata": {"session_id": "ticket-904"}}, "metadata.session_id", "ticket-904"),
        ({"litellm_session_id": "s-1"}, "litellm_session_id", "s-1"),
        ({"session_id": "s-2"}, "session_id", "s-2"),
        ({"metadata": {"langfuse_session_id": "s-3"}}, "metadata.langfuse_session_id", "s-3"),
        # Responses with a conversation, either way it is named
        ({"conversation": "conv_689667905b048191"}, "conversation", "conv_689667905b048191"),
        ({"conversation": {"id": "conv_689667905b048191"}}, "conversation", "conv_689667905b048191"),
    ],
)
def test_a_body_names_the_run_that_its_sender_means(body: dict[str, Json], source: str, name: str) -> None:
    assert body_identifiers({"model": "m", "messages": [], **body}) == ((f"body/{source}", name),)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"user": "user-7", "safety_identifier": "x", "metadata": {"user_id": "user-7"}},
        # Of a prompt that many runs share
        {"prompt_cache_key": "support-agent-v3"},
        {"prompt_cache_key": f"agents-sdk:other:{'0a' * 16}"},
        {"metadata": {"user_id": '{"session_id": 7}'}},
        {"metadata": {"user_id": "{" * 500}},
        {"metadata": {"session_id": ""}},
        {"metadata": {"session_id": "   "}},
        {"metadata": {"session_id": "a\nb"}},
        {"metadata": {"session_id": "x" * (MAX_LENGTH + 1)}},
        {"metadata": {"session_id": ["a"]}},
        {"metadata": ["session_id"]},
        {"conversation": {"id": None}},
        ["metadata"],
        "metadata",
        None,
    ],
)
def test_what_names_no_run_is_none(body: object) -> None:
    assert body_identifiers(body) == ()  # type: ignore[arg-type] # foreign on purpose


def test_everything_that_is_said_is_kept_strongest_first() -> None:
    body: Json = {"session_id": "b", "prompt_cache_key": UUID, "metadata": {"session_id": "a"}}
    assert body_identifiers(body) == (
        ("body/metadata.session_id", "a"),
        ("body/session_id", "b"),
        ("body/prompt_cache_key", UUID),
    )


@given(json_values)
def test_any_body_is_read(body: Json) -> None:
    body_identifiers(body)
    body_identifiers({"metadata": body, "conversation": body, "session_id": body})


@given(st.text())
def test_every_name_becomes_one_that_a_run_can_have(name: str) -> None:
    assert RUN_ID.fullmatch(run_id_for(name))
    assert run_id_for(run_id_for(name)) == run_id_for(name)
