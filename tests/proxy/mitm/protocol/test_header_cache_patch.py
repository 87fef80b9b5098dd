"""The functions of `header_cache_patch` return what mitmproxy's own functions return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy import http
from mitmproxy.coretypes.multidict import MultiDict

from proxy.mitm.protocol import header_cache_patch as quicker

names = st.sampled_from([b"Host", b"host", b"X-One", b"x-one", b"Set-Cookie", b"\xc3\xa9", b"\xff"])
fields = st.lists(st.tuples(names, st.binary(max_size=6)), max_size=6).map(tuple)
asked = names | names.map(lambda name: name.decode("utf-8", "surrogateescape"))


def theirs(headers: http.Headers, name: str | bytes) -> list[str]:
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    return [value.decode("utf-8", "surrogateescape") for value in MultiDict.get_all(headers, raw)]


@given(fields, asked)
def test_headers_are_what_mitmproxy_says(fields: tuple[tuple[bytes, bytes], ...], name: str | bytes) -> None:
    headers = http.Headers(fields)
    expected = theirs(headers, name)
    assert quicker.get_all(headers, name) == expected
    assert quicker.get(headers, name) == (", ".join(expected) if expected else None)
    assert quicker.has_header(headers, name) is bool(expected)
    if expected:
        assert quicker.get_item(headers, name) == ", ".join(expected)
    else:
        with pytest.raises(KeyError):
            quicker.get_item(headers, name)


@given(fields, fields, asked)
def test_what_was_remembered_is_forgotten_with_the_fields(
    before: tuple[tuple[bytes, bytes], ...], after: tuple[tuple[bytes, bytes], ...], name: str | bytes
) -> None:
    headers = http.Headers(before)
    quicker.get(headers, name)
    headers.fields = after
    assert quicker.get_all(headers, name) == theirs(headers, name)


def test_changes_are_seen() -> None:
    quicker.install()
    headers = http.Headers([(b"Host", b"a"), (b"X", b"1")])
    assert headers["host"] == "a"
    headers["Host"] = "b"
    headers.add("x", "2")
    del headers["Host"]
    assert (headers.get("host"), headers.get_all("X"), "host" in headers) == (None, ["1", "2"], False)
    assert headers.copy() == headers
    assert headers.pop("x") == "1, 2"


def test_what_we_replace_is_there() -> None:
    assert {"get_all", "_kconv", "_reduce_values"} <= vars(http.Headers).keys()
    assert "__post_init__" in vars(http.MessageData)
