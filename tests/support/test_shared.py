"""One process for several users, which ends with the last of them."""

import os
import select
import socket
import sys
from pathlib import Path

from tests.support import shared

SERVER = """
import os, runpy, select, socket, sys
has_no_users = runpy.run_path(sys.argv[1])["has_no_users"]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[2])
listener.listen()
os.write(1, b"ready\\n")
while True:
    if listener in select.select([listener, sys.stdin], [], [])[0]:
        listener.accept()[0].send(str(os.getpid()).encode())
    elif has_no_users(sys.argv[2]):
        break
"""
COMMAND = [sys.executable, "-IS", "-c", SERVER, shared.__file__]


def ask_pid(path: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(60)
        server.connect(str(path))
        return int(server.recv(16))


def test_a_process_is_shared_and_ends_with_its_last_user() -> None:
    with shared.shared_process("any", COMMAND) as path:
        pid = ask_pid(path)
        with shared.shared_process("any", COMMAND) as same:
            assert (same, ask_pid(same)) == (path, pid)
        assert ask_pid(path) == pid, "one user is left"
        handle = os.pidfd_open(pid)
    # It is about to end: it goes on serving, or is gone and another one is started.
    with shared.shared_process("any", COMMAND) as path:
        assert ask_pid(path)
    with open(handle, closefd=True):
        assert select.select([handle], [], [], 60)[0], "it outlived its users"
