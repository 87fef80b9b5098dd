"""Run a command without a network: `python -m proxy.demo.offline COMMAND…`.

A namespace of its own (Linux): no interface but loopback, no route, no DNS, and nothing of this machine's own
loopback either. Where the kernel or a container's rules forbid that, the exit status is 125 and the command has not run.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FORBIDDEN = 125

SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def allowed() -> bool:
    """Whether this user may cut the network off, found out by doing it for a moment."""
    return subprocess.run(without_network(["true"]), check=False, capture_output=True).returncode == 0


def without_network(command: Sequence[str]) -> list[str]:
    """The command line that runs this command line without a network."""
    return [sys.executable, "-m", "proxy.demo.offline", *command]


def cut() -> None:
    """Leave every network behind but an empty loopback. Raises OSError where that is not allowed."""
    if os.geteuid() == 0:
        os.unshare(os.CLONE_NEWNET)
    else:
        _as_nobody_special()
    raise_loopback()


def _as_nobody_special() -> None:
    """Who is not root may have a network namespace inside a user namespace, and stay who he is there."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def raise_loopback() -> None:
    """A new namespace's loopback is down; its addresses come with being up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main(command: Sequence[str]) -> None:
    try:
        cut()
    except OSError as error:
        sys.stderr.write(f"the network cannot be cut off here: {error.strerror}\n")
        sys.exit(FORBIDDEN)
    os.execvp(command[0], list(command))  # noqa: S606 - the user's own command, without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
