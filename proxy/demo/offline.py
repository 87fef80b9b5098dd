"""Run a command without a network: `python -m proxy.demo.offline COMMAND…`.

The command runs in its own network namespace (Linux): with no interface but an empty loopback, no route and no DNS. If
the kernel or a container's rules forbid that, the exit status is 125 and the command has not run.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FORBIDDEN_EXIT_CODE = 125

SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1


def can_leave_network() -> bool:
    """Whether this user may run commands without a network, which is tested by running `true` that way."""
    return subprocess.run(without_network(["true"]), check=False, capture_output=True).returncode == 0


def without_network(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command without a network."""
    return [sys.executable, "-m", "proxy.demo.offline", *command]


def leave_network() -> None:
    """Enter a network namespace with an empty loopback. Raises OSError if that is not allowed."""
    if os.geteuid() == 0:
        os.unshare(os.CLONE_NEWNET)
    else:
        _unshare_as_user()
    raise_loopback()


def _unshare_as_user() -> None:
    """Enter a network namespace in a user namespace with the same user id, as users other than root may."""
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def raise_loopback() -> None:
    """Bring loopback up, which is down in a new namespace and has no addresses then."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main(command: Sequence[str]) -> None:
    try:
        leave_network()
    except OSError as error:
        sys.stderr.write(f"a command cannot run without a network here: {error.strerror}\n")
        sys.exit(FORBIDDEN_EXIT_CODE)
    os.execvp(command[0], list(command))  # noqa: S606 - the user's own command, without a shell


if __name__ == "__main__":
    main(sys.argv[1:])
