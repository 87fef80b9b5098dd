"""Keys of Bedrock, Cohere, Ollama and of Anthropic's messages on other people's machines."""

import base64
from typing import Any

import pytest

from calls.keys.key import make_key, raw_digest
from calls.keys.profile import NEVER_KEYS
from tests.calls.sample_requests import ANTHROPIC, PROFILES, VERSION, chat, explained_key, json_request, key, user

MODEL = "https://bedrock-runtime.us-east-1.amazonaws.com/model/"
CONVERSE = MODEL + "amazon.nova-lite-v1%3A0/converse"
CLAUDE = MODEL + "anthropic.claude-3-haiku-20240307-v1%3A0/invoke"
NOVA = MODEL + "us.amazon.nova-lite-v1%3A0/invoke"
LLAMA = MODEL + "meta.llama3-70b-instruct-v1%3A0/invoke"
COHERE_1 = "https://api.cohere.com/v1/chat"
COHERE_2 = "https://api.cohere.com/v2/chat"
OLLAMA = "http://localhost:11434/api/generate"
OLLAMA_CHAT = "http://localhost:11434/api/chat"
VERTEX = (
    "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/anthropic/models/claude:rawPredict"
)


AGENT = "https://bedrock-agent-runtime.us-east-1.amazonaws.com/agents/A/agentAliases/L/sessions/s/text"


def turn(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], **fields}


def tool_messages(name: str) -> list[Any]:
    return [
        {"toolUse": {"toolUseId": name, "name": "f", "input": {}}},
        {"toolResult": {"toolUseId": name, "content": []}},
    ]


MARK = {"cachePoint": {"type": "default"}}

SAME = [
    pytest.param(CONVERSE, turn(*tool_messages("tooluse_a")), turn(*tool_messages("tooluse_b")), id="converse: ids"),
    pytest.param(CONVERSE, turn({"text": "a"}, MARK), turn({"text": "a"}), id="converse: where the cache may break"),
    pytest.param(
        CONVERSE, turn(requestMetadata={"a": "1"}), turn(performanceConfig={"latency": "optimized"}), id="converse: how"
    ),
    pytest.param(
        CONVERSE,
        turn(inferenceConfig={"topP": None, "maxTokens": 1}),
        turn(inferenceConfig={"maxTokens": 1.0}),
        id="converse: null",
    ),
    pytest.param(NOVA, turn({"text": "a"}, MARK), turn({"text": "a"}), id="nova: where the cache may break"),
    pytest.param(
        CLAUDE, chat(user("hi")), chat(user([{"type": "text", "text": "hi"}])), id="claude on bedrock: one text"
    ),
    pytest.param(
        CLAUDE,
        chat(user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])),
        chat(user("hi"), metadata={"user_id": "u"}),
        id="claude on bedrock: cache and user",
    ),
    pytest.param(LLAMA, b'{"prompt":"a","top_p":1.0}', b'{ "top_p": 1, "prompt": "a" }', id="llama: spelling"),
    pytest.param(COHERE_1, {"message": "a", "stream": True, "seed": None}, {"message": "a"}, id="cohere 1"),
    pytest.param(
        COHERE_1,
        {"message": "a", "conversation_id": "x"},
        {"message": "a", "conversation_id": "y"},
        id="cohere 1: whose",
    ),
    pytest.param(COHERE_2, chat(user("hi"), stream=False), chat(user([{"type": "text", "text": "hi"}])), id="cohere 2"),
    pytest.param(
        OLLAMA,
        {
            "prompt": "a",
            "system": "",
            "template": "",
            "context": [],
            "images": [],
            "format": "",
            "options": {},
            "raw": False,
        },
        {"prompt": "a", "stream": False, "keep_alive": "5m"},
        id="ollama: what an old client writes down",
    ),
    pytest.param(OLLAMA, {"images": ["-_8="]}, {"images": ["+/8"]}, id="ollama: pictures"),
    pytest.param(
        VERTEX,
        chat(user("hi"), anthropic_version="vertex-2023-10-16"),
        chat(user("hi"), anthropic_version="vertex-2023-10-16", stream=True),
        id="claude on vertex",
    ),
]


@pytest.mark.parametrize(("url", "one", "other"), SAME)
def test_what_the_api_reads_as_equal_has_one_key(url: str, one: Any, other: Any) -> None:
    assert key(url, one) == key(url, other)
    assert explained_key(url, one).warnings == explained_key(url, other).warnings == ()


APART = [
    pytest.param(CONVERSE, turn({"text": "a"}), turn({"text": "b"}), id="converse: text"),
    pytest.param(CONVERSE, turn({"text": "a"}, {"text": "b"}), turn({"text": "ab"}), id="converse: two blocks"),
    pytest.param(CONVERSE, turn(system=[{"text": "a"}]), turn(), id="converse: system"),
    pytest.param(CONVERSE, turn(guardrailConfig={"trace": "enabled"}), turn(), id="converse: guardrail"),
    pytest.param(CONVERSE, turn(newField=1), turn(newField=2), id="converse: unknown"),
    pytest.param(NOVA, turn(schemaVersion="messages-v1"), turn(), id="nova: schema"),
    pytest.param(LLAMA, {"prompt": "a", "max_gen_len": 1}, {"prompt": "a", "max_gen_len": 2}, id="llama"),
    pytest.param(COHERE_1, {"message": "a", "k": 1}, {"message": "a", "k": 2}, id="cohere 1"),
    pytest.param(COHERE_2, chat(user("hi"), documents=["a"]), chat(user("hi")), id="cohere 2"),
    pytest.param(OLLAMA, {"prompt": "a", "system": "b"}, {"prompt": "a", "system": ""}, id="ollama: system"),
    pytest.param(OLLAMA, {"prompt": "a", "context": [1]}, {"prompt": "a", "context": [2]}, id="ollama: context"),
    pytest.param(OLLAMA_CHAT, {"think": True}, {"think": False}, id="ollama: thinking"),
]


@pytest.mark.parametrize(("url", "one", "other"), APART)
def test_what_the_model_would_see_differently_has_two_keys(url: str, one: Any, other: Any) -> None:
    assert key(url, one) != key(url, other)


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        (CONVERSE, CONVERSE + "-stream", True),
        (CLAUDE, CLAUDE + "-with-response-stream", True),
        (CLAUDE, CLAUDE.replace("%3A", ":"), True),
        (CLAUDE, CLAUDE.replace("haiku", "sonnet"), False),
        (CLAUDE, CLAUDE.replace("anthropic.", "us.anthropic."), False),
        (CLAUDE, CLAUDE.replace("us-east-1", "eu-west-1"), False),
        (CLAUDE, CLAUDE.replace("invoke", "count-tokens"), False),
        (VERTEX, VERTEX.replace("/p/", "/q/").replace("rawPredict", "streamRawPredict"), True),
        (VERTEX, VERTEX.replace("claude", "claude-2"), False),
        (AGENT, AGENT.replace("sessions/s", "sessions/t"), True),
        (AGENT, AGENT.replace("agents/A", "agents/B"), False),
    ],
)
def test_whom_is_asked_counts_and_not_whose_it_is_or_how_it_is_sent(url: str, other: str, same: bool) -> None:
    assert (key(url, turn()) == key(other, turn())) is same


def test_an_account_s_number_in_a_model_s_name_does_not_count() -> None:
    arn = MODEL + "arn%3Aaws%3Abedrock%3Aus-east-1%3A{}%3Ainference-profile%2Fus.anthropic.claude/converse"
    assert key(arn.format("012345678901"), turn()) == key(arn.format("210987654321"), turn())


def test_a_guardrail_in_the_headers_counts() -> None:
    guarded = [("X-Amzn-Bedrock-GuardrailIdentifier", name) for name in ("a", "b")]
    assert len({key(LLAMA, {}), *(key(LLAMA, {}, one) for one in guarded)}) == 3


def test_bytes_count_in_either_alphabet() -> None:
    data = b"\xfb\xff picture"
    spelled = [base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode().rstrip("=")]
    made = [key(CONVERSE, turn({"image": {"format": "png", "source": {"bytes": one}}})) for one in spelled]
    assert made[0] == made[1]
    source = [{"type": "base64", "media_type": "image/png", "data": one} for one in spelled]
    made = [key(ANTHROPIC, chat(user([{"type": "image", "source": one}])), VERSION) for one in source]
    assert (
        made[0]
        == made[1]
        != key(ANTHROPIC, chat(user([{"type": "image", "source": {**source[0], "data": "AA"}}])), VERSION)
    )


SIGNING = [
    "x-amz-date",
    "x-amz-security-token",
    "x-amz-content-sha256",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "x-amzn-trace-id",
]


@pytest.mark.parametrize("name", [*SIGNING, "mcp-session-id", "last-event-id"])
def test_signatures_and_sessions_are_in_no_key_and_no_raw_digest(name: str) -> None:
    assert NEVER_KEYS.fullmatch(name)
    with_it, without = json_request(CONVERSE, turn(), (name, "x")), json_request(CONVERSE, turn())
    assert make_key(with_it, PROFILES).key == make_key(without, PROFILES).key
    assert raw_digest(with_it) == raw_digest(without)


def test_one_answer_of_a_model_behind_its_own_profile_is_known_field_by_field() -> None:
    assert [explained_key(url, {"messages": []}).profile for url in (CLAUDE, NOVA, LLAMA)] == [
        "bedrock_anthropic/1",
        "bedrock_nova/1",
        "bedrock_invoke/1",
    ]
