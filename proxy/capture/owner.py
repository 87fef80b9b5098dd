"""Find the process that owns a client's connection, and name its run after the agent that the process belongs to.

The kernel gives the socket's inode (sock_diag(7), else /proc/net/tcp). The process is found by searching the descriptors
of readable processes for that inode. Processes of other users, containers and machines cannot be seen: then the owner is
the machine, and attribution by that alone is a guess.
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
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from proxy.capture.process import Process, find_agent, read_process, redacted_command, start_of_process

FIND_TIMEOUT: Final = 3.0
"""Seconds that a connection waits until its owner is found. On a busy machine a search of 20 ms may take a second."""

SEARCH_CPU_TIME: Final = 0.25
"""Seconds of CPU after which the search of all descriptors stops, so that a busy machine does not end it."""

KERNEL_TIMEOUT: Final = 0.25
"""Seconds to wait for the kernel's answer."""

MAX_WAITING: Final = 128
"""Connections that may wait for their owners at once. More are attributed to the machine."""

MAX_KNOWN: Final = 2048
"""Connections whose owners are remembered."""

MAX_RECENT: Final = 32
"""Processes that are searched first, because they have opened connections before."""

MAX_SEEN_SOCKETS: Final = 4096
"""Sockets that are remembered with their processes, when a search passes them."""

MAX_TRIED_DESCRIPTORS: Final = 32
"""Descriptors that are checked on the event loop, at 4 µs each."""

MAX_HOLDER_DESCRIPTORS: Final = 16
"""Descriptors of a process's last connections that are remembered. A new one gets the lowest free number, often one
of them."""

NEXT_DESCRIPTORS: Final = 4
"""How many numbers after the highest of those descriptors are checked."""

type Address = tuple[str, int]


class Owner(str):
    """The run of a connection, named after its owner."""

    __slots__ = ("process",)
    process: str
    """The agent's pid, start and command line; empty if it is not known."""

    def __new__(cls, run: str, process: str = "") -> "Owner":
        owner = super().__new__(cls, run)
        owner.process = process
        return owner


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has opened a connection."""

    pid: int
    start_time: int
    descriptors: tuple[int, ...]
    """The descriptors of its last connections, the last one first."""

    owner: Owner

    def with_descriptor(self, descriptor: int) -> "Holder":
        """Return the holder with this descriptor as that of its last connection."""
        if descriptor == self.descriptors[0]:
            return self
        others = tuple(one for one in self.descriptors if one != descriptor)
        return replace(self, descriptors=(descriptor, *others[: MAX_HOLDER_DESCRIPTORS - 1]))


@dataclass(slots=True)
class Owners:
    """The owners of one proxy worker's connections."""

    prefix: str
    """The run of connections from processes of this machine that cannot be seen."""

    port: int = 0
    """The worker's port."""

    _known: OrderedDict[Address, Owner] = field(init=False, default_factory=OrderedDict)
    _holders: OrderedDict[int, Holder] = field(init=False, default_factory=OrderedDict)
    """The processes that opened connections last, by their pids, the last one last."""

    _search: "ProcessSearch | None" = field(init=False, default=None)
    _pool: ThreadPoolExecutor | None = field(init=False, default=None)
    _waiting: int = field(init=False, default=0)

    def machine_owner(self, peer: Address | None) -> Owner:
        """Return the owner of a connection of which only the address is known."""
        host = peer[0] if peer else ""
        return Owner(self.prefix if _is_loopback(host) or not host else f"{self.prefix}-{host.replace('%', '-')}")

    def known_owner(self, peer: Address | None) -> Owner:
        """Return the owner of a connection as far as it is known."""
        return self._known.get(peer[:2], self.machine_owner(peer)) if peer else self.machine_owner(peer)

    def reset_owner(self, peer: Address | None) -> Owner:
        """Forget the owner of an earlier connection from the same address, for a new connection."""
        if peer:
            self._known.pop(peer[:2], None)
        return self.machine_owner(peer)

    def can_find(self, peer: Address | None, local: Address | None) -> bool:
        """Whether the owner may be a process that can be seen."""
        if not (sys.platform == "linux" and peer and local and self._waiting < MAX_WAITING):
            return False
        return peer[:2] not in self._known and (_is_loopback(peer[0]) or peer[0] == local[0])

    def find_at_once(self, peer: Address, local: Address) -> Owner | None:
        """Return the owner of a connection if it can be found without a search; None: `find` has to be awaited.

        The kernel's answer and a few descriptors take about 0.2 ms (measured on a busy machine). Most connections are from
        a process that had one before, with the same descriptor or one of the next.
        """
        ends = _packed_ends(peer, local)
        inode = _query_kernel(*ends) if ends else 0
        if inode is None:
            return None
        if not inode:
            return self._remember(peer, None)
        holder = self._expected_holder(
            f"socket:[{inode}]", self._search.seen_descriptor(inode) if self._search else None
        )
        return self._remember(peer, holder) if holder else None

    async def find(self, peer: Address, local: Address) -> Owner:
        """Search for the owner of a connection; the machine if its process cannot be seen."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="owner")
            self._search = ProcessSearch(self.port)
        assert self._search is not None
        self._waiting += 1
        found: Holder | None = None
        search = self._pool.submit(self._search.find_holder, peer, local)
        try:
            async with asyncio.timeout(FIND_TIMEOUT):
                found = await asyncio.wrap_future(search)
        except TimeoutError:
            # If this process did not run for so long, the search may have ended in time.
            if search.done() and not search.cancelled():
                found = search.result()
        finally:
            self._waiting -= 1
        return self._remember(peer, found)

    def _expected_holder(self, link: str, place: tuple[int, int] | None) -> Holder | None:
        """Return the process that has this socket under a likely descriptor; None if there is none."""
        for known, descriptor in islice(self._likely_descriptors(place), MAX_TRIED_DESCRIPTORS):
            if _is_link(known.pid, descriptor, link):
                is_same = start_of_process(known.pid) == known.start_time
                return known.with_descriptor(descriptor) if is_same else None
        return None

    def _likely_descriptors(self, place: tuple[int, int] | None) -> Iterator[tuple[Holder, int]]:
        """Yield processes and descriptors, the most likely first."""
        if place and place[0] in self._holders:
            yield self._holders[place[0]], place[1]
        for known in reversed(self._holders.values()):
            highest = max(known.descriptors)
            for descriptor in (*known.descriptors, *range(highest + 1, highest + 1 + NEXT_DESCRIPTORS)):
                yield known, descriptor

    def _remember(self, peer: Address, holder: Holder | None) -> Owner:
        owner = self.machine_owner(peer) if holder is None else holder.owner
        self._known[peer[:2]] = owner
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        if holder:
            before = self._holders.get(holder.pid)
            if before and before.start_time == holder.start_time:
                holder = before.with_descriptor(holder.descriptors[0])
            self._holders[holder.pid] = holder
            self._holders.move_to_end(holder.pid)
            if len(self._holders) > MAX_RECENT:
                self._holders.popitem(last=False)
        return owner


class ProcessSearch:
    """Finds processes by their sockets. Not thread-safe."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._agents: OrderedDict[tuple[int, int], Process] = OrderedDict()
        self._places: dict[int, tuple[int, int]] = {}
        """The pid and descriptor of sockets that were seen, by inode. Other threads may read it."""

    def seen_descriptor(self, inode: int) -> tuple[int, int] | None:
        """Return the pid and descriptor with which a socket was last seen. They may have changed since."""
        return self._places.get(inode)

    def find_holder(self, peer: Address, local: Address) -> Holder | None:
        """Find the process that owns the client's end of a connection, and the agent that it belongs to."""
        inode = socket_inode(peer, local)
        found = self._find_descriptor(inode) if inode else None
        process = read_process(found[0]) if found else None
        if not found or not process:
            return None
        agent = self._cached_agent(process)
        owner = Owner(agent.run, describe_process(agent))
        return Holder(pid=process.pid, start_time=process.start_time, descriptors=(found[1],), owner=owner)

    def _find_descriptor(self, inode: int) -> tuple[int, int] | None:
        """Find the process with a descriptor of this socket, and the descriptor."""
        place = self._places.get(inode)
        if place and _is_link(*place, f"socket:[{inode}]"):
            return place
        until = time.thread_time() + SEARCH_CPU_TIME
        for pid in self._candidate_pids():
            descriptor = self._find_descriptor_in(pid, inode)
            if descriptor is not None:
                self._recent[pid] = None
                self._recent.move_to_end(pid)
                if len(self._recent) > MAX_RECENT:
                    self._recent.popitem(last=False)
                return pid, descriptor
            if time.thread_time() > until:
                break
        return None

    def _find_descriptor_in(self, pid: int, inode: int) -> int | None:
        """Find the descriptor of a socket in a process, and remember the process's other sockets.

        So one search finds most sockets of a process that opens many connections at once.
        """
        if len(self._places) > MAX_SEEN_SOCKETS:
            self._places.clear()
        for descriptor in _descriptors(pid):
            link = _descriptor_link(pid, descriptor)
            if link.startswith("socket:["):
                other = int(link[8:-1])
                self._places[other] = (pid, descriptor)
                if other == inode:
                    return descriptor
                if len(self._places) > 2 * MAX_SEEN_SOCKETS:
                    break
        return None

    def _candidate_pids(self) -> Iterator[int]:
        recent = list(reversed(self._recent))
        yield from recent
        excluded_pids, mine, user = set(recent), os.getpid(), os.geteuid()
        # New processes open connections more often than old ones.
        for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
            if pid not in excluded_pids and pid != mine and (user == 0 or _user_of_process(pid) == user):
                yield pid

    def _cached_agent(self, process: Process) -> Process:
        agent = self._agents.get((process.pid, process.start_time))
        if agent is None:
            agent = self._group_leader(find_agent(process, self._port))
            self._agents[process.pid, process.start_time] = agent
            self._agents[agent.pid, agent.start_time] = agent
            while len(self._agents) > MAX_KNOWN:
                self._agents.popitem(last=False)
        return agent

    def _group_leader(self, agent: Process) -> Process:
        """Return the known agent that leads this process's group, although the processes between have ended (double fork)."""
        if agent.group == agent.pid:
            return agent
        leaders = (
            one for one in self._agents.values() if one.pid == agent.group and one.start_time <= agent.start_time
        )
        return next(leaders, agent)


def describe_process(process: Process) -> str:
    """Describe a process, as evidence."""
    seconds = process.start_time / os.sysconf("SC_CLK_TCK")
    return f"pid {process.pid}, started {seconds:.2f} s after boot: {redacted_command(process.arguments)}"


def _is_loopback(host: str) -> bool:
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def _user_of_process(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def _descriptors(pid: int) -> list[int]:
    """Return a process's descriptors, the highest first."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
    except OSError:
        return []


def _descriptor_link(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def _is_link(pid: int, descriptor: int, link: str) -> bool:
    return _descriptor_link(pid, descriptor) == link


# -- query the kernel for one connection by its addresses and ports (sock_diag(7), linux/inet_diag.h)

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_ERROR: Final = 2
_MESSAGE = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_REST = struct.Struct("=III")
_FOUND: Final = _MESSAGE.size + 4 + 48 + 3 * 4
"""The offset of the user and the inode in the answer."""


def socket_inode(peer: Address, local: Address) -> int | None:
    """Return the inode of the client's socket; None if it cannot be found."""
    ends = _packed_ends(peer, local)
    if ends is None:
        return None
    found = _query_kernel(*ends)
    return _read_proc_net(ends[0], peer[1], local[1]) if found is None else found or None


def _packed_ends(peer: Address, local: Address) -> tuple[socket.AddressFamily, list[bytes], int, int] | None:
    family = socket.AF_INET6 if ":" in peer[0] and not peer[0].startswith("::ffff:") else socket.AF_INET
    try:
        ends = [socket.inet_pton(family, one[0].removeprefix("::ffff:").partition("%")[0]) for one in (peer, local)]
    except OSError:
        return None
    return family, ends, peer[1], local[1]


def _query_kernel(family: int, ends: list[bytes], source: int, target: int) -> int | None:
    """Return a socket's inode; 0 if there is none, or its user's processes cannot be read; None if sock_diag fails."""
    identity = _PORTS.pack(source, target) + ends[0].ljust(16, b"\0") + ends[1].ljust(16, b"\0")
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity + _REST.pack(0, 0xFFFFFFFF, 0xFFFFFFFF)
    message = _MESSAGE.pack(_MESSAGE.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + query
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(KERNEL_TIMEOUT)
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
    # The descriptors of other users' processes cannot be read, so a search would be in vain.
    return int(inode) or None if os.geteuid() in (0, user) else 0


def _read_proc_net(family: int, source: int, target: int) -> int | None:
    """Return a socket's inode from /proc/net/tcp, for sandboxes without sock_diag; None if there is none."""
    line = re.compile(rf"^ *\d+: [0-9A-F]+:{source:04X} [0-9A-F]+:{target:04X} 01 (?:\S+ +){{5}}(\d+)", re.MULTILINE)
    try:
        with open("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp") as file:
            found = line.search(file.read(1 << 24))
    except OSError:
        return None
    return int(found[1]) or None if found else None
