"""Start a command so that its supervisor is notified before it, or a process that it starts, opens a connection.

This file runs as a script (`python -I -S notifier.py …`) in the process that becomes the command, so it imports little.
It installs a seccomp(2) filter that reports `bind`, `connect`, `listen`, `sendto` with an address, `sendmsg` and
`sendmmsg` to a listener, sends the listener over a socket, and executes the command. With `pass`, it answers for the
processes that outlive the supervisor, so that their calls continue: without a listener the calls would fail.
"""

import errno
import fcntl
import os
import select
import signal
import socket
import sys
import threading

if __name__ == "__main__":
    # An interpreter that is isolated from the environment and site-packages does not find Playhead's package.
    sys.path.append(os.path.abspath(__file__).rsplit("/proxy/", 1)[0])

from proxy.capture.watch.seccomp import (
    ANSWER,
    CONTINUE,
    IO_URING,
    RECEIVE,
    REQUEST,
    RESPONSE,
    call_numbers,
    install_filter,
)

FAILED = 125

CALLS = ("bind", "connect", "listen", "sendmsg", "sendmmsg")
"""What is reported, beside `sendto` with an address."""


def become_command(channel: socket.socket, command: list[str], *, refuses: bool) -> None:
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
        calls = (*CALLS, IO_URING) if refuses else CALLS
        listener.append(install_filter(calls, may_lose_privileges=True))
    except OSError as error:
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


def answer_all(listener: int, *, refuses: bool) -> None:
    """Let every call continue, or refuse those that reach others, until no process with the filter is left."""
    numbers = call_numbers()
    harmless = numbers["bind"], numbers["listen"]
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        (_, event), *_ = waiting.poll()
        if not event & select.POLLIN:
            return
        request = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(listener, RECEIVE, request)
            name, _, _, number, *_ = REQUEST.unpack(request)
            error, flags = (-errno.ECONNREFUSED, 0) if refuses and number not in harmless else (0, CONTINUE)
            fcntl.ioctl(listener, ANSWER, RESPONSE.pack(name, 0, error, flags))
        except OSError:
            continue  # the calling process has ended


if __name__ == "__main__":
    role, descriptor, *rest = sys.argv[1:]
    if role in ("pass", "refuse"):
        answer_all(int(descriptor), refuses=role == "refuse")
    else:
        how, locale, *command = rest
        if locale == "unset-lc-ctype":
            # Python sets it if the locale is C (PEP 538).
            os.environ.pop("LC_CTYPE", None)
        become_command(socket.socket(fileno=int(descriptor)), command, refuses=how == "refuse")
