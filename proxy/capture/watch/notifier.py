"""Start a command so that its supervisor is notified before it, or a process that it starts, opens a connection.

This file runs as a script (`python -I -S notifier.py …`) in the process that becomes the command, so it imports nothing
of Playhead. It installs a seccomp(2) filter that reports `connect`, `listen`, `sendto` with an address, `sendmsg` and
`sendmmsg` to a listener, sends the listener over a socket, and executes the command. With `pass`, it answers for the
processes that outlive the supervisor, so that their calls continue: without a listener the calls would fail.
"""

import ctypes
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading

CALLS = {
    # machine: (AUDIT_ARCH, seccomp, connect, listen, sendto, sendmsg, sendmmsg)
    "x86_64": (0xC000003E, 317, 42, 50, 44, 46, 307),
    "aarch64": (0xC00000B7, 277, 203, 201, 206, 211, 269),
}
"""System calls by machine (linux/audit.h, asm/unistd.h)."""

X32 = 0x40000000
PR_SET_NO_NEW_PRIVS = 38
SET_MODE_FILTER, NEW_LISTENER = 1, 1 << 3
NOTIFY, ALLOW = 0x7FC00000, 0x7FFF0000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06

RECEIVE, ANSWER = 0xC0502100, 0xC0182101
"""ioctl numbers: SECCOMP_IOCTL_NOTIF_RECV and …_SEND."""

REQUEST = struct.Struct("=QIIiIQ6Q")
RESPONSE = struct.Struct("=QqiI")
CONTINUE = 1
FAILED = 125

LIBC = ctypes.CDLL(None, use_errno=True)


def filter_program(arch: int, connect: int, listen: int, sendto: int, sendmsg: int, sendmmsg: int) -> tuple[bytes, int]:
    """Return the filter as the classic BPF program that seccomp(2) takes, and its length."""
    notify, allow = 13, 14
    address = 16 + 8 * 4
    """The offset of the fifth argument of a call, in two halves."""
    lines = [
        (LOAD, 0, 0, 4),  # the architecture
        (EQUAL, 0, allow - 2, arch),
        (LOAD, 0, 0, 0),  # the number of the call
        (AT_LEAST, allow - 4, 0, X32),
        (EQUAL, notify - 5, 0, connect),
        (EQUAL, notify - 6, 0, listen),
        (EQUAL, notify - 7, 0, sendmsg),
        (EQUAL, notify - 8, 0, sendmmsg),
        (EQUAL, 0, allow - 9, sendto),
        (LOAD, 0, 0, address),
        (EQUAL, 0, notify - 11, 0),
        (LOAD, 0, 0, address + 4),
        (EQUAL, allow - 13, 0, 0),
        (RETURN, 0, 0, NOTIFY),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines), len(lines)


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_void_p)]


def install_filter() -> int:
    """Install the filter for this thread and the program that it executes. Returns the listener."""
    arch, seccomp, *calls = CALLS[platform.machine()]
    code, length = filter_program(arch, *calls)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_struct = Filter(length, ctypes.addressof(buffer))

    def install() -> int:
        return int(LIBC.syscall(seccomp, SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(filter_struct)))

    # With CAP_SYS_ADMIN setuid programs still work. Without it the kernel requires that they gain no privileges.
    listener = install()
    if listener < 0:
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        listener = install()
    if listener < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return listener


def become_command(channel: socket.socket, command: list[str]) -> None:
    """Send the listener, or the reason why there is none, and execute the command."""
    listener: list[int | Exception] = []
    ready, done = threading.Event(), threading.Event()

    def send() -> None:
        ready.wait()
        if isinstance(listener[0], int):
            socket.send_fds(channel, [b"ok"], [listener[0]])
            channel.recv(1)
        else:
            channel.send(str(listener[0]).encode())
        done.set()

    # The filter does not apply to this thread: its calls would wait for ever, because no supervisor answers them yet.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        listener.append(install_filter())
    except (OSError, KeyError) as error:
        listener.append(error)
    ready.set()
    done.wait()
    sender.join()
    if isinstance(listener[0], int):
        os.close(listener[0])
    channel.close()
    # Python ignores these signals, and the command would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own command
    except OSError as error:
        sys.stderr.write(f"playhead: cannot run {command[0]}: {error.strerror}\n")
        os._exit(FAILED)


def pass_all(listener: int) -> None:
    """Let every call continue, until no process with the filter is left."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        (_, event), *_ = waiting.poll()
        if not event & select.POLLIN:
            return
        request = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(listener, RECEIVE, request)
            fcntl.ioctl(listener, ANSWER, RESPONSE.pack(REQUEST.unpack(request)[0], 0, 0, CONTINUE))
        except OSError:
            continue  # the calling process has ended


if __name__ == "__main__":
    role, descriptor, *rest = sys.argv[1:]
    if role == "pass":
        pass_all(int(descriptor))
    else:
        if rest[0] == "unset-lc-ctype":
            # Python sets it if the locale is C (PEP 538).
            os.environ.pop("LC_CTYPE", None)
        become_command(socket.socket(fileno=int(descriptor)), rest[1:])
