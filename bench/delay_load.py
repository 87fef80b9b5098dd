"""The load generator of `bench.delay`.

`python -m bench.delay_load` reads its options as one line of JSON from stdin and writes the times of each call to
stdout as JSON. It makes calls at times drawn in advance (a Poisson process, because callers are independent), whether
or not earlier calls have been answered, on connections that it keeps open. The time of a call is the time that it is
under way: until the upstream has read the request, and from when the upstream sent the answer until all of it has
arrived. Client and upstream use the same clock.
"""

import json
import random
import re
import select
import ssl
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from bench.http_codecs import Http1Client
from bench.load_client import HOST
from bench.sample_bodies import Bodies
from bench.wire import Connection, MeasurementFailed, through

REQUEST_BYTES: Final = 1024

_READ: Final = re.compile(rb"X-Read: (\d{19})\r\nX-Sent: (\d{19})")
_AT: Final = re.compile(rb'"at":"(\d{19})"')


class Call:
    """One call that is under way."""

    def __init__(self, *, is_stream: bool) -> None:
        self.sent_at = time.monotonic_ns()
        self.first_at = 0
        """When the first event, or all of a whole answer, had arrived."""

        self._is_stream = is_stream
        self._data = b""

    def take(self, data: bytes) -> bool:
        """Process received data of the answer; whether it is complete now."""
        self._data += data
        head, blank, body = self._data.partition(b"\r\n\r\n")
        if not blank:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise MeasurementFailed(f"answered with {self._data[:400]!r}")
        if self._is_stream:
            if not self.first_at and b"\n\n" in body:
                self.first_at = time.monotonic_ns()
            return body.endswith(b"\r\n0\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length is None or len(body) < int(length[1]):
            return False
        self.first_at = time.monotonic_ns()
        return True

    def summarize(self, now: int) -> dict[str, int]:
        """Return the nanoseconds of the way to the upstream and of the way back."""
        found = _READ.search(self._data)
        if found is None:
            raise MeasurementFailed(f"an answer without times: {self._data[:400]!r}")
        read_at, answered_at = int(found[1]), int(found[2])
        last_at = int(_AT.findall(self._data)[-1]) if self._is_stream else answered_at
        return {
            "sent": self.sent_at,
            "read": read_at,
            "answered": answered_at,
            "first": self.first_at,
            "last": last_at,
            "end": now,
        }


class DelayLoad:
    """Connections and the calls on them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._is_stream = config["kind"] == "stream"
        self._poll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._idle: deque[Connection] = deque()
        self._calls: dict[int, Call] = {}
        self._bodies = Bodies(REQUEST_BYTES, seed=1)
        self._number = int(config["first"])
        self._asking = Http1Client(f"/{config['kind']}?wait={config['wait']}", config.get("host", HOST))
        self.finished: list[dict[str, int]] = []

    def run(self) -> dict[str, Any]:
        """Connect, make the calls, and return the times of each except those that warm up."""
        config = self._config
        trust = ssl.create_default_context(cafile=config["ca"]) if config["ca"] else None
        for _ in range(config["connections"]):
            connection = through(config["proxy"], f"{HOST}:443", HOST, config["port"], config["run"], trust)
            self._connections[connection.fileno()] = connection
            self._idle.append(connection)
            self._poll.register(connection, select.EPOLLIN)
        warm = config["connections"] * 3
        total = warm + int(config["rate"] * config["seconds"])
        draw = random.Random(config["first"])
        due = time.monotonic()
        for _ in range(total):
            due += draw.expovariate(config["rate"])
            self._wait(due)
            while not self._idle:
                self._wait(time.monotonic() + 0.05)
            self._ask(self._idle.popleft())
        end = time.monotonic() + 10
        while self._calls and time.monotonic() < end:
            self._wait(min(time.monotonic() + 0.05, end))
        if self._calls:
            raise MeasurementFailed(f"{len(self._calls)} calls were not answered within 10 s")
        self.finished.sort(key=lambda call: call["sent"])
        return {"calls": self.finished[warm:], "asked": total}

    def _ask(self, connection: Connection) -> None:
        data = self._asking.ask(self._bodies[self._number])
        self._number += 1
        self._calls[connection.fileno()] = Call(is_stream=self._is_stream)
        connection.send(data)
        if connection.waits:
            connection.wait()

    def _wait(self, until: float) -> None:
        """Read answers until that time."""
        while True:
            wait = until - time.monotonic()
            # `poll` rounds its time up to a millisecond.
            for number, _ in self._poll.poll(max(wait, 0)):
                self._read(number)
            if wait <= 0:
                return

    def _read(self, number: int) -> None:
        connection = self._connections[number]
        data = connection.receive()
        if data == b"":
            raise MeasurementFailed(f"a connection was closed after {len(self.finished)} calls")
        call = self._calls.get(number)
        if data and call and call.take(data):
            self.finished.append(call.summarize(time.monotonic_ns()))
            del self._calls[number]
            self._idle.append(connection)


def main() -> None:
    """Make the calls."""
    config = json.loads(sys.stdin.readline())
    try:
        found = DelayLoad(config).run()
    except (MeasurementFailed, OSError) as fault:
        found = {"failed": f"{type(fault).__name__}: {fault}"}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
