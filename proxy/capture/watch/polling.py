"""Poll the sockets of a process tree in /proc, if system calls cannot be watched. This misses short connections."""

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from proxy.capture.watch.notifications import EscapeListener

POLL_INTERVAL: Final = 0.02
"""Seconds between two polls."""

LISTENING: Final = "0A"
CLOSED: Final = ("06", "07")
MAX_KNOWN: Final = 100_000


class SocketPoller:
    """Polls the sockets of a process and its descendants."""

    def __init__(self, observer: EscapeListener) -> None:
        self.pid: int | None = None
        self._observer = observer
        self._known: set[str] = set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            if self.pid is not None:
                await asyncio.to_thread(self.poll_once, self.pid)
            await asyncio.sleep(POLL_INTERVAL)

    def poll_once(self, pid: int) -> None:
        """Note sockets that were not open before."""
        inodes = {inode for one in _process_tree(pid) for inode in _socket_inodes(one)} - self._known
        if not inodes or len(self._known) > MAX_KNOWN:
            return
        rows = list(_socket_rows(pid))
        listening = {port for _, _, port, state, _ in rows if state == LISTENING}
        own = {port for inode, _, port, state, _ in rows if state == LISTENING and inode in inodes | self._known}
        for inode, (host, port), _, state, _ in rows:
            if inode not in inodes or state == LISTENING or state in CLOSED or not port:
                continue
            self._known.add(inode)
            if not (_is_loopback(host) and (port in own or port not in listening)):
                self._observer.note("tcp", host, port)


def _process_tree(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
                children.setdefault(int(stat[stat.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    stack = [root]
    while stack:
        yield (one := stack.pop())
        stack += children.get(one, [])


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:["):
                    yield link[8:-1]


def _socket_rows(pid: int) -> Iterator[tuple[str, tuple[str, int], int, str, str]]:
    """Yield inode, remote address, local port, state and table of the TCP sockets in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}") as table:
            next(table, None)
            for line in table:
                fields = line.split()
                host, _, port = fields[2].partition(":")
                local = int(fields[1].partition(":")[2], 16)
                yield fields[9], (_parse_address(host), int(port, 16)), local, fields[3], name


def _parse_address(text: str) -> str:
    """Parse an address in the kernel's form: 32-bit words in the machine's byte order."""
    words = [int(text[n : n + 8], 16) for n in range(0, len(text), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
