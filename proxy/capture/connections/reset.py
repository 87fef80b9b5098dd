"""Close a connection so that the other side sees a failure, not an end."""

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any, Final, Protocol

_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
_CHECK_INTERVAL: Final = 0.01


class ResettableTransport(Protocol):
    """What a reset needs of a transport."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def get_write_buffer_size(self) -> int: ...

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def abort(self) -> None: ...


def reset(transport: ResettableTransport) -> None:
    """Close with a reset (RST) instead of an orderly end. What is still on its way to the other side is lost."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


async def reset_after_data(transport: ResettableTransport, *, within: float) -> None:
    """Close with a reset once the other side's system has what was written, or after `within` seconds."""
    if not transport.is_closing():
        transport.pause_reading()
    clock = asyncio.get_running_loop().time
    end = clock() + within
    while _unacknowledged_bytes(transport) and clock() < end:  # noqa: ASYNC110 - the kernel reports no such event
        await asyncio.sleep(_CHECK_INTERVAL)
    reset(transport)


def _unacknowledged_bytes(transport: ResettableTransport) -> int:
    """Return how much of what was written has not arrived yet."""
    connection = transport.get_extra_info("socket")
    if connection is None or transport.is_closing():
        return 0
    size = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    return transport.get_write_buffer_size() + int.from_bytes(size, "little")
