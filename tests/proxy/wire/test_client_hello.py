"""Parsing the ClientHello of a TLS handshake."""

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.client_hello import MAX_HELLO_BYTES, Hello, NotTls, parse_client_hello


def _make_hello(name: str | None, *protocols: str) -> bytes:
    """The ClientHello that OpenSSL sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["api.test", "a.b.c.example.com", None])
@pytest.mark.parametrize("protocols", [(), ("h2",), ("h2", "http/1.1")])
def test_a_hello_is_read_once_it_is_whole(name: str | None, protocols: tuple[str, ...]) -> None:
    said = _make_hello(name, *protocols)
    wanted = Hello(name, tuple(protocol.encode() for protocol in protocols))
    assert parse_client_hello(said) == wanted
    assert parse_client_hello(said + b"more") == wanted
    assert all(parse_client_hello(said[:length]) is None for length in range(len(said)))


@given(st.integers(1, 400))
def test_a_hello_may_come_in_several_records(size: int) -> None:
    message = _make_hello("api.test", "h2")[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)
    assert parse_client_hello(records) == Hello("api.test", (b"h2",))


@given(st.binary(max_size=300))
def test_anything_else_is_said_to_be_none(data: bytes) -> None:
    with contextlib.suppress(NotTls):
        parse_client_hello(data)


@given(st.data())
def test_a_damaged_hello_is_read_or_refused(data: st.DataObject) -> None:
    said = bytearray(_make_hello("api.test", "h2", "http/1.1"))
    at = data.draw(st.integers(0, len(said) - 1))
    said[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NotTls):
        parse_client_hello(bytes(said))


def test_one_that_never_ends_is_refused() -> None:
    record = b"\x16\x03\x01\x10\x00" + b"\x01\xff\xff\xff" + bytes(0x1000 - 4)
    more = b"\x16\x03\x01\x10\x00" + bytes(0x1000)
    with pytest.raises(NotTls):
        parse_client_hello(record + more * (MAX_HELLO_BYTES // len(more) + 1))
