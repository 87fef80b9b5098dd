"""Run one program of `forking.py` with the directory, environment and files of this process: `calling.py SOCKET ARGUMENT…`.

It ends with the exit status of the program; the program is stopped when this process is killed. Little is imported: this is
started for each process that a suite's plugin starts.
"""

import _socket
import marshal
import os
import sys


def run(path: str, arguments: list[str]) -> int:
    """Run one program, and return its exit status."""
    request = marshal.dumps({"directory": os.getcwd(), "environment": dict(os.environ), "arguments": arguments})
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(path)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    return int(server.recv(16))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
