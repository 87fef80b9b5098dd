"""Whose calls are those of agents and gateways, by the heads and bodies that they send: at the door, then at the keeper.

Header sets as their sources and captures show them (wire report, D); what says nothing here (lengths, keys, SDK details) is
left out.
"""

import json
from dataclasses import dataclass, field
from functools import partial

import pytest

from calls.derive import derive
from calls.model import Body, Exchange, Headers, Json, Request
from proxy.identity import identify
from store.filing import filed, trace_of
from store.profiles import shipped

OWNER = "18f3a2"
CHAT = "https://api.openai.com/v1/chat/completions"
RESPONSES = "https://api.openai.com/v1/responses"
MESSAGES = "https://api.anthropic.com/v1/messages?beta=true"
SESSION = "3f2a9c1e-8b7d-4c6a-9e5f-0a1b2c3d4e5f"
OTHER = "9d1c7b52-4e0f-4a8b-b1c6-5f3e2d1c0b9a"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
understood = partial(derive, profiles=shipped(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client and what is known of its request."""

    headers: Headers = ()
    body: dict[str, Json] = field(default_factory=dict)
    url: str = CHAT
    run: str
    source: str
    actor: str | None = None


CLIENTS: dict[str, Client] = {
    "claude code": Client(
        url=MESSAGES,
        headers=(
            ("User-Agent", "claude-cli/2.1.104 (external, cli)"),
            ("X-Claude-Code-Session-Id", SESSION),
            ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
            ("anthropic-version", "2023-06-01"),
            ("x-app", "cli"),
            ("X-Stainless-Retry-Count", "0"),
        ),
        body={"metadata": {"user_id": f"user_{'0a' * 32}_account__session_{SESSION}"}},
        run=SESSION,
        source="x-claude-code-session-id",
    ),
    "a sub-agent of claude code": Client(
        url=MESSAGES,
        headers=(
            ("User-Agent", "claude-cli/2.1.104 (external, cli)"),
            ("X-Claude-Code-Session-Id", SESSION),
            ("x-claude-code-agent-id", "a5591a2"),
            ("x-claude-code-parent-agent-id", "main"),
        ),
        run=SESSION,
        source="x-claude-code-session-id",
        actor="a5591a2",
    ),
    "claude code before 2.1.86": Client(
        url=MESSAGES,
        headers=(("User-Agent", "claude-cli/1.0.83 (external, cli)"), ("x-app", "cli")),
        body={"metadata": {"user_id": f"user_{'0a' * 32}_account_{OTHER}_session_{SESSION}"}},
        run=SESSION,
        source="body/metadata.user_id",
    ),
    "codex": Client(
        url=RESPONSES,
        headers=(
            ("originator", "codex_cli_rs"),
            ("User-Agent", "codex_cli_rs/0.147.0 (Debian 13; x86_64) xterm-256color"),
            ("session-id", SESSION),
            ("thread-id", SESSION),
            ("x-client-request-id", SESSION),
            ("x-codex-turn-metadata", json.dumps({"session_id": SESSION, "thread_source": "user"})),
        ),
        body={"prompt_cache_key": SESSION},
        run=SESSION,
        source="session-id",
    ),
    "codex, that only names its cache": Client(
        url=RESPONSES,
        headers=(("originator", "codex_cli_rs"),),
        body={"prompt_cache_key": SESSION},
        run=SESSION,
        source="body/prompt_cache_key",
    ),
    "opencode": Client(
        headers=(("User-Agent", "opencode/1.2.6"), ("x-session-affinity", "ses_48a1"), ("X-Session-Id", "ses_48a1")),
        run="ses_48a1",
        source="x-session-affinity",
    ),
    "opencode, by its own provider": Client(
        headers=(("x-opencode-session", "ses_48a1"), ("x-opencode-request", "msg_1"), ("x-opencode-client", "cli")),
        run="ses_48a1",
        source="x-opencode-session",
    ),
    "openai agents sdk": Client(
        url=RESPONSES,
        headers=(("User-Agent", "Agents/Python 0.9.2"), ("X-Stainless-Lang", "python")),
        body={"prompt_cache_key": "agents-sdk:run:0b5c8e0fe4b04c7fa2a6dcb4e8b1f9d3"},
        run="agents-sdk:run:0b5c8e0fe4b04c7fa2a6dcb4e8b1f9d3",
        source="body/prompt_cache_key",
    ),
    "langsmith": Client(
        headers=(
            ("langsmith-trace", f"20260822T101112123456Z{SESSION}.20260822T101113123456Z{OTHER}"),
            ("baggage", "langsmith-metadata=%7B%22revision_id%22%3A%22a%22%7D,langsmith-tags=a"),
        ),
        run=SESSION,
        source="langsmith-trace",
    ),
    "langfuse, by baggage": Client(
        headers=(("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"), ("baggage", "session.id=ticket-904,user.id=7")),
        run="ticket-904",
        source="baggage/session.id",
    ),
    "langfuse, by metadata": Client(
        body={"metadata": {"langfuse_session_id": "ticket-904"}},
        run="ticket-904",
        source="body/metadata.langfuse_session_id",
    ),
    "helicone": Client(
        headers=(
            ("Helicone-Session-Id", SESSION),
            ("Helicone-Session-Path", "/plan/search"),
            ("Helicone-Session-Name", "Trip planner"),
        ),
        run=SESSION,
        source="helicone-session-id",
    ),
    "portkey": Client(
        headers=(
            ("x-portkey-provider", "openai"),
            ("x-portkey-trace-id", "trace-7"),
            ("x-portkey-span-id", "span-1"),
            ("x-portkey-metadata", '{"_user": "u"}'),
        ),
        run="trace-7",
        source="x-portkey-trace-id",
    ),
    "litellm": Client(
        headers=(("x-litellm-session-id", "s-7"), ("x-litellm-trace-id", "t-7")),
        run="s-7",
        source="x-litellm-session-id",
    ),
    "litellm, in the body": Client(
        body={"litellm_session_id": "s-7", "metadata": {"tags": ["a"]}}, run="s-7", source="body/litellm_session_id"
    ),
    "openrouter": Client(
        url="https://openrouter.ai/api/v1/chat/completions",
        body={"session_id": "s-7"},
        run="s-7",
        source="body/session_id",
    ),
}


def drained(client: Client, credentials: tuple[str, str] | None = None) -> Exchange:
    """The exchange as it is stored: with what the door told of its head, filed by the keeper."""
    told = identify(client.headers, credentials, OWNER)
    body = json.dumps({"model": "gpt-5", "messages": [], **client.body}).encode()
    headers = (*told.headers, ("content-type", "application/json"))
    exchange = Exchange(
        id="01932f4e-0000-7000-8000-000000000000",
        run=told.run,
        request=Request(method="POST", url=client.url, headers=headers, body=Body(data=body, size=len(body))),
        response=None,
        outcome="server_closed",
        started_at=1,
        first_byte_at=None,
        ended_at=2,
        run_evidence=told.evidence,
        actor=told.actor,
    )
    return filed(exchange, understood(exchange))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_s_run_is_the_one_it_means(name: str) -> None:
    client = CLIENTS[name]
    found = drained(client)
    assert (found.run, found.run_evidence[0]) == (client.run, (client.source, client.run))
    assert found.run_evidence[-1] == ("owner", OWNER)
    assert found.actor == client.actor


@pytest.mark.parametrize("name", CLIENTS)
def test_our_own_word_comes_before_any_client_s(name: str) -> None:
    found = drained(CLIENTS[name], ("mine", "a-token"))
    assert found.run == "mine"
    assert (CLIENTS[name].source, CLIENTS[name].run) in found.run_evidence


@pytest.mark.parametrize("name", CLIENTS)
def test_no_client_s_run_hangs_on_a_trace(name: str) -> None:
    client = CLIENTS[name]
    traced = Client(
        headers=(*client.headers, ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")),
        body=client.body,
        url=client.url,
        run=client.run,
        source=client.source,
    )
    assert trace_of(drained(traced)) is None


def test_a_client_that_only_traces_may_share_its_trace() -> None:
    found = drained(Client(headers=(("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),), run=OWNER, source="owner"))
    assert (found.run, trace_of(found)) == (OWNER, TRACE)


FORGED = ("../other", "a b", "x" * 200, "x" * 600, "\u202e", "", "run\ttab", "{}", "é")


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_name_is_harmless(forged: str) -> None:
    bodies: list[dict[str, Json]] = [{"session_id": forged}, {"metadata": {"session_id": forged, "user_id": forged}}]
    for body in bodies:
        run = drained(Client(body=body, run="", source="")).run
        assert run == OWNER or (run.startswith("id:") and len(run) == 35)
    assert drained(Client(body={"session_id": forged}, run="", source=""), ("mine", "a-token")).run == "mine"
