"""TLS over an existing connection: a protocol for the connection below, a transport for the one above.

asyncio's own costs twice as much, and neither it nor uvloop's takes up a handshake of which somebody has read the
beginning. Writes are passed down at once, so that backpressure is that of the connection below.
"""

import asyncio
import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from cryptography.hazmat.primitives import serialization

from proxy.trust.ca import LEAVES_KEPT, CertificateAuthority, Leaf

_READ: Final = 16 << 10
"""No record is longer (RFC 8446 5.1); a larger buffer would be taken from the system and given back at each read."""


class Tls(asyncio.Transport, asyncio.Protocol):
    """One side of a TLS connection. `established` is told when the handshake is over, or why it failed."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: asyncio.Protocol,
        established: Callable[[Exception | None], None],
        *,
        server_side: bool,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._protocol = protocol
        self._established: Callable[[Exception | None], None] | None = established
        self._closing = False
        self.ragged = False
        """Whether the other side left without saying so: what it sent last may not be all."""

    def start(self, transport: asyncio.Transport, data: bytes = b"") -> None:
        """Take over a connection, from which this was read already."""
        self._transport = transport
        transport.set_protocol(self)
        self.data_received(data)

    # Towards the connection

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._established is not None and not self._handshake():
            return
        pieces: list[bytes] = []
        over = False
        try:
            while self._incoming.pending or not pieces:
                if not (piece := self._tls.read(_READ)):
                    over = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            over = True
        except ssl.SSLError:
            self.ragged = over = True
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if over:
            self._over()

    def _handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()
            self._told(error)
            return False
        self._flush()
        self._told(None)
        return not self._closing

    def _told(self, error: Exception | None) -> None:
        established, self._established = self._established, None
        if established is not None:
            established(error)

    def eof_received(self) -> bool | None:
        self.ragged = True
        self._over()
        return None

    def _over(self) -> None:
        if self._established is not None:
            self._told(ConnectionResetError("the other side left in the handshake"))
        elif not self._closing:
            keep = self._protocol.eof_received()
            if not keep:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._established is not None:
            self._told(exc or ConnectionResetError("the connection was closed in the handshake"))
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # Towards the protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        sent = self._tls.write(data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = rest[self._tls.write(rest) :]
        self._transport.write(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def close(self) -> None:
        """Say goodbye, once all that was written has gone."""
        if self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other side's goodbye is not waited for
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def cut(self) -> None:
        """Close without a goodbye, so that the other side sees that something is lacking."""
        self._closing = True
        self._transport.close()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


# Contexts


class Leaves:
    """Server contexts with our leaves, one for each host."""

    def __init__(self, authority: CertificateAuthority) -> None:
        self._authority = authority
        self._made: OrderedDict[tuple[str, str | None], tuple[Leaf, ssl.SSLContext]] = OrderedDict()

    def context(self, host: str, *, alpn: str | None) -> ssl.SSLContext:
        """What answers as this host, and chooses this protocol."""
        leaf = self._authority.leaf(host)
        made = self._made.get((host, alpn))
        if made is None or made[0] is not leaf:
            made = leaf, _server_context(leaf, alpn=alpn)
            self._made[host, alpn] = made
        self._made.move_to_end((host, alpn))
        while len(self._made) > LEAVES_KEPT:
            self._made.popitem(last=False)
        return made[1]


def _server_context(leaf: Leaf, *, alpn: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, leaf)
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def _load(context: ssl.SSLContext, leaf: Leaf) -> None:
    """OpenSSL takes a key from a file only. Ours is sealed, in memory, and gone at once."""
    password = os.urandom(16).hex().encode()
    pem = leaf.certificate.public_bytes(serialization.Encoding.PEM) + leaf.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(password),
    )
    with _memory_file(pem) as path:
        context.load_cert_chain(path, password=password)


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """A path at which OpenSSL reads this. It is in memory, where the system can: no disk, and no name that others see."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    handle = os.memfd_create("leaf")
    try:
        os.write(handle, content)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def upstream_context(trust: str, *alpn: str) -> ssl.SSLContext:
    """What verifies upstreams in full, and offers these protocols. There is no way around it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(trust)
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(list(alpn))
    return context
