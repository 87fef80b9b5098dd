"""Messages between the launcher and the process inside: JSON after its length, with descriptors attached.

Standard library only (`proxy/capture/namespace/inside.py`).
"""

import array
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LENGTH = struct.Struct("=L")
MAX_DESCRIPTORS = 16


def send_message(channel: socket.socket, message: "Mapping[str, Any]", descriptors: "Sequence[int]" = ()) -> None:
    """Send one message. Raises OSError."""
    # Paths and variables may have bytes that are not text. JSON keeps the surrogate escapes that represent them.
    data = json.dumps(message).encode()
    head = LENGTH.pack(len(data))
    if descriptors:
        socket.send_fds(channel, [head], list(descriptors))
    else:
        channel.sendall(head)
    channel.sendall(data)


def receive_message(channel: socket.socket) -> "tuple[dict[str, Any], list[int]] | None":
    """Receive a message and its descriptors; None if the other side has closed. Raises OSError."""
    head, descriptors = _receive_head(channel)
    if len(head) < LENGTH.size:
        return None
    remaining = LENGTH.unpack(head)[0]
    parts = []
    while remaining:
        part = channel.recv(min(remaining, 1 << 20))
        if not part:
            return None
        parts.append(part)
        remaining -= len(part)
    return json.loads(b"".join(parts)), descriptors


def _receive_head(channel: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    head, control, _, _ = channel.recvmsg(LENGTH.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    while 0 < len(head) < LENGTH.size:
        more = channel.recv(LENGTH.size - len(head))
        if not more:
            break
        head += more
    return head, list(descriptors)


def adopt_channel(descriptor: int) -> socket.socket:
    """Return the channel from the launcher, which the command will not inherit."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
