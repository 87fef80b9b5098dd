"""Notice, or refuse, the connections of a command to services that are not in its network: unix sockets, and vsock.

A network namespace does not hold them: a database, a container engine or D-Bus at a unix socket of the host works for a
captive command as for any other. The kernel reports each `connect`, and each datagram with an address
(`proxy/capture/watch/seccomp.py`). What the command itself listens on is its own. Connections are not noticed if they are
made by io_uring, which a replay refuses, or by 32-bit programs, and datagrams if they are sent by `sendmsg`. The kernel reads an address again when
the call continues: a program that changes it meanwhile, from another thread, reaches what it likes. This finds oversights,
and stops no attacker.
"""

import ctypes
import errno
import fcntl
import ipaddress
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from proxy.capture.watch.local_services import IO_URING_REFUSAL, is_message_bus, outside_service
from proxy.capture.watch.process_memory import ip_address, socket_address
from proxy.capture.watch.seccomp import ANSWER, CONTINUE, IO_URING, RECEIVE, REQUEST, RESPONSE, call_numbers

MAX_DESTINATIONS: Final = 256
"""Destinations that are counted. Others are counted together."""

OTHERS: Final = "other sockets"

IO_URING_DESTINATION: Final = "io_uring", IO_URING
"""What stands for protocol and destination where io_uring is refused."""


_DATAGRAM: Final = "0002"
_CONNECTED: Final = "03"
"""A type and a state of a socket in /proc/net/unix."""


class LocalSockets(threading.Thread):
    """A thread that answers the notifications of one command."""

    def __init__(self, listener: int, *, allowed: Collection[str], own_directory: Path, refuses: bool) -> None:
        """`allowed`: paths of sockets that may be reached. `own_directory`: that of Playhead's own sockets, which a recording may reach."""
        super().__init__(name="watch local sockets", daemon=True)
        self._listener = listener
        self._allowed = {os.path.realpath(one) for one in allowed}
        self._own_directory = os.path.realpath(own_directory)
        self._refuses = refuses
        self._command = 0
        self._began = time.time()
        self._stop_pipe, self._wake = os.pipe()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.unread_reason = ""
        """Why addresses could not be read; empty if they could."""

        self._connect, self._io_uring = call_numbers()["connect"], call_numbers()[IO_URING]

    def begin(self, command: int) -> None:
        """Start the thread. `command`: the process of the command."""
        self._command = command
        self.start()

    def run(self) -> None:
        """Answer notifications until no process with the filter is left, or until `stop`."""
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._stop_pipe, select.POLLIN)
        while True:
            events = dict(waiting.poll())
            if events.get(self._listener, 0) & select.POLLIN:
                self._answer()
            elif events:
                return

    def stop(self) -> int | None:
        """Stop the thread. Returns the listener if processes are left whose notifications must be answered."""
        os.write(self._wake, b".")
        self.join()
        os.close(self._stop_pipe)
        os.close(self._wake)
        ready = select.poll()
        ready.register(self._listener, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in ready.poll(0)):
            os.close(self._listener)
            return None
        return self._listener

    def connections(self) -> list[dict[str, Any]]:
        """Return what was noticed, in the form of the proxy worker's report."""
        return [self._connection_report(*key, count) for key, count in list(self._counts.items())]

    def _answer(self) -> None:
        request = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(self._listener, RECEIVE, request)
        except OSError:
            return  # the calling process has ended
        name, pid, _, number, _, _, *arguments = REQUEST.unpack(request)
        if number == self._io_uring:
            self._counts[IO_URING_DESTINATION] += 1
            with suppress(OSError):
                fcntl.ioctl(self._listener, ANSWER, RESPONSE.pack(name, 0, -errno.EPERM, 0))
            return
        found = None
        try:
            at, size = arguments[1:3] if number == self._connect else arguments[4:6]
            raw = socket_address(pid, at, size)
            if at and size and not raw and ctypes.get_errno() == errno.EPERM:
                self.unread_reason = (
                    "the system does not allow reading the addresses (kernel.yama.ptrace_scope, ptrace(2))"
                )
            found = self._destination(pid, raw)
        except Exception as bug:  # noqa: BLE001 - a guard: each further connection would wait for a thread that has ended
            self.unread_reason = f"a bug in reading an address ({bug!r})"
        # Before the answer: then the command may end, and its report be made.
        if found is not None:
            self._counts[
                found if found in self._counts or len(self._counts) < MAX_DESTINATIONS else (found[0], OTHERS)
            ] += 1
        is_refused = found is not None and found[0] != "udp" and self._refuses
        answer = (-errno.ECONNREFUSED, 0) if is_refused else (0, CONTINUE)
        with suppress(OSError):
            fcntl.ioctl(self._listener, ANSWER, RESPONSE.pack(name, 0, *answer))

    def _destination(self, pid: int, raw: bytes) -> tuple[str, str] | None:
        """Return the service outside of the command's network that an address names; None for all else."""
        if service := outside_service(pid, raw):
            return None if service[0] == "unix" and self._is_excepted(pid, service[1]) else service
        if (address := ip_address(raw)) and ipaddress.ip_address(address[0]).is_multicast:
            # Nobody answers to it, not even with a refusal.
            host, port = address
            return "udp", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return None

    def _is_excepted(self, pid: int, path: str) -> bool:
        # A `playhead up` of this machine listens there, too, and would record for the command of a replay from the network.
        is_playhead = not self._refuses and os.path.dirname(path) == self._own_directory
        return path in self._allowed or is_playhead or self._is_own(pid, path)

    def _is_own(self, pid: int, path: str) -> bool:
        """Whether a process in the command's network listens at this socket."""
        try:
            found = os.stat(f"/proc/{pid}/root{path}")
        except OSError:
            return False
        own = [str(process) for process in {pid, self._command}]
        if any(_is_bound(process, path, found) for process in own):
            return True
        if _is_bound("self", path, found):
            return False
        # One that was moved or linked is not at the path at which it was bound, and of a relative path only the name is known.
        return found.st_ctime >= self._began or any(_has_relative_path(process, path) for process in own)

    def _connection_report(self, protocol: str, destination: str, count: int) -> dict[str, Any]:
        is_refused = self._refuses or protocol == "udp"
        return {
            "destination": destination,
            "address": destination,
            "protocol": protocol,
            "outcome": "refused" if is_refused else "passed",
            # Without the service the command may have behaved otherwise, as without a refused connection over TCP.
            "past_proxy": is_refused and protocol in ("unix", "vsock") and not is_message_bus(destination),
            "reason": _reason(protocol, destination, is_refused=is_refused),
            "sent": 0,
            "received": 0,
            "count": count,
        }


def _reason(protocol: str, destination: str, *, is_refused: bool) -> str:
    if protocol == "udp":
        return "a captive command can send no datagrams except DNS queries"
    if protocol == "io_uring":
        return IO_URING_REFUSAL
    what = "unix socket" if protocol == "unix" else "vsock address"
    if not is_refused:
        return f"a connection to the {what} {destination} passed: what passed there was not recorded"
    fix = "; --allow-local PATH lets it pass" if protocol == "unix" and destination != OTHERS else ""
    return f"no connections to services outside of the record are made{fix}"


def _is_bound(process: str, path: str, found: os.stat_result) -> bool:
    """Whether a socket in the network of a process is bound to this path."""
    with suppress(OSError):
        for bound in _bound_paths(process):
            if bound == path:
                return True
            if bound.startswith("/") and os.path.basename(bound) == os.path.basename(path):
                with suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{process}/root{bound}"), found):
                        return True
    return False


def _has_relative_path(process: str, path: str) -> bool:
    """Whether a socket in the network of a process is bound to a relative path with this name."""
    with suppress(OSError):
        bound_paths = (bound for bound in _bound_paths(process) if not bound.startswith("/"))
        return any(os.path.basename(bound) == os.path.basename(path) for bound in bound_paths)
    return False


def _bound_paths(process: str) -> Iterator[str]:
    """Yield the paths to which sockets are bound in the network of a process.

    The service's end of a connection is in the network of its client, and has the path of the service.
    """
    with open(f"/proc/{process}/net/unix", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            fields = line.rstrip("\n").split(None, 7)
            if (
                len(fields) == 8
                and not fields[7].startswith("@")
                and (fields[5] != _CONNECTED or fields[4] == _DATAGRAM)
            ):
                yield fields[7]
