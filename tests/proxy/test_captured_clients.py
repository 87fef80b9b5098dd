"""Whose calls are those of agents and gateways, by what they really send: at the worker, then at the store server.

`captures/` has their requests byte for byte. What could not be had from a program that runs here is restated from its source or
documentation, and stands apart.
"""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from calls.derive import derive_call
from calls.model import Body, Exchange, Headers, Json, Request
from proxy.recording.run_identity import identify
from store.active_profiles import load_profiles
from store.attribution.run_assignment import assign_run, assignable_trace

CAPTURES = Path(__file__).with_name("captures")
OWNER = "18f3a2"
CHAT = "https://api.openai.com/v1/chat/completions"
MESSAGES = "https://api.anthropic.com/v1/messages?beta=true"
SESSION = "3f2a9c1e-8b7d-4c6a-9e5f-0a1b2c3d4e5f"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
understood = partial(derive_call, profiles=load_profiles(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client and what is known of its request."""

    headers: Headers = ()
    body: dict[str, Json] = field(default_factory=dict)
    url: str = CHAT
    run: str
    source: str
    actor: str | None = None


def captured_client(name: str, run: str, source: str, actor: str | None = None, host: str = "api.openai.com") -> Client:
    """A client as its capture has it; it is sent to the host that it is for."""
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().decode("latin-1").partition("\r\n\r\n")
    line, *lines = head.split("\r\n")
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines))
    url = f"https://{host}{line.split(' ')[1]}"
    return Client(headers=headers, body=json.loads(body), url=url, run=run, source=source, actor=actor)


_CLAUDE = "4e515b7a-d29a-4737-b515-4462ecad5e97"
_CODEX = "01a201ae-ef36-7893-8597-83c7421756cf"
_OPENCODE = "ses_dfe574fc8ffeAzFORIx6zMkW9f"
_ZEN = "ses_dfe51a000ffen7GF21WA5iI10Z"

CAPTURED: dict[str, Client] = {
    "claude code": captured_client("claude_code", _CLAUDE, "x-claude-code-session-id", host="api.anthropic.com"),
    "a sub-agent of claude code": captured_client(
        "claude_code_agent", _CLAUDE, "x-claude-code-session-id", "af61561e89bc7d193", "api.anthropic.com"
    ),
    "claude code 1.0.83": captured_client(
        "claude_code_1.0.83", "73791e74-9f87-4be3-8962-ba147f7723c3", "body/metadata.user_id", host="api.anthropic.com"
    ),
    "codex": captured_client("codex", "01a201a7-eb3e-7282-99cd-f12873370493", "session-id"),
    "a sub-agent of codex": captured_client(
        "codex_agent", _CODEX, "session-id", "01a201ae-f00a-71f3-b77d-b4d5f1a4c67f"
    ),
    "codex 0.60.1": captured_client("codex_0.60.1", "01a201ad-587b-7ef0-856a-e89a13d98c1d", "session_id"),
    "opencode": captured_client("opencode", _OPENCODE, "x-session-affinity"),
    "a sub-agent of opencode": captured_client(
        "opencode_agent", _OPENCODE, "x-parent-session-id", "ses_dfe572da5ffe7QmlWToNJOMHam"
    ),
    "opencode, by its own provider": captured_client(
        "opencode_zen", "ses_dfe52631dffeMjuWlyxnyA2o24", "x-opencode-session", host="opencode.ai"
    ),
    "a sub-agent of opencode, by its own provider": captured_client(
        "opencode_zen_agent", _ZEN, "x-parent-session-id", "ses_dfe518139ffesmhRtZsxUyv3Cb", "opencode.ai"
    ),
    "openai agents sdk": captured_client(
        "openai_agents", "agents-sdk:run:51211c04314b413ca20ec01ec2cb5a7b", "body/prompt_cache_key"
    ),
    "openai agents sdk, a group": captured_client(
        "openai_agents_group", "agents-sdk:group:e6a2d0d511fe2d9844e6c8eb4ec96265", "body/prompt_cache_key"
    ),
    "langsmith": captured_client("langsmith", "01a201a9-a811-787d-a6e0-94f98577328c", "langsmith-trace"),
    "langfuse": captured_client("langfuse", "ticket-904", "baggage/langfuse_session_id"),
    "portkey": captured_client("portkey", "trace-7", "x-portkey-trace-id"),
    "portkey, a span": captured_client("portkey_span", "trace-8", "x-portkey-trace-id"),
    "helicone": captured_client("helicone", "0b7c1f6e-3f0d-4c1b-9d2e-7a4d5f6e8c90", "helicone-session-id"),
    "litellm": captured_client("litellm", "s-7", "x-litellm-session-id"),
}

RESTATED: dict[str, Client] = {
    # coder/aibridge 241
    "a sub-agent of a sub-agent of claude code": Client(
        url=MESSAGES,
        headers=(
            ("X-Claude-Code-Session-Id", SESSION),
            ("x-claude-code-agent-id", "a5591a2"),
            ("x-claude-code-parent-agent-id", "af61561e89bc7d193"),
        ),
        run=SESSION,
        source="x-claude-code-session-id",
        actor="a5591a2",
    ),
    # OpenTelemetry's semantic conventions
    "whoever puts a session into baggage": Client(
        headers=(("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"), ("baggage", "session.id=ticket-904,user.id=7")),
        run="ticket-904",
        source="baggage/session.id",
    ),
    # The proxy takes it from the body of whoever calls it: its documentation.
    "langfuse, by a proxy of litellm": Client(
        body={"metadata": {"langfuse_session_id": "ticket-904"}},
        run="ticket-904",
        source="body/metadata.langfuse_session_id",
    ),
    "litellm, in the body": Client(
        body={"litellm_session_id": "s-7", "metadata": {"tags": ["a"]}}, run="s-7", source="body/litellm_session_id"
    ),
    # Its API reference
    "openrouter": Client(
        url="https://openrouter.ai/api/v1/chat/completions",
        body={"session_id": "s-7"},
        run="s-7",
        source="body/session_id",
    ),
}

CLIENTS = CAPTURED | RESTATED


def stored_exchange(client: Client, credentials: tuple[str, str] | None = None) -> Exchange:
    """The exchange as it is stored: with what the worker told of its head, filed by the store server."""
    identity = identify(client.headers, credentials, OWNER)
    body = json.dumps({"model": "gpt-5", "messages": [], **client.body}).encode()
    sent = [(name, value) for name, value in identity.headers if name.lower() != "content-type"]
    headers = (*sent, ("content-type", "application/json"))
    exchange = Exchange(
        id="01932f4e-0000-7000-8000-000000000000",
        run=identity.run,
        request=Request(method="POST", url=client.url, headers=headers, body=Body(data=body, size=len(body))),
        response=None,
        outcome="server_closed",
        started_at=1,
        first_byte_at=None,
        ended_at=2,
        run_evidence=identity.evidence,
        actor=identity.actor,
    )
    return assign_run(exchange, understood(exchange))


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_s_run_is_the_one_it_means(name: str) -> None:
    client = CLIENTS[name]
    found = stored_exchange(client)
    assert (found.run, found.run_evidence[0]) == (client.run, (client.source, client.run))
    assert found.run_evidence[-1] == ("owner", OWNER)
    assert found.actor == client.actor


@pytest.mark.parametrize("name", CLIENTS)
def test_our_own_word_comes_before_any_client_s(name: str) -> None:
    found = stored_exchange(CLIENTS[name], ("mine", "a-token"))
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
    assert assignable_trace(stored_exchange(traced)) is None


def test_a_client_that_only_traces_may_share_its_trace() -> None:
    found = stored_exchange(
        Client(headers=(("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),), run=OWNER, source="owner")
    )
    assert (found.run, assignable_trace(found)) == (OWNER, TRACE)


FORGED = ("../other", "a b", "x" * 200, "x" * 600, "\u202e", "", "run\ttab", "{}", "é")


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_name_is_harmless(forged: str) -> None:
    bodies: list[dict[str, Json]] = [{"session_id": forged}, {"metadata": {"session_id": forged, "user_id": forged}}]
    for body in bodies:
        run = stored_exchange(Client(body=body, run="", source="")).run
        assert run == OWNER or (run.startswith("id:") and len(run) == 35)
    assert stored_exchange(Client(body={"session_id": forged}, run="", source=""), ("mine", "a-token")).run == "mine"
