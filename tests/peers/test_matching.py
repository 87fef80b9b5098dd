"""Which recording answers a request, where other recorders answered with the wrong one, or none, or went live."""

import json
import ssl
import threading
import uuid
from typing import Any

import httpx
import pytest

from tests.peers.record_and_replay import ANTHROPIC, CHAT, RecordAndReplay, model_answer, pointers, until, whole

pytestmark = pytest.mark.slow

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the tickets.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": prompt}], **more}


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["message"]["content"]
    return found


def test_01_three_identical_posts_with_three_answers(services: RecordAndReplay) -> None:
    services.answers("/v1/chat/completions", *(whole(model_answer(word)) for word in ("one", "two", "three")))
    with services.recording() as agent:
        assert [text(agent.post(CHAT, json=chat("next?"))) for _ in range(3)] == ["one", "two", "three"]
    assert [(call["text"], call["nth"]) for call in services.calls()] == [("one", 0), ("two", 1), ("three", 2)]

    replay = services.replay()
    with replay.client() as agent:
        assert [text(agent.post(CHAT, json=chat("next?"))) for _ in range(3)] == ["one", "two", "three"]
    report = replay.report(3)
    assert (report["verdict"], report["served"], report["missed"], report["live"]) == ("right", 3, 0, 0)


def test_02_the_same_with_two_concurrent_branches(services: RecordAndReplay) -> None:
    """Two agents of one run ask the same at the same time, three times each, and are told otherwise. Each branch is told
    again what it was told, in whatever order the two come."""

    def branch(client: httpx.Client, actor: str, answer: dict[str, list[str]]) -> None:
        for _ in range(3):
            headers = {"x-playhead-actor": actor}
            answer.setdefault(actor, []).append(text(client.post(CHAT, json=chat("next?"), headers=headers)))

    services.answers("/v1/chat/completions", *(whole(model_answer(f"answer-{number}")) for number in range(6)))
    services.upstream.together = threading.Barrier(2)
    first: dict[str, list[str]] = {}
    with services.recording() as one, services.recording() as other:
        threads = [threading.Thread(target=branch, args=(c, n, first)) for c, n in ((one, "left"), (other, "right"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(first["left"] + first["right"]) == [f"answer-{number}" for number in range(6)]

    again: dict[str, list[str]] = {}
    replay = services.replay()
    with replay.client() as agent:
        branch(agent, "right", again)
        branch(agent, "left", again)
    assert again == first
    report = replay.report(6)
    assert (report["served"], report["missed"], report["live"]) == (6, 0, 0)


def test_03_a_body_that_differs_only_in_cch_uuid_date_and_key_order(services: RecordAndReplay) -> None:
    def body(nonce: str, *, turned: bool) -> bytes:
        billing = f"x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch={nonce};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": "Be brief."}]
        members = {
            "model": "claude-opus-4-1",
            "max_tokens": 64,
            "system": system,
            "messages": [{"role": "user", "content": "hi"}],
            "metadata": {"user_id": f"user_{uuid.uuid4()}"},
        }
        return json.dumps(dict(reversed(members.items())) if turned else members, indent=1 if turned else None).encode()

    def headers() -> dict[str, str]:
        return {
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
            "x-request-id": str(uuid.uuid4()),
            "date": "Sat, 21 Nov 2026 20:00:00 GMT",
            "user-agent": "claude-cli/2.1.37 (external, cli)",
        }

    url = f"https://{ANTHROPIC}/v1/messages"
    result: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-1"}
    result |= {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}
    services.answers("/v1/messages", whole(json.dumps(result).encode()))
    with services.recording() as agent:
        agent.post(url, content=body("a1b2c", turned=False), headers=headers()).raise_for_status()
    replay = services.replay()
    with replay.client() as agent:
        answer = agent.post(url, content=body("9f8e7", turned=True), headers=headers() | {"date": "now"})
    assert answer.json() == result
    report = replay.report(1)
    assert (report["verdict"], report["served"]) == ("right", 1)
    # What differs outside of the key is no secret: a fix could make it count.
    assert [drift["pointers"] for drift in report["drift"]] == [["/body/metadata", "/headers/x-request-id"]]


def test_04_a_body_that_differs_in_one_tool_description_is_a_miss_that_names_the_path(
    services: RecordAndReplay,
) -> None:
    services.answers("/v1/chat/completions", whole(model_answer("one")))
    with services.recording() as agent:
        agent.post(CHAT, json=chat("find it", tools=[TOOL])).raise_for_status()
    changed = json.loads(json.dumps(TOOL))
    changed["function"]["description"] = "Search all tickets."
    replay = services.replay()
    with replay.client() as agent:
        answer = agent.post(CHAT, json=chat("find it", tools=[changed]))
    assert answer.status_code == 424
    assert answer.headers["x-should-retry"] == "false"
    miss = answer.json()
    assert miss["playhead"]["reason"] == "no_match"
    assert pointers(miss) == ["/body/tools/0/function/description"]
    assert miss["playhead"]["nearest"]["differences"][0] | {"pointer": None} == {
        "pointer": None,
        "recorded": "Search the tickets.",
        "now": "Search all tickets.",
    }
    assert replay.report(1)["verdict"] == "diverged"
    assert services.upstream.asked == []


def test_09_a_429_and_then_a_200(services: RecordAndReplay) -> None:
    """Both are recorded as they came and replayed in that order; as a call they are one with two attempts."""
    refused = whole(b'{"error":{"type":"rate_limit_exceeded"}}', "retry-after: 0", status=429)
    services.answers("/v1/chat/completions", refused, whole(model_answer("at last")))
    with services.recording() as agent:
        assert [agent.post(CHAT, json=chat("now?")).status_code for _ in range(2)] == [429, 200]
    [call] = services.calls()
    assert (call["status"], call["attempts"], len(call["exchanges"]), call["text"]) == (200, 2, 2, "at last")

    replay = services.replay()
    with replay.client() as agent:
        answers = [agent.post(CHAT, json=chat("now?")) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [429, 200]
        assert answers[0].headers["retry-after"] == "0"
        # A frozen 429 would answer for ever.
        assert agent.post(CHAT, json=chat("now?")).json()["playhead"]["reason"] == "consumed"


def test_14_two_claude_sessions_in_parallel_and_one_resumed(services: RecordAndReplay) -> None:
    """Without our credentials: the sessions are told apart by what Claude Code sends, and a resumed one goes on in its run."""
    answer: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-1"}
    answer |= {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}
    services.answers("/v1/messages", whole(json.dumps(answer).encode()))
    one, other = str(uuid.uuid4()), str(uuid.uuid4())

    with _anonymous(services) as first, _anonymous(services) as second:
        for client, session, prompt in (
            (first, one, "a"),
            (second, other, "b"),
            (first, one, "c"),
            (second, other, "d"),
        ):
            _claude(client, session, prompt)
    with _anonymous(services) as resumed:
        _claude(resumed, one, "e")
    prompts = {session: _prompts(services, session) for session in (one, other)}
    assert prompts == {one: ["a", "c", "e"], other: ["b", "d"]}


def _anonymous(services: RecordAndReplay) -> httpx.Client:
    context = ssl.create_default_context(cafile=services.recorder.ca)
    return httpx.Client(proxy=services.recorder.proxy, verify=context, trust_env=False, timeout=60)


def _claude(client: httpx.Client, session: str, prompt: str) -> None:
    body = {"model": "claude-opus-4-1", "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
    headers = {
        "x-claude-code-session-id": session,
        "user-agent": "claude-cli/2.1.37 (external, cli)",
        "anthropic-version": "2023-06-01",
    }
    client.post(f"https://{ANTHROPIC}/v1/messages", json=body, headers=headers).raise_for_status()


def _prompts(services: RecordAndReplay, session: str) -> list[str]:
    [run] = until(lambda: services.recorder.ask("GET", "/runs", params={"q": session})["items"])
    return [call["request"]["messages"][0]["content"] for call in services.recorder.calls(run["id"])]


def test_15_a_redaction_rule_that_changes_does_not_lose_an_old_run(services: RecordAndReplay) -> None:
    """A run that was recorded before a rule knew a secret still answers: keys fold what redaction replaces, and where they
    cannot the miss says that it is the redaction that changed."""
    services.answers("/v1/chat/completions", whole(model_answer("one")))
    secret = "sk-proj-" + "a1B2c3D4" * 5
    with services.recording() as agent:
        agent.post(CHAT, json=chat("my key is KEY-OF-MINE")).raise_for_status()
    # As if it had been recorded by a Playhead whose rules did not know such a key: its text is still in the file.
    file = services.file()
    replay = services.replay(file)
    with replay.client() as agent:
        miss = agent.post(CHAT, json=chat(f"my key is {secret}")).json()
    assert miss["playhead"]["reason"] == "redaction_changed"
    assert secret not in json.dumps(miss)


def test_19_all_recordings_consumed_then_one_more_request_misses_and_does_not_go_live(
    services: RecordAndReplay,
) -> None:
    services.answers("/v1/chat/completions", whole(model_answer("one")))
    with services.recording() as agent:
        agent.post(CHAT, json=chat("once")).raise_for_status()
    replay = services.replay()
    with replay.client() as agent:
        assert text(agent.post(CHAT, json=chat("once"))) == "one"
        answer = agent.post(CHAT, json=chat("once"))
    assert answer.status_code == 424
    assert answer.json()["playhead"]["reason"] == "consumed"
    assert services.upstream.asked == []
    report = replay.report(2)
    assert (report["verdict"], report["served"], report["missed"], report["live"]) == ("diverged", 1, 1, 0)
