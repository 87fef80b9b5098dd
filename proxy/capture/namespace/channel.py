"""Messages between the launcher and the process inside: JSON with its length in front, descriptors beside it.

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
MOST_DESCRIPTORS = 16


def send(channel: socket.socket, message: "Mapping[str, Any]", descriptors: "Sequence[int]" = ()) -> None:
    """Send one message. Raises OSError."""
    # Paths and variables need not be text: the escapes that stand for their bytes pass JSON as they are.
    data = json.dumps(message).encode()
    head = LENGTH.pack(len(data))
    if descriptors:
        socket.send_fds(channel, [head], list(descriptors))
    else:
        channel.sendall(head)
    channel.sendall(data)


def receive(channel: socket.socket) -> "tuple[dict[str, Any], list[int]] | None":
    """The next message and its descriptors; None where the other side is gone. Raises OSError."""
    head, descriptors = _head(channel)
    if len(head) < LENGTH.size:
        return None
    left = LENGTH.unpack(head)[0]
    parts = []
    while left:
        part = channel.recv(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts)), descriptors


def _head(channel: socket.socket) -> tuple[bytes, list[int]]:
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
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


def inherited(descriptor: int) -> socket.socket:
    """The channel that the launcher passed on; what is executed next does not inherit it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)
