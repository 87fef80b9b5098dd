"""What a model's provider is given to open servers of tools with is no part of a recording, whatever the header is called."""

import json
from typing import Any

import pytest

from calls.derive import derive_call
from calls.redaction.redactor import Redactor
from tests.calls.sample_requests import PROFILES, key
from tests.calls.test_derive import answered_exchange

SECRET = "tiger-12"
AZURE = "https://p.services.ai.azure.com/api/projects/p"
RUN = f"{AZURE}/threads/thread_1/runs"
JSON = (("content-type", "application/json"),)


def opening(secret: str) -> list[tuple[str, Any]]:
    headers = {"X-Super": secret}
    server = {"type": "mcp", "server_label": "l", "server_url": "https://mcp.example"}
    connector = {"type": "connector", "connector_id": "c", "authorization": {"type": "api-key", "value": secret}}
    return [
        (RUN, {"assistant_id": "a", "tool_resources": {"mcp": [{"server_label": "l", "headers": headers}]}}),
        (f"{RUN}/run_1/submit_tool_outputs", {"tool_approvals": [{"tool_call_id": "c", "approve": True, "headers": headers}]}),
        (f"{AZURE}/agents/a/versions", {"definition": {"kind": "prompt", "tools": [{**server, "headers": headers}]}}),
        ("https://api.x.ai/v1/responses", {"model": "m", "input": "a", "tools": [{**server, "extra_headers": headers}]}),
        ("https://generativelanguage.googleapis.com/v1beta/interactions", {"model": "m", "input": "a", "tools": [{"type": "mcp_server", "name": "n", "url": "u", "headers": headers}]}),
        ("https://generativelanguage.googleapis.com/v1beta/interactions", {"agent": "m", "input": "a", "environment": {"type": "remote", "env": {"T": {"value": secret}}}}),
        ("https://api.mistral.ai/v1/conversations", {"model": "m", "inputs": "a", "tools": [connector]}),
        ("https://api.mistral.ai/v1/agents", {"model": "m", "name": "n", "tools": [connector]}),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(8))
def test_it_is_replaced_and_in_no_key(number: int) -> None:
    (url, one), (_, other) = opening(SECRET)[number], opening("lion-345")[number]
    said = json.dumps(one).encode()
    kept, count, _ = (
        Redactor(profiles=PROFILES, key=b"k" * 32).for_request("POST", url, JSON).redact_body(said, "application/json")
    )

    assert SECRET.encode() not in kept
    assert count == 1
    assert json.loads(kept).keys() == one.keys()
    assert key(url, one) == key(url, other)


def test_an_approval_is_tied_to_the_call_that_asked_for_it() -> None:
    wanted = {"id": "call_1", "type": "mcp", "name": "f", "arguments": "{}", "server_label": "l"}
    action = {"type": "submit_tool_approval", "submit_tool_approval": {"tool_calls": [wanted]}}
    run = {"id": "run_1", "object": "thread.run", "status": "requires_action", "required_action": action}
    derived_request = derive_call(answered_exchange(RUN, {"assistant_id": "a"}, json.dumps(run).encode()), PROFILES)
    approval = {"tool_approvals": [{"tool_call_id": "call_1", "approve": True}]}
    approved = derive_call(answered_exchange(f"{RUN}/run_1/submit_tool_outputs", approval, b"{}"), PROFILES)

    assert [(call.id, call.name, call.arguments) for call in derived_request.tool_calls] == [("call_1", "f", {})]
    assert approved.tool_results == ({"id": "call_1", "content": True},)
    assert approved.warnings == ()
