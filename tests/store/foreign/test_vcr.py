"""Cassettes in all forms that occur in public projects."""

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from store.foreign.contents import REPACKED, RESERIALIZED, UNPACKED, Found, Interaction, NotReadable, SkippedEntry
from store.foreign.read import open_source
from store.foreign.vcr import from_json, from_yaml

ASKED = b'{"model": "example-large", "messages": [{"role": "user", "content": "hi"}]}'
ANSWERED = b'{"id": "chatcmpl-1", "object": "chat.completion", "choices": []}'
CHAT = "https://api.openai.com/v1/chat/completions"


def interaction(request: Any = None, response: Any = None) -> dict[str, Any]:
    asked = {
        "method": "POST",
        "uri": CHAT,
        "headers": {"content-type": ["application/json"]},
        "body": ASKED.decode(),
        **(request or {}),
    }
    answered = {
        "status": {"code": 200, "message": "OK"},
        "headers": {"Content-Type": ["application/json"], "Date": ["Wed, 13 Aug 2025 15:08:35 GMT"]},
        "body": {"string": ANSWERED.decode()},
        **(response or {}),
    }
    return {"request": asked, "response": answered}


def read_cassette(cassette: Any) -> list[Found]:
    return list(from_yaml(yaml.dump(cassette, Dumper=yaml.SafeDumper, sort_keys=False).encode()))


def only(cassette: Any) -> Interaction:
    [one] = read_cassette(cassette)
    assert isinstance(one, Interaction), one
    return one


def reason(request: Any = None, response: Any = None) -> str:
    [one] = read_cassette({"interactions": [interaction(request, response)]})
    assert isinstance(one, SkippedEntry), one
    return one.reason


@pytest.mark.parametrize(
    "body",
    [
        ANSWERED.decode(),
        ANSWERED,
        {"string": ANSWERED.decode()},
        {"string": ANSWERED},
        {"base64_string": b64encode(ANSWERED).decode()},
        {"encoding": "UTF-8", "string": ANSWERED.decode()},
        {"encoding": "ASCII-8BIT", "base64_string": b64encode(ANSWERED).decode() + "\n"},
        {"encoding": "base64", "string": b64encode(ANSWERED).decode()},
        [ANSWERED[:10], ANSWERED[10:].decode()],
    ],
    ids=["text", "binary", "string", "string of bytes", "base64_string", "encoding", "ruby bytes", "base64", "pieces"],
)
def test_a_body_is_the_same_bytes_however_it_is_written(body: Any) -> None:
    one = only({"interactions": [interaction(response={"body": body})], "version": 1})
    assert one.response.body.data == ANSWERED
    assert (one.request.method, one.request.url, one.request.body.data) == ("POST", CHAT, ASKED)
    assert (one.response.status, one.response.reason) == (200, "OK")


@pytest.mark.parametrize("media", ["multipart/form-data; boundary=x", "text/plain"])
def test_a_form_that_was_kept_as_base64_is_a_form_again(media: str) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--\r\n'
    request = {"headers": {"content-type": [media]}, "body": b64encode(form).decode()}
    one = only({"interactions": [interaction(request)]})
    assert one.request.body.data == (form if media.startswith("multipart") else b64encode(form))


@pytest.mark.parametrize("length", [5, 7, 8, None])
def test_bytes_that_were_kept_as_base64_are_known_by_the_length_that_was_sent(length: int | None) -> None:
    sent = b"RIFF\xff"
    request = {"headers": {} if length is None else {"content-length": [str(length)]}, "body": b64encode(sent).decode()}
    one = only({"interactions": [interaction(request)]})
    assert one.request.body.data == (sent if length == len(sent) else b64encode(sent))


def test_a_parsed_body_becomes_json_again_and_the_summary_says_so() -> None:
    entry = interaction()
    entry["request"]["parsed_body"] = json.loads(entry["request"].pop("body"))
    entry["response"]["parsed_body"] = {"n": 1.5, "big": 2**70, "text": "é", "none": None}
    del entry["response"]["body"]
    one = only({"interactions": [entry]})
    assert json.loads(one.request.body.data) == json.loads(ASKED)
    assert one.response.body.data == '{"n":1.5,"big":1180591620717411303424,"text":"é","none":null}'.encode()
    assert RESERIALIZED in one.notes


@pytest.mark.parametrize("name", ["http_interactions", "interactions"])
def test_ruby_s_members_are_known(name: str) -> None:
    entry = {**interaction(), "recorded_at": "Tue, 01 Nov 2011 04:58:44 GMT"}
    entry["response"]["http_version"] = "1.1"
    entry["request"]["method"] = "post"
    one = only({name: [entry], "recorded_with": "VCR 6.0.0"})
    assert (one.started_at, one.request.method, one.response.http_version) == (1320123524 * 10**9, "POST", "HTTP/1.1")


def test_split_lists_are_paired_and_a_half_is_named() -> None:
    entry = interaction()
    first, second = read_cassette({"requests": [entry["request"], entry["request"]], "responses": [entry["response"]]})
    assert isinstance(first, Interaction)
    assert second == SkippedEntry(place="interaction 2", reason="it is an unpaired request")


def test_a_json_cassette_and_one_of_a_single_interaction() -> None:
    whole = list(from_json(json.dumps({"interactions": [interaction()], "version": 1}).encode()))
    single = list(from_json(json.dumps(interaction(request={"uri": None, "url": CHAT})).encode()))
    assert whole == single


def test_old_httpx_cassettes_and_go_s_are_read() -> None:
    old = interaction(response={"status": None, "status_code": 201, "body": None, "content": "hi"})
    go = interaction(request={"uri": None, "url": CHAT}, response={"status": "201 Created", "code": 201, "body": "hi"})
    for result in (old, go):
        del result["response"]["body" if result is old else "headers"]
        one = only({"interactions": [result]})
        assert (one.response.status, one.response.body.data) == (201, b"hi")


def test_headers_may_be_pairs_bytes_and_numbers() -> None:
    entry = interaction(request={"headers": [["Accept", "x"], {"name": "n", "value": 5}]})
    entry["response"]["headers"] = {"Set-Cookie": ["a=1", "b=2"], "x-bytes": [b"\xe9"], "x-text": "é"}
    one = only({"interactions": [entry]})
    assert one.request.headers == (("Accept", "x"), ("n", "5"))
    assert one.response.headers == (("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("x-bytes", "\xe9"), ("x-text", "Ã©"))


def test_the_bytes_are_trusted_and_not_the_content_encoding() -> None:
    unpacked = only(
        {"interactions": [interaction(response={"headers": {"Content-Encoding": ["gzip"], "Content-Length": ["9"]}})]}
    )
    assert unpacked.response.headers == (("Content-Length", str(len(ANSWERED))),)
    assert UNPACKED in unpacked.notes
    packed = gzip.compress(ANSWERED)
    honest = interaction(response={"headers": {"content-encoding": ["gzip"]}, "body": {"string": packed}})
    assert only({"interactions": [honest]}).response.headers == (("content-encoding", "gzip"),)
    bare = only({"interactions": [interaction(response={"body": {"string": packed}})]})
    assert ("content-encoding", "gzip") in bare.response.headers
    assert REPACKED in bare.notes


@pytest.mark.parametrize(
    ("request_", "response", "words"),
    [
        ({"uri": None}, None, "it has no URL"),
        ({"uri": "ftp://x.example/"}, None, "is not the URL of an HTTP request"),
        ({"method": None}, None, "its method is missing"),
        (None, {"status": {"code": 99}}, "its status is 99"),
        (None, {"status": None}, "its status is missing"),
        (None, {"body": {"base64_string": "%%%"}}, "response's body is not valid base64"),
        ({"body": 5}, None, "request's body is 5"),
        ({"headers": {"x": {"y": 1}}}, None, "a header's value is"),
        ({"headers": 7}, None, "its headers are neither a mapping nor pairs"),
        ({"headers": {"a b": "x"}}, None, "contains characters that are not allowed in headers"),
        (None, {"headers": {"x": ["a\r\nSet-Cookie: b"]}}, "contains characters that are not allowed in headers"),
    ],
)
def test_a_broken_interaction_is_named_with_its_reason(request_: Any, response: Any, words: str) -> None:
    assert words in reason(request_, response)


def test_one_broken_interaction_costs_only_itself() -> None:
    first, second, third = read_cassette({"interactions": [interaction(), "nonsense", interaction()]})
    assert isinstance(first, Interaction)
    assert isinstance(third, Interaction)
    assert isinstance(second, SkippedEntry)
    assert second.place == "interaction 2"


def test_an_object_in_a_cassette_is_skipped_by_its_tag() -> None:
    good = yaml.dump([interaction()], Dumper=yaml.SafeDumper)
    bad = (
        "- !!python/object/apply:os.system [true]\n- request: !!python/object:vcr.request.Request {}\n  response: {}\n"
    )
    first, second, third = from_yaml(f"interactions:\n{good}{bad}".encode())
    assert isinstance(first, Interaction)
    assert isinstance(second, SkippedEntry)
    assert "python/object/apply:os.system" in second.reason
    assert isinstance(third, SkippedEntry)
    assert "vcr.request.Request" in third.reason


def test_what_comes_before_a_mistake_in_the_yaml_is_kept_and_what_follows_is_named() -> None:
    good = yaml.dump([interaction()], Dumper=yaml.SafeDumper)
    first, rest = from_yaml(f"interactions:\n{good}- request: [\nversion: 1\n".encode())
    assert isinstance(first, Interaction)
    assert isinstance(rest, SkippedEntry)
    assert (rest.place, "invalid on line" in rest.reason) == ("all after interaction 1", True)


def test_messages_of_a_connection_without_address_are_skipped() -> None:
    message = {"kind": "message", "direction": "sent", "data": {"type": "response.create"}}
    [one] = read_cassette({"version": 1, "interactions": [message]})
    assert isinstance(one, SkippedEntry)
    assert "a connection whose URL the cassette does not have" in one.reason


@pytest.mark.parametrize("text", ["", "hello", "- 1\n- 2\n", "a: 1\n", "version: 1\ninteractions: []\n"])
def test_a_file_without_interactions_is_no_cassette(text: str) -> None:
    with pytest.raises(NotReadable):
        list(from_yaml(text.encode()))


def test_a_compressed_cassette_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml.gz"
    file.write_bytes(gzip.compress(yaml.dump({"interactions": [interaction()]}).encode()))
    source = open_source(file)
    assert source.form == "vcr"
    assert len(list(source.items)) == 1
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(NotReadable, match="its gzip data is incomplete"):
        open_source(file)


MEMBERS = st.sampled_from(
    ["method", "uri", "headers", "body", "string", "base64_string", "encoding", "status", "code", "parsed_body", "kind"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.fixed_dictionaries({"request": anything, "response": anything}) | anything, min_size=1, max_size=3))
def test_whatever_stands_there_is_an_interaction_or_is_skipped(answer: list[Any]) -> None:
    assert len(read_cassette({"interactions": answer})) == len(answer)
