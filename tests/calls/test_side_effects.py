"""The policy for side effects: what the live part of a fork may do to the world."""

import pytest

from calls.codec.json import dumps
from calls.model import Body, Headers, Json, Request
from calls.side_effects import BadRule, SideEffectPolicy, SideEffectRule, parse_side_effects

JSON: Headers = (("Content-Type", "application/json"),)
MCP: Headers = (*JSON, ("Accept", "application/json, text/event-stream"))


def make_request(method: str, url: str, body: Json = None, headers: Headers = JSON) -> Request:
    data = b"" if body is None else dumps(body)
    return Request(method=method, url=url, headers=headers, body=Body(data=data, size=len(data)))


def rpc(method: str) -> Request:
    message: Json = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": "refund"}}
    return make_request("POST", "https://mcp.example.com/mcp", message, MCP)


CHAT = make_request("POST", "https://gateway.example.com/v1/chat/completions", {"model": "m", "messages": []})


@pytest.mark.parametrize(
    ("request_", "policy"),
    [
        (CHAT, "allow"),
        (make_request("POST", "https://api.openai.com/v1/embeddings", {"model": "m", "input": "x"}), "allow"),
        (make_request("POST", "https://api.openai.com/v1/threads/t/messages", {"role": "user"}), "allow"),
        (make_request("POST", "https://api.groq.com/what/is/new", {}), "allow"),
        (make_request("POST", "https://queue.fal.run/fal-ai/flux", {}), "allow"),
        (make_request("DELETE", "https://api.openai.com/v1/files/f1"), "block"),
        (make_request("DELETE", "https://api.openai.com/v1/models/ft:m"), "block"),
        (
            make_request("PUT", "https://gateway.example.com/v1/chat/completions", {"model": "m", "messages": []}),
            "block",
        ),
        (make_request("POST", "https://crm.example.com/v1/responses", {"ticket": "T-1", "text": "Dear"}), "block"),
        (make_request("POST", "https://crm.example.com/v1/responses", {"model": "m", "input": "Dear"}), "allow"),
        (
            make_request("POST", "https://x.snowflakecomputing.com/api/v2/statements", {"statement": "DROP TABLE t"}),
            "block",
        ),
        (
            make_request("POST", "https://x.snowflakecomputing.com/api/v2/cortex/inference:complete", {"model": "m"}),
            "allow",
        ),
        (make_request("POST", "https://api.cloudflare.com/client/v4/zones/z/purge_cache", {}), "block"),
        (make_request("POST", "https://x.cloud.databricks.com/api/2.0/clusters/delete", {}), "block"),
        (make_request("POST", "https://aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints", {}), "block"),
        (make_request("POST", "https://huggingface.co/api/repos/create", {}), "block"),
        (make_request("POST", "https://bedrock-agent.us-east-1.amazonaws.com/agents/a/", {}), "block"),
        (
            make_request("GET", "https://tickets.example.com/v2/tickets", headers=(("X-HTTP-Method-Override", "PUT"),)),
            "block",
        ),
        (make_request("GET", "https://tickets.example.com/v2/tickets"), "allow"),
        (make_request("POST", "https://tickets.example.com/v2/tickets", {}), "block"),
        (make_request("DELETE", "https://tickets.example.com/v2/tickets/1"), "block"),
        (rpc("initialize"), "allow"),
        (rpc("tools/list"), "allow"),
        (rpc("tools/call"), "block"),
        (make_request("POST", "https://api.tavily.com/search", {"query": "x"}), "block"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.method} {value.url}",
)
def test_models_and_what_only_reads_go_live_and_the_rest_does_not(request_: Request, policy: str) -> None:
    assert SideEffectPolicy().policy_for(request_) == policy


def test_from_the_record_comes_every_tool_and_no_model() -> None:
    given = parse_side_effects(["serve-recorded"], [])
    read, write = (make_request(method, "https://tickets.example.com/x") for method in ("GET", "POST"))
    assert [given.policy_for(one) for one in (CHAT, read, write)] == ["allow", "serve-recorded", "serve-recorded"]
    assert [given.unrecorded_policy(one) for one in (CHAT, read, write)] == ["allow", "allow", "block"]


def test_the_first_rule_that_fits_decides() -> None:
    given = parse_side_effects(
        ["POST *.example.com=block", "tickets.example.com=serve-recorded", "allow"], ["POST ok.example.com", "10.0.0.1"]
    )
    assert given.rules[:2] == (SideEffectRule("allow", "ok.example.com", "POST"), SideEffectRule("allow", "10.0.0.1"))
    policies = {
        "POST https://ok.example.com/": "allow",
        "POST https://tickets.example.com/": "block",
        "PUT https://tickets.example.com/": "serve-recorded",
        "PUT https://other.example.org/": "allow",
    }
    for line, policy in policies.items():
        method, url = line.split(" ")
        assert given.policy_for(make_request(method, url)) == policy, line


def test_a_rule_about_a_model_holds_for_it_too() -> None:
    assert parse_side_effects(["gateway.example.com=block"], []).policy_for(CHAT) == "block"


def test_unseen_goes_only_what_may_go_whatever_it_is() -> None:
    given = parse_side_effects(
        ["pinned.example.com=block", "allow"], ["POST a.example.com", "*.example.org", "pinned.example.com"]
    )
    assert not given.is_host_allowed("a.example.com")
    assert not given.is_host_allowed("b.example.com")
    assert given.is_host_allowed("b.example.org")
    assert given.is_host_allowed("pinned.example.com")
    assert not parse_side_effects(["pinned.example.com=block"], []).is_host_allowed("pinned.example.com")


@pytest.mark.parametrize("wrong", ["maybe", "host=maybe", "a b c=block", "=block", "post host=block"])
def test_what_is_no_policy_says_how_one_is_written(wrong: str) -> None:
    with pytest.raises(BadRule, match=r"use serve-recorded, block, allow|write HOST or 'METHOD HOST'"):
        parse_side_effects([wrong], [])
