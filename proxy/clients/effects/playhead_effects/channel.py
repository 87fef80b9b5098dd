"""The connection to the worker: JSON messages after their length. It is written without waiting for long, and never raises."""

import json
import os
import socket

START_TIMEOUT = 90.0
"""Seconds that the worker may take to answer the first message: it may have to load a recording for it."""

TIMEOUT = 5.0
"""Seconds that the worker may take after that; then the program goes on, and nothing more is recorded."""


class Channel:
    """One connection of this process."""

    def __init__(self, path, hello):
        self.owner = os.getpid()
        self.is_broken = False
        self._is_sending = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(START_TIMEOUT)
        self._socket.connect(path)
        self.send(hello)
        self.answer = json.loads(self.receive())

    def send(self, value):
        """Send a message; False if the worker did not take it."""
        # A signal's handler may end the process while a message is being sent: no other may begin inside of it.
        if self.is_broken or self._is_sending:
            return False
        data = json.dumps(value, separators=(",", ":")).encode()
        self._is_sending = True
        try:
            self._socket.sendall(len(data).to_bytes(4, "big") + data)
        except OSError:
            self.is_broken = True
        finally:
            self._is_sending = False
        return not self.is_broken

    def receive(self):
        """Receive a message."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size):
        pieces = []
        while size:
            piece = self._socket.recv(min(size, 1 << 20))
            if not piece:
                raise OSError("the worker has closed the connection")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def end_start(self):
        """From now on do not wait for long."""
        self._socket.settimeout(TIMEOUT)

    def close(self):
        """Close the connection once the worker has read all of it."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            if self._socket.recv(1):
                pass
        except OSError:
            pass
        self._socket.close()

    def drop(self):
        """Close the descriptor in a forked child, whose parent goes on with the connection."""
        self.is_broken = True
        self._socket.close()
