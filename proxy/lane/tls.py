"""TLS over an existing connection: a protocol for the transport below, a transport for the protocol above.

asyncio's own implementation costs twice as much, and neither it nor uvloop's can continue a handshake whose first bytes
were already read. Writes are passed down at once, so the transport below provides the backpressure.
"""

import asyncio
import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from proxy.trust.ca import CertificateAuthority

if TYPE_CHECKING:
    from proxy.trust.leaves import Leaf

MAX_CACHED_CONTEXTS: Final = 1024

OPEN_FILES: Final = "/proc/self/fd"
"""The paths of open files. A chroot or a sandbox may lack them."""

_READ_BYTES: Final = 16 << 10
"""Maximum length of a record (RFC 8446 5.1). A larger buffer would be allocated and freed by the system at each read."""


class Tls(asyncio.Transport, asyncio.Protocol):
    """One side of a TLS connection. Calls `established` after the handshake, with the error if it failed."""

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
        # The C object inside has the same two methods, without a function of Python around them.
        self._read, self._write = (
            getattr(getattr(self._tls, "_sslobj", self._tls), name) for name in ("read", "write")
        )
        self._protocol = protocol
        self._established: Callable[[Exception | None], None] | None = established
        self._closing = False
        self.is_truncated = False
        """Whether the other side closed without a close_notify alert, so that its data may be incomplete."""

    def start(self, transport: asyncio.Transport, data: bytes = b"") -> None:
        """Take over a transport, from which `data` was already read."""
        self._transport = transport
        transport.set_protocol(self)
        self.data_received(data)

    # asyncio.Protocol, for the transport below

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._established is not None and not self._handshake():
            return
        pieces: list[bytes] = []
        over = False
        try:
            while self._incoming.pending or not pieces:
                if not (piece := self._read(_READ_BYTES)):
                    over = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            over = True
        except ssl.SSLError:
            self.is_truncated = over = True
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if over:
            self._handle_end()

    def _handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()
            self._report_handshake(error)
            return False
        self._flush()
        self._report_handshake(None)
        return not self._closing

    def _report_handshake(self, error: Exception | None) -> None:
        established, self._established = self._established, None
        if established is not None:
            established(error)

    def eof_received(self) -> bool | None:
        self.is_truncated = True
        self._handle_end()
        return None

    def _handle_end(self) -> None:
        if self._established is not None:
            self._report_handshake(ConnectionResetError("the other side closed the connection during the handshake"))
        elif not self._closing:
            keep = self._protocol.eof_received()
            if not keep:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._established is not None:
            self._report_handshake(exc or ConnectionResetError("the connection was closed during the handshake"))
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # asyncio.Transport, for the protocol above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        sent_size = self._write(data)
        if sent_size < len(data):
            rest = memoryview(data)[sent_size:]
            while rest:
                rest = rest[self._write(rest) :]
        self._transport.write(self._outgoing.read())

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def close(self) -> None:
        """Send close_notify and close, after all written data."""
        if self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # do not wait for the other side's close_notify
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def cut(self) -> None:
        """Close without close_notify, so that the other side notices that data is missing."""
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


class LeafContexts:
    """Cached server contexts with Playhead's leaf certificates, by host and protocol."""

    def __init__(self, authority: CertificateAuthority) -> None:
        self._authority = authority
        self._made: OrderedDict[tuple[str, str | None], tuple[Leaf, ssl.SSLContext]] = OrderedDict()

    def context(self, host: str, *, alpn: str | None) -> ssl.SSLContext:
        """Return the server context for a host and an ALPN protocol."""
        leaf = self._authority.leaf(host)
        leaf_and_context = self._made.get((host, alpn))
        if leaf_and_context is None or leaf_and_context[0] is not leaf:
            leaf_and_context = leaf, server_context(leaf, alpn=alpn)
            self._made[host, alpn] = leaf_and_context
        self._made.move_to_end((host, alpn))
        while len(self._made) > MAX_CACHED_CONTEXTS:
            self._made.popitem(last=False)
        return leaf_and_context[1]


def rehearse_handshake(context: ssl.SSLContext) -> None:
    """Make a handshake in memory. The first one of a process takes three times as long: OpenSSL looks up what it needs."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(2):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass


def server_context(leaf: "Leaf", *, alpn: str | None) -> ssl.SSLContext:
    """Return the context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, leaf)
    # Each ticket costs 0.1 ms, OpenSSL sends two, and few clients resume a session at all.
    context.num_tickets = 1
    if alpn:
        context.set_alpn_protocols([alpn])
    return context


def _load(context: ssl.SSLContext, leaf: "Leaf") -> None:
    """Load a leaf into a context. OpenSSL reads keys only from files: this one is encrypted, in memory, and deleted at once."""
    from cryptography.hazmat.primitives import serialization

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
    """Yield a path with this content: an anonymous file in memory if the system supports that, else a temporary file."""
    if not hasattr(os, "memfd_create") or not os.path.isdir(OPEN_FILES):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
        return
    handle = os.memfd_create("leaf")
    try:
        os.write(handle, content)
        yield f"{OPEN_FILES}/{handle}"
    finally:
        os.close(handle)


def upstream_context(trust: str, *alpn: str) -> ssl.SSLContext:
    """Return the client context that offers these protocols. Certificates are always verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(trust)
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(list(alpn))
    return context
