"""Close a connection so that the other side fails at once."""

import asyncio
import socket
import struct
from typing import Final

_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset (RST) instead of an orderly end."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()
