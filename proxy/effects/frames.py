"""The messages between an effects hook and a worker: JSON after its length in four bytes.

A hook begins with `{"run", "token", "process"}`. The worker answers `{"mode": "record" | "replay" | "fork" | "off", "frames": N}` and, in a
replay or fork, N messages with the recorded effects of that process. Then the hook sends effects (an array), or how the replay of its
effects goes (an object); in a fork both.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from calls.effects.items import MOST_BYTES

MOST_FRAME: Final = MOST_BYTES
TIMEOUT: Final = 30.0
"""Seconds that a worker may take to answer a launcher."""


def encode_frame(data: bytes) -> bytes:
    """Return a message with its length."""
    return len(data).to_bytes(4) + data


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read a message; None at the end. Raises ValueError for one that is too long."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
        if size > MOST_FRAME:
            raise ValueError(f"a message has {size:,} bytes: send at most {MOST_FRAME:,}")
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None


def send_effects(path: Path, head: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> bool:
    """Send effects that this process observed itself; False if the worker did not take them."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(str(path))
            connection.sendall(encode_frame(json.dumps(head).encode()))
            answer = connection.recv(1 << 16)
            if b'"mode": "record"' not in answer and b'"mode": "fork"' not in answer:
                return False
            connection.sendall(encode_frame(json.dumps([*items]).encode()))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass  # what the worker answers a fork with
            return True
    except OSError:
        return False
