"""Recordings of recording proxies and of the VCRs of PHP, Java and R, after those of Azure's SDKs, EasyPost and ellmer."""

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.foreign.contents import Found, Interaction, SkippedEntry
from store.foreign.vcr import from_json, from_yaml

URL = "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1"
JSON = "application/json; charset=utf-8"


def read(value: Any) -> list[Found]:
    return list(from_json(json.dumps(value).encode()))


def entry(asked: Any, answered: Any, media: str = JSON, **headers: Any) -> dict[str, Any]:
    """An entry of Azure's test proxy."""
    return {
        "RequestUri": URL,
        "RequestMethod": "POST",
        "RequestHeaders": {"Content-Type": "application/json", **headers},
        "RequestBody": asked,
        "StatusCode": 200,
        "ResponseHeaders": {"Content-Type": media, "Vary": ["Accept", "Origin"]},
        "ResponseBody": answered,
    }


@pytest.mark.parametrize(
    ("kept", "media", "data"),
    [
        ({"id": "c"}, JSON, b'{"id":"c"}'),
        (["a", "b"], JSON, b'["a","b"]'),
        (["data: {}\n\n", "data: [DONE]\n\n"], "text/event-stream; charset=utf-8", b"data: {}\n\ndata: [DONE]\n\n"),
        ("1\n", "text/plain", b"1\n"),
        (b64encode(b"ID3\x00").decode(), "audio/mpeg", b"ID3\x00"),
        (None, "", b""),
    ],
)
def test_a_session_of_azures_sdks_is_read(kept: Any, media: str, data: bytes) -> None:
    [one] = read({"Entries": [entry({"messages": []}, kept, media)], "Variables": {"RandomSeed": "1"}})
    assert isinstance(one, Interaction)
    assert (one.request.method, one.request.url, one.request.body.data) == ("POST", URL, b'{"messages":[]}')
    assert (one.response.status, one.response.body.data) == (200, data)
    assert one.response.headers[1:] == (("Vary", "Accept"), ("Vary", "Origin"))


def test_a_body_that_azures_proxy_did_not_keep_is_not_taken_for_an_empty_one() -> None:
    [lost, none] = read({"Entries": [entry(None, {}, **{"Content-Length": "3669606"}), entry(None, {})]})
    assert isinstance(lost, SkippedEntry)
    assert "3669606 bytes was not kept" in lost.reason
    assert isinstance(none, Interaction)


def exact(value: Any) -> list[Any]:
    return [{"matcher": "exact", "value": value}]


def pair(**asked: Any) -> dict[str, Any]:
    """A pair of a simulation of Hoverfly."""
    answer = {
        "scheme": exact("https"),
        "method": exact("POST"),
        "destination": exact("api.example.com"),
        "path": exact("/v1/x"),
        **asked,
    }
    answered = {
        "status": 200,
        "body": b64encode(b"\x00!").decode(),
        "encodedBody": True,
        "headers": {"X-A": ["1", "2"]},
    }
    return {"data": {"pairs": [{"request": answer, "response": answered}]}, "meta": {"schemaVersion": "v5.2"}}


def test_a_simulation_of_hoverfly_is_read_where_it_says_which_request_it_was() -> None:
    [one] = read(pair(query={"a": exact("1"), "b": exact("2")}, body=[{"matcher": "json", "value": '{"n":1}'}]))
    assert isinstance(one, Interaction)
    assert (one.request.url, one.request.body.data) == ("https://api.example.com/v1/x?a=1&b=2", b'{"n":1}')
    assert (one.response.body.data, one.response.headers) == (b"\x00!", (("X-A", "1"), ("X-A", "2")))
    [any_path] = read(pair(path=[{"matcher": "glob", "value": "/v1/*"}]))
    assert isinstance(any_path, SkippedEntry)
    assert "by patterns" in any_path.reason


PHP = """

-
    request:
        method: GET
        url: 'https://api.example.com/v2/a'
        headers: {Host: api.example.com, Authorization: ''}
    response:
        status: {http_version: '2', code: '201', message: Created}
        headers: {content-type: text/plain, x-proxied: ['a', 'b']}
        body: 'hi'
        curl_info: {http_code: 201, certinfo: {  }}
-
    request: {method: GET, url: 'https://api.example.com/v2/b'}
    response: {status: {code: '999999'}}
"""


def test_phps_vcr_is_read_which_writes_a_list_and_its_numbers_as_text() -> None:
    one, broken = from_yaml(PHP.encode())
    assert isinstance(one, Interaction)
    assert (one.response.status, one.response.reason, one.response.http_version) == (201, "Created", "HTTP/2")
    assert (one.request.url, one.response.body.data) == ("https://api.example.com/v2/a", b"hi")
    assert isinstance(broken, SkippedEntry)


def test_the_status_line_that_java_takes_for_a_header_is_none() -> None:
    headers = {"null": ["HTTP/1.1 201 Created"], "etag": ["1"]}
    asked = {"method": "POST", "uri": "https://api.example.com/a", "headers": {}, "body": "{}"}
    [one] = read(
        [{"recordedAt": 1668466135, "request": asked, "response": {"status": {"code": 201}, "headers": headers}}]
    )
    assert isinstance(one, Interaction)
    assert one.response.headers == (("etag", "1"),)


R = """
http_interactions:
- request:
    method: POST
    uri: https://api.openai.com/v1/files
    body:
      fields: {purpose: user_data, file: {path: apples.pdf, type: application/pdf, name: ~}}
  response: {status: 200, headers: {}}
- request: {method: GET, uri: 'https://api.openai.com/v1/files'}
  response: {status: 200, headers: {}}
  recorded_at: 2026-08-15 11:34:47
"""


def test_rs_vcr_names_no_zone_and_keeps_no_files() -> None:
    form, one = from_yaml(R.encode())
    assert isinstance(form, SkippedEntry)
    assert "only the names of its files were kept" in form.reason
    assert isinstance(one, Interaction)
    assert one.started_at == 1_786_793_687 * 10**9


def test_a_mapping_of_wiremock_does_not_say_whom_it_is_about() -> None:
    [one] = read({"request": {"url": "/v1/chat/completions", "method": "POST"}, "response": {"status": 200}})
    assert isinstance(one, SkippedEntry)
    assert "without a host" in one.reason


ODD = (
    st.none()
    | st.integers(-1, 999)
    | st.text(max_size=3)
    | st.lists(st.text(max_size=3), max_size=2)
    | st.just({"a": 1})
)
AZURES = st.fixed_dictionaries(
    {"RequestUri": st.just(URL), "RequestMethod": st.just("POST")},
    optional=dict.fromkeys(("RequestHeaders", "RequestBody", "StatusCode", "ResponseHeaders", "ResponseBody"), ODD),
)
HOVERFLYS = st.fixed_dictionaries(
    {
        "request": st.fixed_dictionaries(
            dict.fromkeys(("destination", "path", "method", "query", "headers", "body"), ODD)
        ),
        "response": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("status", "body", "headers", "encodedBody"), ODD)
        ),
    }
)


@settings(max_examples=80)
@given(st.one_of(AZURES, HOVERFLYS))
def test_whatever_they_hold_is_an_exchange_or_is_skipped(entry: Any) -> None:
    assert all(isinstance(one, Interaction | SkippedEntry) for one in read([entry]))
