"""Read the sockets of a process tree from /proc at intervals, where system calls cannot be watched. It misses short ones."""

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from proxy.capture.watch.notifications import EscapeListener

EACH: Final = 0.02
"""Seconds between two looks."""

LISTENING: Final = "0A"
CLOSED: Final = ("06", "07")
MOST_REMEMBERED: Final = 100_000


class SocketPoller:
    """Watches what a process and its descendants have open."""

    def __init__(self, seen: EscapeListener) -> None:
        self.pid: int | None = None
        self._seen = seen
        self._known: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self.pid is not None:
                await asyncio.to_thread(self.look, self.pid)
            await asyncio.sleep(EACH)

    def look(self, pid: int) -> None:
        """Note what is open now and was not before."""
        inodes = {inode for one in _tree(pid) for inode in _sockets(one)} - self._known
        if not inodes or len(self._known) > MOST_REMEMBERED:
            return
        rows = list(_rows(pid))
        listening = {port for _, _, port, state, _ in rows if state == LISTENING}
        own = {port for inode, _, port, state, _ in rows if state == LISTENING and inode in inodes | self._known}
        for inode, (host, port), _, state, _ in rows:
            if inode not in inodes or state == LISTENING or state in CLOSED or not port:
                continue
            self._known.add(inode)
            if not (_is_loopback(host) and (port in own or port not in listening)):
                self._seen.note("tcp", host, port)


def _tree(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
                children.setdefault(int(stat[stat.rindex(b")") + 2 :].split()[1]), []).append(int(name))
    left = [root]
    while left:
        yield (one := left.pop())
        left += children.get(one, [])


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:["):
                    yield link[8:-1]


def _rows(pid: int) -> Iterator[tuple[str, tuple[str, int], int, str, str]]:
    """Inode, remote address, local port, state and table of each TCP socket of the network that a process is in."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}") as table:
            next(table, None)
            for line in table:
                fields = line.split()
                host, _, port = fields[2].partition(":")
                local = int(fields[1].partition(":")[2], 16)
                yield fields[9], (_host(host), int(port, 16)), local, fields[3], name


def _host(written: str) -> str:
    """An address as the kernel writes it: words in the machine's own order."""
    words = [int(written[n : n + 8], 16) for n in range(0, len(written), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
