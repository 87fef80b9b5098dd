"""What changes a key and what must not: the pitfalls listed in `reference/wire.md` C, each with its number."""

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import placeholder
from calls.keys.key import make_key, raw_digest
from calls.keys.profile import Profiles
from calls.model import Request
from store.active_profiles import load_profiles
from tests.calls.sample_requests import (
    ANTHROPIC,
    OPENAI,
    PROFILES,
    TICKETS,
    VERSION,
    chat,
    explained_key,
    json_request,
    key,
    request,
    user,
)
from tests.calls.strategies import json_values

SAME = [
    pytest.param(b'{"model":"m","messages":[]}', b'{ "messages" : [ ] , "model" : "m" }', id="1 spacing and order"),
    pytest.param(b'{"model":"m","temperature":1}', b'{"model":"m","temperature":1.0}', id="2 one and 1.0"),
    pytest.param(b'{"model":"m","temperature":1e0}', b'{"model":"m","temperature":10e-1}', id="2 exponents"),
    pytest.param(b'{"model":"\\u00e9\\ud83d\\ude00"}', '{"model":"é😀"}'.encode(), id="4 escapes"),
    pytest.param(chat(), chat(temperature=None, tools=None), id="6 null is absent"),
    pytest.param(chat(stream=True, stream_options={"include_usage": True}), chat(), id="stream is a shape"),
    pytest.param(chat(user("hi")), chat(user([{"type": "text", "text": "hi"}])), id="7 one text part"),
    pytest.param(chat(user="u1", metadata={"a": 1}), chat(prompt_cache_key="agents-sdk:run:1"), id="10 identity"),
    pytest.param(
        chat(user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])),
        chat(user("hi")),
        id="cache marks",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_the_api_treats_as_equal_has_one_key(one: Any, other: Any) -> None:
    assert key(OPENAI, one) == key(OPENAI, other)
    assert explained_key(OPENAI, one).warnings == ()


APART = [
    pytest.param(
        b'{"model":"m","seed":9007199254740992}', b'{"model":"m","seed":9007199254740993}', id="2 big integers"
    ),
    pytest.param(chat(user("é")), chat(user("e\u0301")), id="5 no unicode normalisation"),
    pytest.param(chat(user("a")), chat(user("b")), id="prompts"),
    pytest.param(chat(user("hi")), chat(user([{"type": "text", "text": "hi", "x": 1}])), id="7 a part that says more"),
    pytest.param(
        chat(user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])), chat(user("ab")), id="7 two parts"
    ),
    pytest.param(chat(tools=[{"a": 1}, {"b": 1}]), chat(tools=[{"b": 1}, {"a": 1}]), id="8 the order of tools"),
    pytest.param(chat(tools=[{"enum": [None]}]), chat(tools=[{"enum": []}]), id="6 null inside a schema"),
    pytest.param(chat(new_field=1), chat(new_field=2), id="unknown fields count"),
    pytest.param(chat(temperature=0), chat(), id="a parameter and its absence"),
    pytest.param(chat(seed=1), chat(seed="1"), id="types"),
    pytest.param(chat(seed=1), chat(seed=True), id="one and true"),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_the_model_would_see_differently_has_two_keys(one: Any, other: Any) -> None:
    assert key(OPENAI, one) != key(OPENAI, other)


@pytest.mark.parametrize(
    "body", [b'{"model":"m","model":"n"}', b'{"model":"\\ud800"}', b'{"seed":NaN}', b"{", b"\xff\xfe", b"[" * 9999]
)
def test_a_body_that_cannot_be_read_counts_by_its_bytes_and_warns(body: bytes) -> None:
    made = explained_key(OPENAI, body)
    assert made.selected_fields["form"] == "raw"  # type: ignore[index,call-overload] # it is an object
    assert "raw bytes" in made.warnings[0]
    assert made.key != key(OPENAI, body + b" ")


def turn(call: str, arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }
    return chat(user("hi"), asked, {"role": "tool", "tool_call_id": call, "content": "1"})


def test_9_and_10_ids_count_by_where_they_occur_first() -> None:
    assert key(OPENAI, turn("call_abc", "{}")) == key(OPENAI, turn("pyd_ai_0123456789abcdef", "{}"))
    assert [(one.was, one.now) for one in explained_key(OPENAI, turn("x", "{}")).renamed_ids] == [
        ("x", "id:1"),
        ("x", "id:1"),
    ]


def test_an_id_that_ties_other_parts_together_is_another_request() -> None:
    other = turn("call_a", "{}")
    other["messages"][2]["tool_call_id"] = "call_b"
    assert key(OPENAI, other) != key(OPENAI, turn("call_a", "{}"))


def test_an_answer_that_is_sent_back_with_all_of_its_fields_counts_as_repeated() -> None:
    whole = turn("call_a", "{}")
    whole["messages"][1]["tool_calls"][0]["index"] = 0
    whole["messages"][1] |= {"annotations": [], "reasoning_content": None, "refusal": None, "audio": None}
    assert key(OPENAI, whole) == key(OPENAI, turn("call_a", "{}"))
    assert key(OPENAI, chat({"role": "assistant", "content": "a", "tool_calls": [], "annotations": None})) == key(
        OPENAI, chat({"role": "assistant", "content": "a"})
    )


def test_first_occurrence_does_not_depend_on_the_order_of_members() -> None:
    block = {"type": "tool_result", "tool_use_id": "b", "id": "a"}
    other = dict(reversed(block.items()))
    assert key(ANTHROPIC, chat(user([block]))) == key(ANTHROPIC, chat(user([other])))


def test_22_arguments_count_by_their_value() -> None:
    assert key(OPENAI, turn("c", '{"a": 1, "b": [2.0]}')) == key(OPENAI, turn("c", '{"b":[2],"a":1}'))
    assert key(OPENAI, turn("c", '{"a": 1}')) != key(OPENAI, turn("c", '{"a": 2}'))


@pytest.mark.parametrize("arguments", ["", "{", '"x"', "1", '{"a":1,"a":2}'])
def test_arguments_that_are_no_object_count_by_their_text(arguments: str) -> None:
    made = explained_key(OPENAI, turn("c", arguments))
    assert not any(one.rule == "json" for one in made.normalized_fields)
    assert made.key != key(OPENAI, turn("c", arguments + " "))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("?b=2&a=1", "?a=1&b=2"),
        ("?q=a%20b", "?q=a+b"),
        ("?q=%c3%a9", "?q=%C3%A9"),
        ("?a=1&X-Amz-Signature=x&X-Amz-Date=1", "?a=1&X-Amz-Signature=y&X-Amz-Date=2"),
        ("?a=1&AWSAccessKeyId=x&Signature=x&Expires=1", "?a=1&AWSAccessKeyId=x&Signature=y&Expires=2"),
        ("?api_key=one", "?api_key=two"),
    ],
)
def test_17_queries_that_mean_the_same(one: str, other: str) -> None:
    made = [make_key(request(TICKETS + query, method="GET"), PROFILES).key for query in (one, other)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [("?a=1&a=2", "?a=2&a=1"), ("?a=1", "?a=2"), ("?a=", ""), ("?q=%ff", "?q=%fe"), ("/x%2Fy", "/x/y")],
)
def test_17_queries_and_paths_that_do_not(one: str, other: str) -> None:
    made = [make_key(request(TICKETS + query, method="GET"), PROFILES).key for query in (one, other)]
    assert made[0] != made[1]


AZURE = "https://desk.blob.core.windows.net/files/a.csv?sv=2025-05-05&sr=b&sp={}&st={}&se={}&sig={}"


def test_17_the_times_of_a_shared_access_signature_of_azure_do_not_count() -> None:
    """Its SDK makes a new one for each run. Elsewhere, parameters with such short names may be anything."""
    signed = [
        AZURE.format("r", "2026-01-01T00%3A00%3A00Z", "2026-01-01T01%3A00%3A00Z", "x"),
        AZURE.format("r", "2026-01-02T00%3A00%3A00Z", "2026-01-02T01%3A00%3A00Z", "y"),
    ]
    assert len({make_key(request(url, method="GET"), PROFILES).key for url in signed}) == 1
    assert (
        len({make_key(request(url.replace("/a.csv", f"/{n}.csv")), PROFILES).key for n, url in enumerate(signed)}) == 2
    )
    elsewhere = [url.replace("blob.core.windows.net", "example.com") for url in signed]
    assert len({make_key(request(url, method="GET"), PROFILES).key for url in elsewhere}) == 2


@pytest.mark.parametrize("name", ["Range", "x-ms-range", "x-ms-source-range", "x-amz-copy-source-range"])
@pytest.mark.parametrize("url", ["https://files.example.com/a.csv", AZURE], ids=["anywhere", "azure"])
def test_17_the_part_of_a_file_that_is_asked_for_counts(name: str, url: str) -> None:
    """Azure's SDK downloads a large file in parts that differ in x-ms-range alone."""
    parts = ["bytes=0-4194303", "bytes=4194304-8388607"]
    assert len({make_key(request(url, b"", (name, part), method="GET"), PROFILES).key for part in parts}) == 2


def test_17_an_escape_that_need_not_be_one_does_not_count() -> None:
    made = [
        make_key(request(f"https://h.example/model/a{colon}0/invoke"), PROFILES).key for colon in (":", "%3A", "%3a")
    ]
    assert len(set(made)) == 1


@pytest.mark.parametrize(
    "header",
    [
        ("x-stainless-retry-count", "1"),
        ("user-agent", "x"),
        ("traceparent", "00-1"),
        ("idempotency-key", "x"),
        ("authorization", "Bearer x"),
    ],
)
def test_18_sdk_headers_are_in_no_key_and_no_raw_digest(header: tuple[str, str]) -> None:
    with_it, without = json_request(OPENAI, chat(), header), json_request(OPENAI, chat())
    assert make_key(with_it, PROFILES).key == make_key(without, PROFILES).key
    assert raw_digest(with_it) == raw_digest(without)


def test_anthropic_s_version_and_betas_are_in_the_key_and_betas_have_no_order() -> None:
    betas = [("anthropic-beta", "b,a"), ("anthropic-beta", "a, b")]
    assert key(ANTHROPIC, chat(), VERSION, betas[0]) == key(ANTHROPIC, chat(), VERSION, betas[1])
    assert key(ANTHROPIC, chat(), VERSION, betas[0]) == key(
        ANTHROPIC, chat(), VERSION, ("anthropic-beta", "a"), ("Anthropic-Beta", "b")
    )
    assert key(ANTHROPIC, chat(), VERSION, betas[0]) != key(ANTHROPIC, chat(), VERSION)
    assert key(ANTHROPIC, chat(), VERSION) != key(ANTHROPIC, chat(), ("anthropic-version", "2024-01-01"))


def test_21_a_compressed_request_counts_by_what_it_says() -> None:
    body = json.dumps(chat(user("hi"))).encode()
    packed = json_request(OPENAI, gzip.compress(body, mtime=0), ("content-encoding", "gzip"))
    assert make_key(packed, PROFILES).key == key(OPENAI, body)


def test_a_compressed_request_that_cannot_be_opened_counts_by_its_bytes() -> None:
    made = make_key(json_request(OPENAI, b"not gzip", ("content-encoding", "gzip")), PROFILES)
    assert "content-encoding" in made.warnings[0]


def test_unknown_fields_go_in_with_a_warning_that_says_what_to_do() -> None:
    made = explained_key(OPENAI, chat(moderations_v9={"a": 1}))
    assert made.notes.unknown_pointers == ("/body/moderations_v9",)
    assert made.warnings == (
        "/body/moderations_v9 is not classified by the profile openai_chat/1 and is in the key: "
        "list it as key, transient or identity in your own profile",
    )


def test_secrets_are_left_out() -> None:
    def with_token(token: str) -> dict[str, Any]:
        return chat(mcp_servers=[{"url": "https://mcp.example", "authorization_token": token}])

    assert key(ANTHROPIC, with_token("one")) == key(ANTHROPIC, with_token("two"))
    assert "one" not in str(explained_key(ANTHROPIC, with_token("one")).selected_fields)


def test_placeholders_count_by_kind_and_first_occurrence() -> None:
    def chat_with_placeholders(hmac_key: bytes, *secrets: str) -> bytes:
        words = [placeholder.make_placeholder(secret.encode(), "K", hmac_key).decode() for secret in secrets]
        return json.dumps(chat(user(" and ".join(words)))).encode()

    first = chat_with_placeholders(b"production", "sk-first-secret-key", "sk-other-secret-key", "sk-first-secret-key")
    again = chat_with_placeholders(b"ci", "sk-first-secret-key", "sk-other-secret-key", "sk-first-secret-key")
    mixed = chat_with_placeholders(b"ci", "sk-first-secret-key", "sk-other-secret-key", "sk-other-secret-key")
    assert first != again
    assert key(OPENAI, first) == key(OPENAI, again)
    assert key(OPENAI, again) != key(OPENAI, mixed)
    assert explained_key(OPENAI, first).selected_fields == explained_key(OPENAI, again).selected_fields


def test_whom_and_how_is_asked_counts() -> None:
    body = chat(user("hi"))
    others = [
        "https://api.groq.com/openai/v1/chat/completions",
        "http://localhost:4000/v1/chat/completions",
        "http://localhost:4001/v1/chat/completions",
        "https://x.openai.azure.com/openai/deployments/a/chat/completions?api-version=1",
        "https://x.openai.azure.com/openai/deployments/b/chat/completions?api-version=1",
        "https://x.openai.azure.com/openai/deployments/b/chat/completions?api-version=2",
    ]
    assert len({key(url, body) for url in (OPENAI, *others)}) == len(others) + 1


def test_a_default_port_and_the_case_of_a_host_do_not_count() -> None:
    assert key(OPENAI, chat()) == key("https://API.openai.com:443/v1/chat/completions", chat())


MULTIPART = """--{0}\r
content-disposition: form-data; name="model"\r
\r
whisper-1\r
--{0}\r
content-disposition: form-data; name="file"; filename="a.wav"\r
content-type: audio/wav\r
\r
RIFF{1}\r
--{0}--\r
"""


def upload(boundary: str, content: str) -> Request:
    media = f"multipart/form-data; boundary={boundary}"
    return request(TICKETS, MULTIPART.format(boundary, content).encode(), ("content-type", media))


def test_multipart_counts_without_its_boundary() -> None:
    made = [
        make_key(upload(boundary, content), PROFILES) for boundary, content in (("x1", "a"), ("y2", "a"), ("x1", "b"))
    ]
    assert made[0].key == made[1].key != made[2].key
    assert made[0].selected_fields["body"]["model"] == ["whisper-1"]  # type: ignore[index,call-overload] # it is an object
    assert made[0].selected_fields["body"]["file"][0]["filename"] == "a.wav"  # type: ignore[index,call-overload] # likewise


BATCH = """\
--{0}
Content-Type: application/http
Content-ID: <{0} + 1>

GET /drive/v3/files/{1}

--{0}
Content-Type: application/http

GET /drive/v3/files/b

--{0}--
"""
"""As googleapiclient sends it (`BatchHttpRequest`), with bare line ends. Boundary and ids are random."""

CHANGES = """\
--batch_{0}\r
Content-Type: multipart/mixed; boundary=changeset_{0}\r
\r
--changeset_{0}\r
Content-Type: application/http\r
\r
PUT https://a.table.core.windows.net/t HTTP/1.1\r
\r
{{"a": "{1}"}}\r
--changeset_{0}--\r
\r
--batch_{0}--\r
"""
"""As Azure's tables are changed: a set of changes within a batch."""


@pytest.mark.parametrize(("form", "boundary"), [(BATCH, '"{}"'), (CHANGES, "batch_{}")], ids=["google", "azure"])
def test_a_batch_counts_by_its_requests(form: str, boundary: str) -> None:
    def batch_key(name: str, content: str) -> str:
        media = ("content-type", f"multipart/mixed; boundary={boundary.format(name)}")
        return make_key(request(TICKETS, form.format(name, content).encode(), media), PROFILES).key

    assert batch_key("1f", "a") == batch_key("2e", "a") != batch_key("1f", "c")


def test_multipart_bodies_within_one_another_are_read_to_a_limit() -> None:
    body, media = b"a", "text/plain"
    for level in range(3000):
        body = b"--x%d\r\ncontent-type: %s\r\n\r\n%s\r\n--x%d--" % (level, media.encode(), body, level)
        media = f"multipart/mixed; boundary=x{level}"
    assert make_key(request(TICKETS, body, ("content-type", media)), PROFILES).key


@pytest.mark.parametrize("body", [b"", b"--", b"--x", b"--x--", b"--x\r\n\r\n", b"nothing of the kind"])
def test_broken_multipart_still_has_a_key(body: bytes) -> None:
    assert make_key(request(TICKETS, body, ("content-type", "multipart/form-data; boundary=x")), PROFILES).key


def test_a_form_counts_by_its_fields() -> None:
    form = ("content-type", "application/x-www-form-urlencoded; charset=utf-8")
    made = [make_key(request(TICKETS, body, form), PROFILES).key for body in (b"b=2&a=x+y", b"a=x%20y&b=2", b"a=x&b=2")]
    assert made[0] == made[1] != made[2]


def test_json_is_read_as_json_whatever_curl_calls_it() -> None:
    form = ("content-type", "application/x-www-form-urlencoded")
    made = [make_key(request(TICKETS, body, form), PROFILES).key for body in (b'{"a": 1}', b'{"a":1}')]
    assert made[0] == made[1]


def test_bytes_count_by_their_digest_and_never_by_a_repr() -> None:
    image = ("content-type", "image/png")
    made = [make_key(request(TICKETS, body, image), PROFILES) for body in (b"\x89PNG1", b"\x89PNG2")]
    assert made[0].key != made[1].key
    assert made[0].selected_fields["body"]["size"] == 5  # type: ignore[index,call-overload] # it is an object


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("application/json", "*/*", True),
        ("application/json, text/event-stream", "application/json", True),
        ("text/csv", "application/json", False),
        ("text/csv; q=1, text/html", "text/html,text/csv", True),
    ],
)
def test_an_accept_header_counts_where_it_selects_a_form(one: str, other: str, same: bool) -> None:
    made = [make_key(request(TICKETS, b"", ("accept", value), method="GET"), PROFILES).key for value in (one, other)]
    assert (made[0] == made[1]) == same


OWN = """
[[profile]]
name = "tickets/1"
match = { host = "tickets.example.com", method = "POST", path = "/v2/*" }
key = ["$.query", "$.filters"]
transient = ["$.request_id", "$.sent_at", "$.filters[*].seen", "$..trace"]
identity = ["$.session"]
secret = ["$.token"]
query = { key = ["page"], transient = ["ts"] }
headers = { key = ["api-version"] }
"""


def ticket(profiles: Profiles, query: str = "?page=1&ts=1", version: str = "1", **fields: Any) -> str:
    body = {"query": "q", "filters": [{"a": 1, "seen": 1}], "session": "s", "token": "t", **fields}
    return make_key(json_request(TICKETS + query, body, ("API-Version", version)), profiles).key


def test_a_profile_of_the_user_s_own_rules() -> None:
    own = load_profiles(OWN)
    plain = ticket(own)
    assert plain == ticket(own, request_id="r", sent_at=1, session="other", token="other")
    assert plain == ticket(own, "?ts=2&page=1")
    assert plain == ticket(own, filters=[{"a": 1, "seen": 2}])
    assert plain == ticket(own, filters=[{"a": 1, "trace": "x"}])
    assert plain != ticket(own, filters=[{"a": 2}])
    assert plain != ticket(own, query="other")
    assert plain != ticket(own, "?page=2")
    assert plain != ticket(own, version="2")


def test_a_profile_may_leave_out_what_it_does_not_know() -> None:
    lax = load_profiles(OWN + 'unknown = "transient"\n')
    assert ticket(lax, new=1) == ticket(lax, new=2)
    assert ticket(load_profiles(OWN), new=1) != ticket(load_profiles(OWN), new=2)


def test_no_profile_at_all_means_that_everything_counts() -> None:
    made = make_key(json_request(TICKETS, {"a": 1}), Profiles(()))
    assert made.profile == "everything/1"
    assert made.key != make_key(json_request(TICKETS, {"a": 2}), Profiles(())).key


METHODS = st.sampled_from(["GET", "POST", "post"])
URLS = st.sampled_from([OPENAI, ANTHROPIC, TICKETS, "http://[", "", "//x", "https://h:99999/", "https://h/%zz?%ff&="])
MEDIA = st.sampled_from(["application/json", "multipart/form-data; boundary=x", "text/plain", "", "a/b+json", "\xff"])
BODIES = st.one_of(st.binary(max_size=30), json_values.map(lambda value: json.dumps(value, default=str).encode()))


@given(METHODS, URLS, MEDIA, BODIES)
def test_every_request_has_a_key(method: str, url: str, media: str, body: bytes) -> None:
    asked = request(url, body, ("content-type", media), method=method)
    assert make_key(asked, PROFILES).key == make_key(asked, PROFILES).key
    assert raw_digest(asked) == raw_digest(asked)


@given(st.lists(st.tuples(METHODS, st.sampled_from([OPENAI, TICKETS]), BODIES), min_size=2, max_size=2))
def test_equal_raw_digests_have_equal_keys(drawn: list[tuple[str, str, bytes]]) -> None:
    one, other = (request(url, body, method=method) for method, url, body in drawn)
    if raw_digest(one) == raw_digest(other):
        assert make_key(one, PROFILES).key == make_key(other, PROFILES).key


def test_13_media_in_a_message_counts_by_its_bytes() -> None:
    def picture(data: bytes) -> dict[str, Any]:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        return chat(user([{"type": "image_url", "image_url": {"url": url}}]))

    assert key(OPENAI, picture(b"1")) != key(OPENAI, picture(b"2"))


def test_the_key_is_what_it_is() -> None:
    """A changed key makes every recording miss: change it only together with the version of the domain or profile."""
    body = chat(user("hello"), temperature=0.7, stream=True)
    assert key(OPENAI, body) == "sha256:a47b79163376322aca39a3a7424ceb7eb483ca376a988970b6e00259c7efa3c4"
