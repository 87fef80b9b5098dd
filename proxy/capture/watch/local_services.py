"""Services that a command reaches by other ways than its network: unix sockets, and vsock."""

import os
import re
import socket
import stat
import struct
from typing import Final, Literal

type Protocol = Literal["unix", "vsock"]

CONTAINER_ENGINES: Final = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
)
"""Sockets of container engines, which start programs outside of the captive network. A replay hides them."""

IO_URING_REFUSAL: Final = "connections that are made through it are not noticed, and a replay contacts nobody"

_OF_THE_SESSION: Final = re.compile(
    r"^/tmp/\.X11-unix/|^/run/user/\d+/(wayland-|pipewire-|pulse/)|/S\.gpg-agent|^/dev/log$|^/run/systemd/(journal|notify|userdb)\b"
    r"|^/(var/)?run/nscd/|^/var/lib/sss/pipes/"
)
"""Screen, sound, logs, users' names and agents that sign: they keep no data for the command and reach no network."""

_MESSAGE_BUS: Final = re.compile(r"^/run/(dbus/system_bus_socket|user/\d+/(bus|at-spi/bus\S*))$")

_OF_THE_READER: Final = re.compile(r"^(?:/proc/(?:thread-)?self(?=/)|/dev(?=/fd/))")
"""The beginnings of paths that mean the descriptors of whoever reads them."""

_UNIX_HEAD: Final = 2
_VSOCK: Final = struct.Struct("=HHII")


def outside_service(pid: int, raw: bytes) -> tuple[Protocol, str] | None:
    """Return the service that an address in a process names, if it is at a unix socket's path or at a vsock address."""
    family = struct.unpack_from("=H", raw)[0] if len(raw) > _UNIX_HEAD else socket.AF_UNSPEC
    if family == socket.AF_UNIX:
        path = unix_path(pid, raw)
        return ("unix", path) if path and _is_service(pid, path) else None
    if family == socket.AF_VSOCK and len(raw) >= _VSOCK.size:
        _, _, port, machine = _VSOCK.unpack_from(raw)
        return "vsock", f"{machine}:{port}"
    return None


def unix_path(pid: int, raw: bytes) -> str:
    """Return the path that an address in a process names; empty if it is none of a unix socket with a path."""
    if len(raw) <= _UNIX_HEAD or struct.unpack_from("=H", raw)[0] != socket.AF_UNIX:
        return ""
    # An abstract socket begins with a zero, and belongs to the network.
    name = raw[_UNIX_HEAD:].split(b"\0", 1)[0]
    return absolute_path(pid, os.fsdecode(name)) if name else ""


def is_message_bus(path: str) -> bool:
    """Whether a socket is D-Bus's, at which libraries of desktops and browsers look on their own account."""
    return _MESSAGE_BUS.match(path) is not None


def absolute_path(pid: int, path: str) -> str:
    """Return the path of a socket, which may be relative to the directory of the process, without symbolic links.

    It is empty if the process has ended.
    """
    if not path.startswith("/"):
        try:
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)
        except OSError:
            return ""
    return os.path.realpath(_OF_THE_READER.sub(f"/proc/{pid}", path))


def _is_service(pid: int, path: str) -> bool:
    if _OF_THE_SESSION.search(path) or path == os.path.realpath(os.environ.get("SSH_AUTH_SOCK") or "/"):
        return False
    try:
        mode = os.stat(f"/proc/{pid}/root{path}").st_mode
    except OSError:
        return False  # the call fails, or it cannot be seen what it names
    # The socket of a container engine is hidden from a replay by a mount of /dev/null.
    return stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and path in CONTAINER_ENGINES)
