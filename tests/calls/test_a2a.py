"""One agent asks another: keys without what is made up for every message, and who speaks it."""

from typing import Any

import pytest

from calls.derive import derive_call
from calls.route import route_request
from tests.calls.sample_requests import PROFILES, explained_key, json_request, key
from tests.calls.test_derive import CAPTURES, answered_exchange

URL = "https://agent.example.com/"


def sending(method: str = "message/send", **message: Any) -> dict[str, Any]:
    whole = {"messageId": "m1", "role": "user", "parts": [{"kind": "text", "text": "hi"}], "kind": "message", **message}
    return {"jsonrpc": "2.0", "id": "9f0c", "method": method, "params": {"message": whole}}


@pytest.mark.parametrize(
    "other", [{**sending(), "id": "77aa"}, sending(messageId="m2"), sending(metadata=None), sending(contextId=None)]
)
def test_what_is_made_up_for_every_message_is_not_in_the_key(other: dict[str, Any]) -> None:
    assert key(URL, other) == key(URL, sending())
    assert explained_key(URL, other).warnings == ()


def test_a_conversation_counts_by_being_one_and_a_task_by_its_name() -> None:
    assert key(URL, sending(contextId="a")) == key(URL, sending(contextId="b")) != key(URL, sending())
    assert key(URL, sending(taskId="a")) != key(URL, sending(taskId="b"))


@pytest.mark.parametrize(
    "other", [sending(parts=[{"kind": "text", "text": "ho"}]), sending(role="agent"), sending("message/stream")]
)
def test_what_the_agent_would_see_differently_has_another_key(other: dict[str, Any]) -> None:
    assert key(URL, other) != key(URL, sending())


@pytest.mark.parametrize(
    ("method", "operation", "kind"),
    [
        ("message/stream", "invoke_agent", "tool"),
        ("SendStreamingMessage", "invoke_agent", "tool"),
        ("tasks/get", "tasks/get", "other"),
        ("tasks/pushNotificationConfig/set", "tasks/pushNotificationConfig/set", "other"),
        ("GetTask", "GetTask", "other"),
    ],
)
def test_a_method_says_what_is_asked(method: str, operation: str, kind: str) -> None:
    found = route_request(json_request(URL, {"jsonrpc": "2.0", "id": 1, "method": method}))
    assert (found.dialect, found.operation, found.kind) == ("a2a", operation, kind)


def test_the_rest_binding_is_known_by_its_paths() -> None:
    urls = [URL + f"v1/message:{verb}" for verb in ("send", "stream")]
    assert [route_request(json_request(url, {})).streams for url in urls] == [False, True]
    assert len({key(url, {"message": {"messageId": url}}) for url in urls}) == 1


def test_a_task_in_pieces_is_a_call() -> None:
    data = (CAPTURES / "a2a" / "task_in_pieces.sse").read_bytes()
    call = derive_call(answered_exchange(URL, sending("message/stream"), data, "text/event-stream"), PROFILES)
    assert (call.kind, call.operation, call.text) == ("tool", "invoke_agent", "Grüß dich 😀")
    assert (call.finish_reason, call.streamed, call.complete) == ("completed", True, True)
