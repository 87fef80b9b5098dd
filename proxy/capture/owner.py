"""Find which process of this machine owns a client's connection, and name its run after the agent it belongs to.

The socket's inode is asked of the kernel (sock_diag(7), else /proc/net/tcp), its process is found by the descriptors of
the processes that we may read. A process of another user, of a container or of another machine is not seen: then the
owner is the machine, and who is attributed by that alone is attributed by a guess.
"""

import asyncio
import errno
import os
import re
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from proxy.capture.process import Process, agent_of, read_process, shown_command, start_of_process

WAIT: Final = 0.5
"""Seconds that a connection waits for its owner to be found."""

SEARCH: Final = 0.25
"""Seconds after which a search of all descriptors is given up."""

MOST_WAITING: Final = 128
"""Connections that wait for their owners; those beyond are attributed to the machine."""

REMEMBERED: Final = 2048
"""Connections whose owners are remembered, for the other engine."""

RECENT: Final = 32
"""Processes that are looked at first, because they have opened connections before."""

SOCKETS: Final = 4096
"""Sockets seen on the way to another one, with who had them."""

TRIED: Final = 32
"""Descriptors that are looked at on the event loop, at 4 µs each."""

DESCRIPTORS: Final = 16
"""Descriptors of a process's last connections that are looked at: a new one gets the lowest that is free, so one of them."""

FOLLOWING: Final = 4
"""How many numbers behind the highest of them are looked at."""

type Address = tuple[str, int]


class Owner(str):
    """The run that the owner of a connection names."""

    __slots__ = ("process",)
    process: str
    """The agent: its number, its start and its command line. Empty where it is not known."""

    def __new__(cls, run: str, process: str = "") -> "Owner":
        made = super().__new__(cls, run)
        made.process = process
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has opened a connection."""

    pid: int
    started: int
    descriptors: tuple[int, ...]
    """Those of its last connections, the last one first."""

    owner: Owner

    def with_descriptor(self, descriptor: int) -> "Holder":
        """The same process, whose last connection has this descriptor."""
        if descriptor == self.descriptors[0]:
            return self
        others = tuple(one for one in self.descriptors if one != descriptor)
        return replace(self, descriptors=(descriptor, *others[: DESCRIPTORS - 1]))


@dataclass(slots=True)
class Owners:
    """Who owns the connections of one proxy worker."""

    prefix: str
    """The run of what comes from a process of this machine that cannot be seen."""

    port: int = 0
    """Where the worker listens."""

    _known: OrderedDict[Address, Owner] = field(init=False, default_factory=OrderedDict)
    _holders: OrderedDict[int, Holder] = field(init=False, default_factory=OrderedDict)
    """The processes that opened connections last, by their numbers; the last one last."""

    _search: "ProcessSearch | None" = field(init=False, default=None)
    _pool: ThreadPoolExecutor | None = field(init=False, default=None)
    _waiting: int = field(init=False, default=0)

    def machine(self, peer: Address | None) -> Owner:
        """The owner of a connection of which nothing but the address is known."""
        host = peer[0] if peer else ""
        return Owner(self.prefix if _is_loopback(host) or not host else f"{self.prefix}-{host.replace('%', '-')}")

    def known(self, peer: Address | None) -> Owner:
        """What was found out about a connection so far."""
        return self._known.get(peer[:2], self.machine(peer)) if peer else self.machine(peer)

    def accepted(self, peer: Address | None) -> Owner:
        """A new connection: whoever had its address before is not its owner."""
        if peer:
            self._known.pop(peer[:2], None)
        return self.machine(peer)

    def can_find(self, peer: Address | None, here: Address | None) -> bool:
        """Whether the owner may be a process that is seen from here."""
        if not (sys.platform == "linux" and peer and here and self._waiting < MOST_WAITING):
            return False
        return peer[:2] not in self._known and (_is_loopback(peer[0]) or peer[0] == here[0])

    def find_at_once(self, peer: Address, here: Address) -> Owner | None:
        """The owner of a connection, where that is known without a search; None where `find` has to be awaited.

        The kernel's answer and a few descriptors cost about 0.2 ms (measured on a busy machine). Most connections are of
        a process that had one before, with the same descriptor or one of the next.
        """
        ends = _ends(peer, here)
        inode = _asked_of_kernel(*ends) if ends else 0
        if inode is None:
            return None
        if not inode:
            return self._remember(peer, None)
        holder = self._holder(f"socket:[{inode}]", self._search.place(inode) if self._search else None)
        return self._remember(peer, holder) if holder else None

    async def find(self, peer: Address, here: Address) -> Owner:
        """The owner of a connection; that of the machine where its process cannot be seen."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="owner")
            self._search = ProcessSearch(self.port)
        assert self._search is not None
        self._waiting += 1
        found: Holder | None = None
        try:
            async with asyncio.timeout(WAIT):
                future = self._pool.submit(self._search.holder, peer, here)
                found = await asyncio.wrap_future(future)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
        return self._remember(peer, found)

    def _holder(self, link: str, place: tuple[int, int] | None) -> Holder | None:
        """The process that has this socket under a descriptor where it may be expected."""
        for known, descriptor in islice(self._expected(place), TRIED):
            if _is_link(known.pid, descriptor, link):
                is_same = start_of_process(known.pid) == known.started
                return known.with_descriptor(descriptor) if is_same else None
        return None

    def _expected(self, place: tuple[int, int] | None) -> Iterator[tuple[Holder, int]]:
        """Processes and descriptors, the likeliest first."""
        if place and place[0] in self._holders:
            yield self._holders[place[0]], place[1]
        for known in reversed(self._holders.values()):
            highest = max(known.descriptors)
            for descriptor in (*known.descriptors, *range(highest + 1, highest + 1 + FOLLOWING)):
                yield known, descriptor

    def _remember(self, peer: Address, holder: Holder | None) -> Owner:
        owner = self.machine(peer) if holder is None else holder.owner
        self._known[peer[:2]] = owner
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if holder:
            before = self._holders.get(holder.pid)
            if before and before.started == holder.started:
                holder = before.with_descriptor(holder.descriptors[0])
            self._holders[holder.pid] = holder
            self._holders.move_to_end(holder.pid)
            if len(self._holders) > RECENT:
                self._holders.popitem(last=False)
        return owner


class ProcessSearch:
    """Finds processes by their sockets. For one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._agents: OrderedDict[tuple[int, int], Process] = OrderedDict()
        self._places: dict[int, tuple[int, int]] = {}
        """The process and the descriptor of sockets that were seen, by their inodes. Other threads may read it."""

    def place(self, inode: int) -> tuple[int, int] | None:
        """The process and the descriptor with which a socket was seen, if it was; it may be another's by now."""
        return self._places.get(inode)

    def holder(self, peer: Address, here: Address) -> Holder | None:
        """The process that owns the client's end of a connection, and the agent that it belongs to."""
        inode = socket_inode(peer, here)
        found = self._descriptor(inode) if inode else None
        process = read_process(found[0]) if found else None
        if not found or not process:
            return None
        agent = self._agent_of(process)
        owner = Owner(agent.run, described(agent))
        return Holder(pid=process.pid, started=process.started, descriptors=(found[1],), owner=owner)

    def _descriptor(self, inode: int) -> tuple[int, int] | None:
        """The process with a descriptor of this socket, and the descriptor."""
        seen = self._places.get(inode)
        if seen and _is_link(*seen, f"socket:[{inode}]"):
            return seen
        until = time.monotonic() + SEARCH
        for pid in self._candidates():
            descriptor = self._descriptor_in(pid, inode)
            if descriptor is not None:
                self._recent[pid] = None
                self._recent.move_to_end(pid)
                if len(self._recent) > RECENT:
                    self._recent.popitem(last=False)
                return pid, descriptor
            if time.monotonic() > until:
                break
        return None

    def _descriptor_in(self, pid: int, inode: int) -> int | None:
        """The descriptor under which a process has a socket. Its others are noted: where many connect at once, one search
        finds most of them."""
        if len(self._places) > SOCKETS:
            self._places.clear()
        for descriptor in _descriptors(pid):
            link = _link(pid, descriptor)
            if link.startswith("socket:["):
                other = int(link[8:-1])
                self._places[other] = (pid, descriptor)
                if other == inode:
                    return descriptor
                if len(self._places) > 2 * SOCKETS:
                    break
        return None

    def _candidates(self) -> Iterator[int]:
        recent = list(reversed(self._recent))
        yield from recent
        left, mine, user = set(recent), os.getpid(), os.geteuid()
        # New processes open connections more often than old ones.
        for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
            if pid not in left and pid != mine and (user == 0 or _user(pid) == user):
                yield pid

    def _agent_of(self, process: Process) -> Process:
        known = self._agents.get((process.pid, process.started))
        if known is None:
            known = self._orphaned(agent_of(process, self._port))
            self._agents[process.pid, process.started] = known
            self._agents[known.pid, known.started] = known
            while len(self._agents) > REMEMBERED:
                self._agents.popitem(last=False)
        return known

    def _orphaned(self, agent: Process) -> Process:
        """The agent whose process group this is still in, though those between have ended (a double fork)."""
        if agent.group == agent.pid:
            return agent
        leaders = (one for one in self._agents.values() if one.pid == agent.group and one.started <= agent.started)
        return next(leaders, agent)


def described(process: Process) -> str:
    """A process in words, as evidence."""
    seconds = process.started / os.sysconf("SC_CLK_TCK")
    return f"pid {process.pid}, started {seconds:.2f} s after boot: {shown_command(process.arguments)}"


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _user(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _descriptors(pid: int) -> list[int]:
    """The newest first."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
    except OSError:
        return []


def _link(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def _is_link(pid: int, descriptor: int, link: str) -> bool:
    return _link(pid, descriptor) == link


# -- the kernel's answer for one connection, by its four numbers (sock_diag(7), linux/inet_diag.h)

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_MESSAGE = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_REST = struct.Struct("=III")
_FOUND: Final = _MESSAGE.size + 4 + 48 + 3 * 4
"""Where the user and the inode stand in the answer."""


def socket_inode(peer: Address, here: Address) -> int | None:
    """The inode of the client's socket; None where the kernel does not tell it."""
    ends = _ends(peer, here)
    if ends is None:
        return None
    found = _asked_of_kernel(*ends)
    return _listed(ends[0], peer[1], here[1]) if found is None else found or None


def _ends(peer: Address, here: Address) -> tuple[socket.AddressFamily, list[bytes], int, int] | None:
    family = socket.AF_INET6 if ":" in peer[0] and not peer[0].startswith("::ffff:") else socket.AF_INET
    try:
        ends = [socket.inet_pton(family, one[0].removeprefix("::ffff:").partition("%")[0]) for one in (peer, here)]
    except OSError:
        return None
    return family, ends, peer[1], here[1]


def _asked_of_kernel(family: int, ends: list[bytes], source: int, target: int) -> int | None:
    """The inode; 0 where there is no such socket or it is not ours to look for; None where the kernel cannot be asked."""
    identity = _PORTS.pack(source, target) + ends[0].ljust(16, b"\0") + ends[1].ljust(16, b"\0")
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity + _REST.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
    message = _MESSAGE.pack(_MESSAGE.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + query
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(SEARCH)
            kernel.send(message)
            answer = kernel.recv(4096)
    except OSError:
        return None
    if len(answer) < _MESSAGE.size + 4:
        return None
    kind = _MESSAGE.unpack_from(answer)[1]
    if kind == _ERROR and struct.unpack_from("=i", answer, _MESSAGE.size) == (-errno.ENOENT,):
        return 0
    if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _FOUND + 8:
        return None
    user, inode = struct.unpack_from("=II", answer, _FOUND)
    # Whose descriptors we may not read: a search would look at all others in vain.
    return int(inode) or None if os.geteuid() in (0, user) else 0


def _listed(family: int, source: int, target: int) -> int | None:
    """The same from /proc/net/tcp, where a sandbox has no sock_diag."""
    line = re.compile(rf"^ *\d+: [0-9A-F]+:{source:04X} [0-9A-F]+:{target:04X} 01 (?:\S+ +){{5}}(\d+)", re.MULTILINE)
    try:
        with open("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp") as file:
            found = line.search(file.read(1 << 24))
    except OSError:
        return None
    return int(found[1]) or None if found else None
