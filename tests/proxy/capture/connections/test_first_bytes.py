"""A client's protocol is recognised by its first bytes, however they are split."""

import pytest

from proxy.capture.connections.first_bytes import host_name, is_http2_server, recognize

CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (CLIENT_HELLO, "tls"),
        (b"GET / HTTP/1.1\r\n", "http"),
        (b"PROPFIND /x HTTP/1.1\n", "http"),
        (b"MADE-UP /x HTTP/1.0\r\nHost: a\r\n", "http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", "http"),
        (b"CONNECT a.test:443 HTTP/1.1\r\n", "connect"),
    ],
)
def test_a_protocol_is_recognized_at_each_cut(data: bytes, kind: str) -> None:
    """A prefix has no result yet, or the right one."""
    for end in range(1, len(data)):
        if not data.startswith(b"MADE-UP"):
            assert recognize(data[:end]) in (None, kind)
    assert recognize(data) == kind


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",  # PostgreSQL: SSLRequest
        b"\x16\x03\x01\x00\x05\x02",  # a handshake record that is not from a client
        b"\x16\x02",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"EHLO me\r\n",
        b"*1\r\n$4\r\nPING\r\n",  # Redis
        b"PING\r\n",
        b"GET key\r\n",  # Redis inline
        b"get key\r\n",  # memcached
        b"\x10\x16\x00\x04MQTT",
        b"0032git-upload-pack /project\0",
        b"GET / SIP/2.0\r\n",
    ],
)
def test_all_else_is_raw_at_once(data: bytes) -> None:
    assert recognize(data) == "raw"


def test_a_word_without_a_line_is_not_waited_for() -> None:
    assert recognize(b"hello") == "raw"
    assert recognize(b"GET /a-path-that-goes-on") is None


def test_a_line_that_never_ends_is_raw() -> None:
    assert recognize(b"GET /" + b"a" * (64 << 10)) == "raw"


@pytest.mark.parametrize(
    ("authority", "name"),
    [("A.test:80", "a.test"), ("a.test.", "a.test"), ("[::1]:8080", "::1"), ("", None), ("a b", None), ("a/@b", None)],
)
def test_the_host_of_an_authority(authority: str, name: str | None) -> None:
    assert host_name(authority) == name


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"\0\0\0\4\0\0\0\0\0", True),
        (b"\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64", True),
        (b"\0\0\0\4\1\0\0\0\0", False),  # an acknowledgement, which is no beginning
        (b"\0\0\5\4\0\0\0\0\0", False),  # no whole setting
        (b"\0\0\0\4\0\0", False),
        (b"220 ready\r\n", False),
        (b"", False),
    ],
)
def test_a_server_of_http2_is_recognized_by_its_settings(data: bytes, *, is_one: bool) -> None:
    assert is_http2_server(data) is is_one
