"""Read the memory and the descriptors of another process. Linux only."""

import ctypes
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_ADDRESS_BYTES: Final = 128

MESSAGES_STEP: Final = 64
"""sizeof(struct mmsghdr)."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _read_memory(pid: int, at: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    here, there = _Piece(ctypes.addressof(buffer), size), _Piece(at, size)
    got = _LIBC.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return buffer.raw[: max(got, 0)]


def socket_address(pid: int, at: int, size: int) -> bytes:
    """Read the address argument of a call, as it is in memory; empty if there is none."""
    return _read_memory(pid, at, min(size & 0xFFFFFFFF, MAX_ADDRESS_BYTES)) if at else b""


def ip_address(raw: bytes) -> tuple[str, int] | None:
    """Return host and port of an address; None for anything but IP."""
    if len(raw) < 8:
        return None
    family = struct.unpack_from("=H", raw)[0]
    port = int.from_bytes(raw[2:4])
    if family == socket.AF_INET:
        return socket.inet_ntop(family, raw[4:8]), port
    if family == socket.AF_INET6 and len(raw) >= 24:
        return socket.inet_ntop(family, raw[8:24]), port
    return None


def message_address(pid: int, at: int) -> tuple[str, int] | None:
    """Read the IP address to which a message is sent."""
    header = _read_memory(pid, at, 12)
    if len(header) < 12:
        return None
    name, size = struct.unpack("=QI", header)
    return ip_address(socket_address(pid, name, size)) if name else None


def duplicate_socket(pid: int, descriptor: int) -> socket.socket | None:
    """Duplicate a socket of a thread. The duplicate must be closed at once, because it keeps the socket open."""
    try:
        process = os.pidfd_open(_process_of_thread(pid))
    except OSError:
        return None
    try:
        duplicate = _LIBC.syscall(438, process, descriptor, 0)  # pidfd_getfd, the same number on every machine
        return socket.socket(fileno=duplicate) if duplicate >= 0 else None
    except OSError:
        return None
    finally:
        os.close(process)


def socket_type(pid: int, descriptor: int) -> int:
    """Return the type of a socket; that of a stream if it cannot be found."""
    duplicate = duplicate_socket(pid, descriptor)
    if duplicate is None:
        return socket.SOCK_STREAM
    with duplicate:
        return duplicate.type & 0xF


def _process_of_thread(thread: int) -> int:
    """Return the process of a thread."""
    with suppress(OSError, ValueError, IndexError):
        # The name in it may end in the middle of a character.
        for line in Path(f"/proc/{thread}/status").read_bytes().splitlines():
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    return thread


def descriptor_link(pid: int, descriptor: int) -> str:
    """Return what /proc says that a descriptor is; empty if it is closed."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""
