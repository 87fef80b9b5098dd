"""Run a proxy worker that writes down when each step of a call ends: `python -m bench.delay_trace`.

Its configuration, on stdin, is that of a worker with `"trace": FILE` added. The methods on a call's path are replaced
by ones that also note the time (CLOCK_MONOTONIC, as in the client and the upstream), so an untraced worker has no hook
and no cost. When it stops, it writes the notes to the file, as a line of JSON for each: `[ns, step]`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.lane.client import Http1Connection
from proxy.lane.relay import RelayedExchange
from proxy.lane.tls import Tls
from proxy.lane.upstream import Upstream
from proxy.wire.recording_guard import RecordingGuard
from proxy.worker import process
from proxy.worker.process_limits import raise_file_limit
from proxy.worker_config import WorkerConfig
from store.spool import Spool

BEFORE: Final = (
    (Http1Connection, "data_received", "request decrypted"),
    (RelayedExchange, "start", "head read"),
    (RecordingGuard, "record_request", "request begun"),
    (Spool, "write_now", "write begins"),
    (Upstream, "data_received", "answer decrypted"),
    (RelayedExchange, "handle_whole_response", "answer parsed"),
    (RelayedExchange, "handle_end", "end parsed"),
)
AFTER: Final = (
    (RecordingGuard, "record_request", "request redacted"),
    (Spool, "write_now", "write ends"),
    (RecordingGuard, "record_response", "answer redacted"),
    (Http1Connection, "send", "answer sent"),
    (Http1Connection, "finish_exchange", "exchange over"),
    (Spool, "_end_group", "group over"),
    (Spool, "_wait_for_syncing", "sync begins"),
)

notes: list[tuple[int, str]] = []


def note_before(owner: type, method: str, step: str) -> None:
    """Replace a method by one that notes the time when it is called."""
    original: Callable[..., Any] = getattr(owner, method)

    @wraps(original)
    def noting(*args: Any, **more: Any) -> Any:
        notes.append((time.monotonic_ns(), step))
        return original(*args, **more)

    setattr(owner, method, noting)


def note_after(owner: type, method: str, step: str) -> None:
    """Replace a method by one that notes the time when it returns."""
    original: Callable[..., Any] = getattr(owner, method)

    @wraps(original)
    def noting(*args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        notes.append((time.monotonic_ns(), step))
        return found

    setattr(owner, method, noting)


def note_reads() -> None:
    """Note when bytes of either side have been read."""
    original = Tls.data_received

    def noting(self: Tls, data: bytes) -> None:
        is_client = self._tls.server_side
        notes.append((time.monotonic_ns(), "request read" if is_client else "answer read"))
        original(self, data)

    Tls.data_received = noting  # type: ignore[method-assign]


def main() -> None:
    """Run the worker, and write the notes."""
    config = json.loads(sys.stdin.buffer.readline())
    file = Path(config.pop("trace"))
    note_reads()
    for owner, method, step in BEFORE:
        note_before(owner, method, step)
    for owner, method, step in AFTER:
        note_after(owner, method, step)
    worker = msgspec.convert(config, type=WorkerConfig)
    raise_file_limit()
    try:
        asyncio.run(process.main(worker), loop_factory=process._event_loop_factory(worker))
    finally:
        file.write_text("".join(f"{json.dumps(note)}\n" for note in notes))


if __name__ == "__main__":
    main()
