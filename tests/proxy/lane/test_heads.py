"""Which heads the lane accepts, and how it parses them."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.lane import heads
from proxy.lane.heads import ResponseHeadReader, body_framing, request_head, response_head, without_fields
from proxy.wire.http1_heads import response_head_fault

TOKEN = st.text("abcXYZ019-_!~", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
FIELDS = st.lists(st.tuples(TOKEN, VALUE), max_size=8)


def _raw(line: str, fields: list[tuple[str, str]], blank: str = " ") -> bytes:
    return "\r\n".join([line, *(f"{name}:{blank}{value}" for name, value in fields), "", ""]).encode("latin-1")


@given(FIELDS, st.sampled_from(["", " ", "  ", "\t"]))
def test_a_head_s_fields_are_found_as_they_came(fields: list[tuple[str, str]], blank: str) -> None:
    head = request_head(_raw("POST /x?y HTTP/1.1", fields, blank))
    assert head is not None
    assert (head.method, head.target, list(head.fields)) == ("POST", "/x?y", fields)
    assert head.names == tuple(name.lower() for name, _ in fields)
    answer = response_head(_raw("HTTP/1.1 200 Quite Fine", fields, blank))
    assert answer is not None
    assert (answer.status, answer.reason, list(answer.fields)) == (200, "Quite Fine", fields)


def test_blanks_behind_a_value_are_not_part_of_it() -> None:
    head = request_head(b"GET / HTTP/1.1\r\nA: b c \t\r\nD: \r\nE:f\r\n\r\n")
    assert head is not None
    assert head.fields == (("A", "b c"), ("D", ""), ("E", "f"))


@given(FIELDS, st.sets(TOKEN.map(str.lower)))
def test_what_is_taken_out_leaves_the_rest_byte_for_byte(fields: list[tuple[str, str]], unwanted: set[str]) -> None:
    raw = _raw("GET / HTTP/1.1", fields)
    head = request_head(raw)
    assert head is not None
    left = [(name, value) for name, value in fields if name.lower() not in unwanted]
    assert without_fields(raw, head.names, frozenset(unwanted)) == _raw("GET / HTTP/1.1", left)


@pytest.mark.parametrize(
    ("head", "wrong"),
    [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3", "Duplicate Content-Length"),
        ("HTTP/1.1 200 OK\r\nContent-Length: -3", "Invalid character in Content-Length"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding can't be present"),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c", "Unexpected whitespace"),
        ("HTTP/1.1 200 OK\r\nA B: c", "Invalid header token"),
        ("HTTP/1.1 99 OK", "Invalid status code"),
        ("HTTP/1.1 099 OK", "its status line is not valid HTTP/1"),
    ],
)
def test_what_is_wrong_with_an_upstream_s_head_is_said(head: str, wrong: str) -> None:
    raw = f"{head}\r\n\r\n".encode()
    assert response_head(raw) is None
    assert (response_head_fault(raw) or "").startswith(wrong)


FIELD_NAMES = ("X-A", "X-A ", "Content-Length", "Transfer-Encoding", "Connection", "Alt-Svc")
SPELLED_VALUES = (
    *(": 5", ": 17", ": 05", ":5", ":  5", ": ", ": a: b", ": a b ", ": \xe9", ": x\x01", ": x\t"),
    *(": chunked", ": close", ": gzip, chunked"),
)


@pytest.mark.parametrize("name", FIELD_NAMES)
@pytest.mark.parametrize("others", [[], ["Content-Length: 9"], ["Transfer-Encoding: chunked", "Connection: x"]])
def test_a_head_is_read_the_same_after_any_other(name: str, others: list[str]) -> None:
    def answer(value: str, line: str = "HTTP/1.1 200 OK") -> bytes:
        return "\r\n".join([line, f"{name}{value}", "Date: today", *others, "", ""]).encode("latin-1")

    for first, second in product(SPELLED_VALUES, repeat=2):
        reader = ResponseHeadReader()
        for raw in (answer(first), answer(second), answer(first, "HTTP/1.0 404 Gone"), answer(second)):
            assert reader.read(raw) == response_head(raw)


def test_a_head_that_differs_in_values_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(date: str, length: int) -> bytes:
        return _raw("HTTP/1.1 200 OK", [("Date", date), ("Content-Length", str(length)), ("X-A", "b")])

    expected = [response_head(answer(*values)) for values in (("today", 5), ("tomorrow", 17), ("tomorrow", 17))]
    reader = ResponseHeadReader()
    assert reader.read(answer("today", 5)) == expected[0]
    monkeypatch.setattr(heads, "_is_sound", lambda *_: pytest.fail("llhttp was asked again"))
    assert [reader.read(answer("tomorrow", 17)) for _ in range(2)] == expected[1:]


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_head_or_is_not(data: bytes) -> None:
    for read in (request_head, response_head, response_head_fault):
        read(data + b"\r\n\r\n")


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.0",
        "GET / HTTP/2.0",
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "G\x00T / HTTP/1.1",
        "FOO / HTTP/1.1",
    ],
)
def test_a_request_line_that_is_not_the_lane_s(line: str) -> None:
    assert request_head(_raw(line, [("Host", "x")])) is None


@pytest.mark.parametrize(
    "line", ["HTTP/1.1 099 No", "HTTP/1.1 20 OK", "HTTP/2 200 OK", "ICY 200 OK", "HTTP/1.1 2000 OK"]
)
def test_a_status_line_that_is_none(line: str) -> None:
    assert response_head(_raw(line, [])) is None


@pytest.mark.parametrize(
    ("fields", "length", "chunked", "closes", "odd"),
    [
        ([], None, False, False, False),
        ([("content-LENGTH", "12")], 12, False, False, False),
        ([("Transfer-Encoding", "Chunked")], None, True, False, False),
        ([("Transfer-Encoding", "gzip, chunked")], None, True, False, True),
        ([("Connection", "keep-alive, Close")], None, False, True, False),
        ([("Connection", "x"), ("Connection", "close")], None, False, True, False),
        ([("Content-Length", "9" * 16)], None, False, False, True),
    ],
)
def test_what_a_head_says_about_its_body(
    fields: list[tuple[str, str]], length: int | None, chunked: bool, closes: bool, odd: bool
) -> None:
    head = request_head(_raw("POST / HTTP/1.1", fields))
    assert head is not None
    assert body_framing(head) == (length, chunked, closes, odd)
