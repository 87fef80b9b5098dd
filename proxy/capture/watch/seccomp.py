"""The seccomp(2) filter by which the kernel reports system calls to a listener, and the format of its notifications.

Standard library only, and little of it: programs that become a command import it.
"""

import ctypes
import errno
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIRST_KERNEL = 5, 5
"""The first version of Linux that lets a reported call continue. On earlier ones each would wait for ever."""

MACHINES: "Mapping[str, tuple[int, int, dict[str, int]]]" = {
    "x86_64": (
        0xC000003E,
        317,
        {"bind": 49, "connect": 42, "listen": 50, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "io_uring_setup": 425},
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            "bind": 200,
            "connect": 203,
            "listen": 201,
            "sendto": 206,
            "sendmsg": 211,
            "sendmmsg": 269,
            "io_uring_setup": 425,
        },
    ),
}
"""AUDIT_ARCH, the number of seccomp, and those of other system calls, by machine (linux/audit.h, asm/unistd.h)."""

IO_URING = "io_uring_setup"
"""A call that a replay refuses: what a program does through io_uring is not reported, not even connections."""

X32 = 0x40000000
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5
NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06

RECEIVE, ANSWER = 0xC0502100, 0xC0182101
"""ioctl numbers: SECCOMP_IOCTL_NOTIF_RECV and …_SEND."""

REQUEST = struct.Struct("=QIIiIQ6Q")
RESPONSE = struct.Struct("=QqiI")
CONTINUE = 1

LIBC = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_void_p)]


def call_numbers() -> dict[str, int]:
    """Return the numbers of the system calls on this machine. Raises KeyError."""
    return MACHINES[os.uname().machine][2]


def linux_version() -> tuple[int, int]:
    """Return the first two numbers of the kernel's version."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor.split("-")[0])


def filter_program(arch: int, always: "Sequence[int]", sendto: int) -> tuple[bytes, int]:
    """Return a classic BPF program that reports some calls, and `sendto` with an address; and its length."""
    address = 16 + 8 * 4
    """The offset of the fifth argument of a call, in two halves."""
    notify = 9 + len(always)
    allow = notify + 1
    lines = [
        (LOAD, 0, 0, 4),  # the architecture
        (EQUAL, 0, allow - 2, arch),
        (LOAD, 0, 0, 0),  # the number of the call
        (AT_LEAST, allow - 4, 0, X32),
        *((EQUAL, notify - 5 - place, 0, number) for place, number in enumerate(always)),
        (EQUAL, 0, 5, sendto),
        (LOAD, 0, 0, address),
        (EQUAL, 0, 2, 0),
        (LOAD, 0, 0, address + 4),
        (EQUAL, 1, 0, 0),
        (RETURN, 0, 0, NOTIFY),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines), len(lines)


def install_filter(always: "Sequence[str]", *, may_lose_privileges: bool) -> int:
    """Install the filter for this thread and the program that it executes. Returns the listener. Raises OSError.

    With CAP_SYS_ADMIN setuid programs still work. Without it the kernel requires that they gain no privileges.
    """
    if os.uname().machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter for {os.uname().machine}")
    if linux_version() < FIRST_KERNEL:
        raise OSError(errno.ENOSYS, f"Linux 5.5 or later is needed, and this is {os.uname().release}")
    arch, seccomp, numbers = MACHINES[os.uname().machine]
    code, length = filter_program(arch, [numbers[name] for name in always], numbers["sendto"])
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_struct = Filter(length, ctypes.addressof(buffer))

    def install_with(flags: int) -> int:
        return int(LIBC.syscall(seccomp, SET_MODE_FILTER, flags, ctypes.byref(filter_struct)))

    def install() -> int:
        # Where the kernel can, a call that is being answered is not interrupted by a signal: a program that expects no EINTR from
        # `connect`, such as Python's asyncio, takes it for a connection that is being made. Linux before 5.19 refuses that flag.
        listener = install_with(NEW_LISTENER | WAIT_KILLABLE)
        return install_with(NEW_LISTENER) if listener < 0 and ctypes.get_errno() == errno.EINVAL else listener

    listener = install()
    if listener < 0 and may_lose_privileges:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        listener = install()
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener
