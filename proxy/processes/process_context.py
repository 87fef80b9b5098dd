"""What a process passes on to those that it starts: so that a fork of another process may stand for one of them, and whether it suffices."""

import hashlib
import os
import resource
import sys
from pathlib import Path
from typing import Final

import proxy

_STATUS: Final = (
    b"Umask:",
    b"Uid:",
    b"Gid:",
    b"Groups:",
    b"Cap",
    b"NoNewPrivs:",
    b"Seccomp",
    b"Cpus_allowed:",
    b"Mems_allowed:",
)
"""Beginnings of the lines of /proc/self/status that a child inherits and cannot change at will."""

_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "user", "uts")

_READ_AT_START: Final = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "OPENSSL", "LC_", "LANG", "TZ", "UV_")
"""Beginnings of the variables that the interpreter and libraries read when they start."""

_SET_FOR_CHILDREN: Final = "PYTHONSAFEPATH"

_LIMITS: Final = {name: number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}

LEAST_FILES: Final = 64
"""With fewer, Postgres does not start, and descriptors that processes pass one another are lost on the way."""


def too_low_file_limit() -> int | None:
    """Return the limit of open files (`ulimit -n`) if it is too low for Playhead's processes; None if it is not."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if 0 <= limit < LEAST_FILES else None


def describe_context() -> str | None:
    """Return a digest of what this process's children inherit and a fork of another process could not be given.

    None: this system does not say it.
    """
    if sys.platform != "linux":
        return None
    try:
        status = Path("/proc/self/status").read_bytes().splitlines()
        parts = [
            *(line for line in status if line.startswith(_STATUS)),
            *(os.readlink(f"/proc/self/ns/{name}").encode() for name in _NAMESPACES),
            Path("/proc/self/cgroup").read_bytes(),
            os.readlink("/proc/self/root").encode(),
        ]
    except OSError:
        return None
    limits = [(name, resource.getrlimit(number)) for name, number in sorted(_LIMITS.items())]
    code = (sys.executable, sys.prefix, sys.version, proxy.__path__[0], os.nice(0), limits)
    variables = sorted(
        (name, value)
        for name, value in os.environb.items()
        if os.fsdecode(name).startswith(_READ_AT_START) and os.fsdecode(name) != _SET_FOR_CHILDREN
    )
    return hashlib.sha256(repr((parts, code, variables)).encode()).hexdigest()
