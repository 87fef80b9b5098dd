"""The strict key covers the whole request without transport details."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import placeholder
from calls.codec.json import dumps
from calls.keys.key import make_key, raw_digest
from calls.model import Request
from tests.calls.sample_requests import ANTHROPIC, OPENAI, PROFILES, TICKETS, chat, json_request, request, user
from tests.calls.strategies import json_values


def strict(asked: Request) -> str:
    return make_key(asked, PROFILES).strict_key


NOISE = [
    pytest.param(b'{"model":"m","n":1}', b'{ "n" : 1.0, "model" : "\\u006d" }', id="another spelling"),
    pytest.param(chat(user("hi")), json.dumps(chat(user("hi")), indent=4).encode(), id="indented"),
]


@pytest.mark.parametrize(("one", "other"), NOISE)
def test_spelling_is_noise(one: Any, other: Any) -> None:
    assert strict(json_request(OPENAI, one)) == strict(json_request(OPENAI, other))


SAID = [
    pytest.param(chat(stream=True), chat(), id="transient"),
    pytest.param(chat(user="a"), chat(user="b"), id="identity"),
    pytest.param(chat(temperature=None), chat(), id="null"),
    pytest.param(chat(user("hi")), chat(user([{"type": "text", "text": "hi"}])), id="a fold"),
    pytest.param(chat({"tool_call_id": "a"}), chat({"tool_call_id": "b"}), id="an id"),
]


@pytest.mark.parametrize(("one", "other"), SAID)
def test_what_a_profile_leaves_out_counts_all_the_same(one: Any, other: Any) -> None:
    made = [make_key(json_request(OPENAI, body), PROFILES) for body in (one, other)]
    assert made[0].key == made[1].key
    assert made[0].strict_key != made[1].strict_key


def test_headers_of_one_sending_and_secrets_are_noise_and_others_are_not() -> None:
    plain = strict(json_request(OPENAI, chat()))
    secret = placeholder.make_placeholder(b"sk-a-long-secret", "K", b"key").decode()
    for noise in (
        ("User-Agent", "x"),
        ("Sec-WebSocket-Key", "x"),
        ("traceparent", "00-1"),
        ("x-api-key", secret),
        ("x-api-key", "****"),
    ):
        assert strict(json_request(OPENAI, chat(), noise)) == plain
    assert strict(json_request(OPENAI, chat(), ("openai-organization", "o"))) != plain


def test_a_compressed_body_counts_by_what_it_says() -> None:
    body = json.dumps(chat()).encode()
    packed = json_request(OPENAI, gzip.compress(body, mtime=0), ("content-encoding", "gzip"))
    assert strict(packed) == strict(json_request(OPENAI, body))


def test_another_machine_s_secrets_are_the_same_request() -> None:
    first, second = (placeholder.make_placeholder(b"sk-a-long-secret", "K", key).decode() for key in (b"one", b"two"))
    assert strict(json_request(OPENAI, chat(user(f"use {first}")))) == strict(
        json_request(OPENAI, chat(user(f"use {second}")))
    )


@pytest.mark.parametrize(
    "url", [TICKETS + "?a=1", TICKETS + "/1", TICKETS.replace("https", "http"), TICKETS.replace("tickets", "other")]
)
def test_the_whole_url_counts(url: str) -> None:
    assert strict(json_request(url, {})) != strict(json_request(TICKETS, {}))


@pytest.mark.parametrize("half", ["\ud800", "a\udfff"])
def test_half_a_surrogate_pair_in_a_head_is_no_crash(half: str) -> None:
    for asked in (
        request(f"https://h.example/{half}?{half}={half}", method=half),
        request(f"https://{half}.example/"),
        request(ANTHROPIC, b"{}", ("anthropic-version", half), ("x-other", half)),
    ):
        assert make_key(asked, PROFILES).key != strict(asked)


urls = st.sampled_from([OPENAI, ANTHROPIC, TICKETS, TICKETS + "?b=1&a=2", TICKETS + "?a=2&b=1", "http://["])
bodies = st.one_of(st.binary(max_size=8), json_values.map(dumps))
headers = st.sampled_from([(), (("accept", "text/csv"),), (("anthropic-version", "1"),), (("x-api-key", "****"),)])
requests = st.builds(lambda url, body, head: request(url, body, *head), urls, bodies, headers)


@given(requests, requests)
def test_each_tier_implies_the_next(one: Request, other: Request) -> None:
    if raw_digest(one) == raw_digest(other):
        assert strict(one) == strict(other)
    if strict(one) == strict(other):
        assert make_key(one, PROFILES).key == make_key(other, PROFILES).key
