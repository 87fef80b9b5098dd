"""HTTP archives as browsers and proxies write them."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Chunk
from store.foreign.contents import (
    UNPACKED,
    UNTIMED,
    UNVERSIONED,
    BrokenInteraction,
    Found,
    Interaction,
    NotReadable,
    SkippedEntry,
)
from store.foreign.har import read_har
from store.foreign.parts import checked_url
from store.foreign.read import default_run_name, detect_format, open_source

NOON = "2026-07-24T12:00:00.066Z"
NOON_NS = 1784894400_066_000_000


def entry(**differences: Any) -> dict[str, Any]:
    """Return an entry as Chrome writes it, shortened."""
    made: dict[str, Any] = {
        "startedDateTime": NOON,
        "time": 25.5,
        "request": {
            "method": "POST",
            "url": "https://api.openai.com/v1/chat/completions",
            "httpVersion": "http/2.0",
            "headers": [
                {"name": ":authority", "value": "api.openai.com"},
                {"name": "content-type", "value": "application/json"},
            ],
            "queryString": [],
            "cookies": [],
            "headersSize": -1,
            "bodySize": 2,
            "postData": {"mimeType": "application/json", "text": "{}"},
        },
        "response": {
            "status": 200,
            "statusText": "",
            "httpVersion": "http/2.0",
            "headers": [{"name": "content-encoding", "value": "br"}, {"name": "set-cookie", "value": "a=1\nb=2"}],
            "cookies": [],
            "content": {"size": 9, "mimeType": "application/json", "text": '{"é": 1}'},
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": 9,
        },
        "cache": {},
        "timings": {"blocked": 1, "dns": -1, "connect": -1, "ssl": -1, "send": 0.5, "wait": 20, "receive": 4},
    }
    for path, value in differences.items():
        *parents, last = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return made


def archive(*entries: Any) -> bytes:
    return json.dumps({"log": {"version": "1.2", "creator": {}, "entries": entries}}).encode()


def read_entries(*entries: Any) -> list[Found]:
    return list(read_har(archive(*entries)))


def only(**differences: Any) -> Interaction:
    [one] = read_entries(entry(**differences))
    assert isinstance(one, Interaction), one
    return one


def test_an_entry_of_a_browser_is_an_interaction() -> None:
    one = only()
    assert (one.request.method, one.request.http_version) == ("POST", "HTTP/2")
    assert one.request.headers == (("content-type", "application/json"),)
    assert one.request.body.data == b"{}"
    assert one.response.body.data == '{"é": 1}'.encode()
    assert one.response.headers == (("set-cookie", "a=1"), ("set-cookie", "b=2"))
    assert UNPACKED in one.notes
    assert (one.started_at, one.first_byte_at, one.ended_at) == (NOON_NS, 21_500_000, 25_500_000)


def test_base64_content_is_bytes() -> None:
    content = {"size": 3, "mimeType": "image/png", "encoding": "base64", "text": b64encode(b"\x89\xff\x00").decode()}
    assert only(response__content=content).response.body.data == b"\x89\xff\x00"


def test_what_was_not_measured_stays_unknown() -> None:
    one = only(timings={"send": 0, "wait": -1, "receive": 0}, request__httpVersion="unknown", startedDateTime="soon")
    assert (one.started_at, one.first_byte_at, one.ended_at) == (None, None, None)
    assert (one.request.http_version, UNTIMED in one.notes, UNVERSIONED in one.notes) == ("", True, True)


def test_entries_come_in_the_order_in_which_they_began() -> None:
    late, early = entry(startedDateTime="2026-07-24T12:00:02+00:00"), entry(startedDateTime="2026-07-24T13:00:01+01:00")
    assert [one.place for one in read_entries(late, early)] == ["entry 2", "entry 1"]


def test_a_form_is_made_of_its_parameters() -> None:
    form = {
        "mimeType": "application/x-www-form-urlencoded",
        "params": [{"name": "a", "value": "1 2"}, {"name": "b", "value": "&"}],
    }
    assert only(request__postData=form).request.body.data == b"a=1+2&b=%26"


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ({"response__status": 0, "response___error": "net::ERR_FAILED"}, "no response (status 0: net::ERR_FAILED)"),
        ({"response": None}, "it has no response"),
        ({"request__url": "data:text/plain,x"}, "is not the URL of an HTTP request"),
        ({"request__method": 7}, "its method is 7"),
        ({"request__postData": None}, "the 2 bytes of its request's body are not in the file"),
        ({"response__content__text": None}, "the 9 bytes of its response's body are not in the file"),
        ({"response__content__encoding": "base64", "response__content__text": "%"}, "not valid base64"),
        ({"request__postData": {"mimeType": "multipart/form-data", "params": [{"name": "a"}]}}, "kept as parameters"),
        ({"request__headers": [{"value": "x"}]}, "one of its headers has no name"),
        ({"response___error": "net::ERR_INCOMPLETE_CHUNKED_ENCODING"}, "its answer is incomplete"),
    ],
)
def test_an_entry_that_cannot_be_imported_says_why_and_costs_only_itself(differences: Any, words: str) -> None:
    bad, good = read_entries(entry(**differences), entry())
    assert isinstance(bad, SkippedEntry)
    assert words in bad.reason
    assert isinstance(good, Interaction)


def test_websocket_messages_become_the_chunks_of_both_bodies() -> None:
    noon = NOON_NS / 10**9
    messages = [
        {"type": "send", "time": noon + 0.030, "opcode": 1, "data": "hé"},
        {"type": "receive", "time": noon + 0.040, "opcode": 2, "data": b64encode(b"\x00\x01").decode()},
    ]
    one = only(
        request__url="wss://live.example.com/v1/realtime",
        request__postData=None,
        request__bodySize=0,
        response__status=101,
        response__content={"size": 0, "mimeType": "x-unknown"},
        _webSocketMessages=messages,
    )
    assert one.request.url == "https://live.example.com/v1/realtime"
    assert one.request.body.data == "hé".encode()
    [asked], [answered] = one.request.body.chunks, one.response.body.chunks
    assert (asked.kind, asked.size, answered) == ("text", 3, Chunk(answered.at, 0, 2, "binary"))
    assert asked.at // 1_000_000 == 30


def test_what_is_no_websocket_message_is_left_out() -> None:
    """As Chrome and others write it; a close frame whose text is no base64 has no code."""
    one = only(
        request__bodySize=7,
        request__postData=None,
        response__status=101,
        response__content={"size": 0, "mimeType": "x-unknown"},
        _webSocketMessages=[
            {"type": "send", "time": 1, "opcode": 9, "data": "ping"},
            {"type": "send", "time": 1, "opcode": 1, "data": "{}"},
            {"type": "receive", "time": 1, "opcode": 8, "data": "1000 bye"},
            {"type": "error", "time": 1, "opcode": -1, "data": "net::ERR_FAILED"},
        ],
    )
    assert [(chunk.kind, chunk.size) for chunk in one.request.body.chunks] == [("text", 2)]
    assert [(chunk.kind, chunk.size) for chunk in one.response.body.chunks] == [("close", 0)]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"log": {}}', b'{"log": {"entries": []}}', b'{"log": {"entries":']
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(NotReadable):
        list(read_har(data))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_is_known_by_what_it_holds(tmp_path: Path, mark: bytes) -> None:
    file = tmp_path / "whatever.txt"
    file.write_bytes(mark + json.dumps(json.loads(archive(entry())), indent=2).encode())
    source = open_source(file)
    assert (source.form, len(list(source.items))) == ("har", 1)


def test_a_reader_may_stop_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "a.har"
    file.write_bytes(archive(entry(), entry()))
    source = open_source(file)
    assert isinstance(next(source.items), Interaction)
    file.unlink()
    assert isinstance(next(source.items), Interaction)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b'{"playhead":"bundle","format":1', "bundle"),
        (b'{ "playhead": "bundle", "format": 99}', "bundle"),
        (b'{"interactions": []}', "vcr"),
        (b'{"request": {"method": "GET"}, "response": {}}', "vcr"),
        (b"version: 1\n", "vcr"),
        (b'{"hash": "a", "response_json": 1}', "jsonl"),
        (b'\n{"key": "a", "response": 1}\n{"key": "b", "response": 1}\n', "jsonl"),
        (b"\x89PNG", "vcr"),
    ],
)
def test_formats_are_distinguished(data: bytes, form: str) -> None:
    assert detect_format(data) == form


@pytest.mark.parametrize(
    ("name", "run"),
    [("agent.yaml.gz", "agent"), ("test_a[x y].yaml", "test_a-x-y"), ("a.b.har", "a.b"), (".yaml", "imported")],
)
def test_a_run_is_named_after_its_file(name: str, run: str) -> None:
    assert default_run_name(Path(name)) == run


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("wss://a.example/x", "https://a.example/x"),
        ("HTTPS://a.example/x", "https://a.example/x"),
        ("https://a.example/ü b", "https://a.example/%C3%BC%20b"),
    ],
)
def test_an_address_is_written_as_it_was_sent(url: str, wanted: str) -> None:
    assert checked_url(url) == wanted


@given(st.text())
def test_any_text_is_an_address_or_is_refused(url: str) -> None:
    try:
        made = checked_url(url)
    except BrokenInteraction:
        return
    assert made.isascii()
    assert made.startswith(("http://", "https://"))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.sampled_from(
    [
        *("startedDateTime", "time", "timings", "request", "response", "_webSocketMessages", "request__url"),
        *("request__headers", "request__postData", "request__postData__text", "request__postData__params"),
        *("response__content", "response__content__text", "response__content__encoding", "response__headers"),
        *("response__status", "response__statusText", "request__httpVersion", "timings__wait", "timings__receive"),
    ]
)


@given(PLACES, anything)
def test_whatever_stands_in_an_entry_it_is_read_or_skipped(place: str, value: Any) -> None:
    assert len(read_entries(entry(**{place: value}))) == 1


@pytest.mark.parametrize("member", ["url", "startedDateTime"])
def test_an_entry_that_is_not_utf_8_is_skipped_and_the_others_are_read(member: str) -> None:
    entries = [json.dumps(entry()).encode() for _ in range(3)]
    entries[1] = entries[1].replace(b'"%s": "' % member.encode(), b'"%s": "\xff' % member.encode())
    archive = b'{"log": {"version": "1.2", "entries": [' + b",".join(entries) + b"]}}"
    found = sorted(read_har(archive), key=lambda one: one.place)
    assert [type(one) for one in found] == [Interaction, SkippedEntry, Interaction]
    assert isinstance(found[1], SkippedEntry)
    assert "utf-8" in found[1].reason
