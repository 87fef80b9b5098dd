"""Secrets that a profile declares by path are replaced at these paths only."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.keys.profile import Profiles
from calls.keys.profile_toml import parse_profiles
from calls.model import Headers
from calls.placeholder import is_placeholder
from calls.redaction.declared import UnreadableBody
from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY, TOKENS
from tests.calls.strategies import json_values, pieces

PROFILES = Profiles(
    parse_profiles("""
    [[profile]]
    name = "tickets/1"
    match = { host = "tickets.example.com" }
    key = ["$.query"]
    secret = ["$.token", "$.people[*].pin", "$['odd-name']", "$.rules[?@.kind == 'hidden']"]
    query = { key = ["page"], secret = ["tk", "my-*"] }
    headers = { key = ["x-mode"] }
    """)
)
REDACTOR = Redactor(key=KEY, profiles=PROFILES)
HEADERS: Headers = (("Content-Type", "application/json"),)
OURS = REDACTOR.for_request("POST", "https://tickets.example.com/v2/find", HEADERS)


def test_only_the_requests_that_a_profile_rules_on_have_its_secrets() -> None:
    body = b'{"token": "abcdefghijklmnop"}'

    assert REDACTOR.for_request("POST", "https://elsewhere.example.com/v2/find", HEADERS) is REDACTOR
    assert REDACTOR.redact_body(body)[0] == body
    assert OURS.redact_body(body)[1] == 1


def test_what_a_path_names_is_replaced_and_nothing_else() -> None:
    body = b""" {"token" :"abc\\"defghijklmno", "query": {"token": "stays"}, "n": 1.50,
      "people": [{"pin": 1234, "name": "a"}, {"pin": [true, -1.5e3, "x", {"deep": "0123456789abc"}]}, {"pin": null}],
      "odd-name": "", "rules": [{"kind": "open", "x": "stays"}, {"kind": "hidden", "x": 7}]} """

    new, count, reencoded = OURS.redact_body(body, "application/json")

    assert (len(new), count, reencoded) == (len(body), 7, False)
    answer = json.loads(new)
    assert is_placeholder(answer["token"].encode())
    assert answer["query"] == {"token": "stays"}
    assert answer["people"][0] == {"pin": 9999, "name": "a"}
    assert answer["people"][1]["pin"][:3] == [True, 999999, "*"]
    assert is_placeholder(answer["people"][1]["pin"][3]["deep"].encode())
    assert answer["rules"] == [{"kind": "open", "x": "stays"}, {"kind": "******", "x": 9}]
    assert b'"n": 1.50' in new
    assert OURS.redact_body(new, "application/json") == (new, 0, False)


@given(json_values, st.data())
def test_the_rest_of_any_document_stays_byte_for_byte(value: object, data: st.DataObject) -> None:
    document = {"query": value, "token": "0123456789abcdef", "after": [value]}
    body = json.dumps(document, default=str).encode()
    parts = data.draw(pieces(body))
    stream = OURS.new_body_redactor("application/json")

    out = [piece for at, part in enumerate(parts) for piece in stream.feed(part, at)] + stream.finish()

    assert [len(piece.data) for piece in out] == [len(part) for part in parts]
    new = b"".join(piece.data for piece in out)
    start = body.index(b'"token": "0123456789abcdef"') + 10
    plain = REDACTOR.redact_body(body)[0]
    assert new[:start] == plain[:start]
    assert new[start + 16 :] == plain[start + 16 :]
    assert is_placeholder(new[start : start + 16])


def test_a_compressed_body_is_opened_for_it() -> None:
    new, count, reencoded = OURS.redact_body(
        gzip.compress(b'{"token": "abcdefghijklmnop"}'), "application/json", "gzip"
    )

    assert (count, reencoded) == (1, True)
    assert b"abcdefgh" not in gzip.decompress(new)


@pytest.mark.parametrize("body", [b'{"token": "abcdefghijkl', b' [{"pin": 1234}', b"[" * 100_000 + b"token"])
def test_a_body_in_which_nobody_can_find_them_is_not_kept(body: bytes) -> None:
    stream = OURS.new_body_redactor("application/json")
    stream.feed(body, 1)

    assert stream.finish() == []
    assert "declares secrets" in str(stream.withheld_reason)


@pytest.mark.parametrize("body", [b"", b"  ", b"plain words", b"token=a", b"\x00\xff"])
def test_a_body_without_them_is_kept_whatever_it_is(body: bytes) -> None:
    assert OURS.redact_body(body) == (body, 0, False)


def test_a_member_that_is_there_twice_is_replaced_twice() -> None:
    assert OURS.redact_body(b'{"token": "abc", "token": "def"}')[0] == b'{"token": "***", "token": "***"}'


def test_an_escaped_name_is_the_same_name() -> None:
    assert OURS.redact_body(b'{"to\\u006ben": "abc"}')[0] == b'{"to\\u006ben": "***"}'


def test_declared_parameters_are_secret_and_keyed_headers_stay() -> None:
    assert OURS.redact_url("https://tickets.example.com/v2/find?page=2&tk=abc&my-x=d")[0].endswith(
        "?page=2&tk=***&my-x=*"
    )
    assert REDACTOR.redact_url("https://x.example/?tk=abc") == ("https://x.example/?tk=abc", 0)
    assert OURS.redact_request_headers((("X-Mode", "fast"),)) == ((("X-Mode", "fast"),), 0)


SOCKETS = Profiles(
    parse_profiles("""
    [[profile]]
    name = "live/1"
    match = { host = "live.example.com" }
    key = ["$[*].type"]
    secret = ["$[*].token", "$[?@.type == 'hello'].pin"]
    """)
)
LIVE = Redactor(key=KEY, profiles=SOCKETS).for_request("GET", "https://live.example.com/v1", ())


def test_a_message_of_a_socket_is_looked_at_as_one_of_the_list_that_the_paths_are_about() -> None:
    new, count = LIVE.redact_message(
        b'{"type": "hello", "token": "abcdefghijklmnop", "pin": 1234, "deep": {"token": "stays"}}'
    )
    answer = json.loads(new)
    assert is_placeholder(answer.pop("token").encode())
    assert (answer, count) == ({"type": "hello", "pin": 9999, "deep": {"token": "stays"}}, 2)
    assert LIVE.redact_message(new) == (new, 0)
    assert LIVE.redact_message(b'{"type": "bye", "pin": 1234}')[1] == 0
    assert LIVE.redact_message(b"token, in words") == (b"token, in words", 0)
    assert LIVE.redact_message(b'{"type": "bye", "key": "%s"}' % TOKENS[2].encode())[1] == 1
    with pytest.raises(UnreadableBody):
        LIVE.redact_message(b'{"token": "abcdefghijklmnop"')


@given(json_values)
def test_any_message_keeps_its_length_and_loses_what_is_declared(value: object) -> None:
    message = json.dumps({"type": "x", "token": ["abcdefghijklmnop", value]}, default=float).encode()
    new, count = LIVE.redact_message(message)
    assert (len(new), count >= 1, b"abcdefghijklmnop" in new) == (len(message), True, False)
    assert LIVE.redact_message(new) == (new, 0)
