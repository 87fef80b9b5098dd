"""Answer a request of the API in a helper process: the same routes, their answer written to a file."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.types import Message, Scope

from calls.keys.profile import Profiles
from calls.redaction.call import Clean
from store.access.grants import GRANT
from store.anchors.targets import AnchorTargets
from store.api.app import install_routes
from store.api.deps import Deps, EditCheck
from store.database.connection import Database
from store.ingest.ingester import Counts
from store.large.jobs import RenderJob, RenderResult
from store.proof.signing_keys import LogKeys
from store.run_modes import RunModes
from store.worker_counters import WorkerCounters

PROGRESS: Final = 0.5
"""Seconds between two progress reports of an answer."""

PIECE: Final = 1 << 20


class _KnownSpoolState:
    """The spool state for the routes of a helper process: what the store server has found out."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.troubles: dict[str, str] = {}
        self.worker_counters = WorkerCounters(Path())
        self.spools = 0
        self.is_settled = False

    def bytes_pending(self) -> int:
        """Return 0: a helper process is never asked for metrics."""
        return 0

    async def wait_until_settled(self, patience: float, *, reports: bool = False) -> bool:  # noqa: ARG002 - it was waited for
        return self.is_settled

    def note_database_lost(self) -> None:
        """Do nothing: the answer reports it to the store server."""


class Renderer:
    """Answers one request after another with the routes of the API."""

    def __init__(
        self,
        *,
        database: Database,
        profiles: Profiles,
        clean: Clean,
        mode: str,
        replays: Path | None,
        edit_problem: EditCheck | None,
        log_keys: LogKeys | None = None,
        checkpoints: Path | None = None,
        anchors: AnchorTargets = AnchorTargets(),  # noqa: B008 - it is immutable
    ) -> None:
        self._settled = _KnownSpoolState()
        deps = Deps(
            store_server=self._settled,
            database=database,
            profiles=profiles,
            clean=clean,
            mode=mode,
            run_modes=RunModes(replays) if replays else None,
            edit_problem=edit_problem,
            log_keys=log_keys,
            checkpoint_directory=checkpoints,
            anchors=anchors,
        )
        self._app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        install_routes(self._app, deps)

    async def render(self, job: RenderJob, report: Callable[[RenderResult], None]) -> RenderResult:
        """Write the answer to the job's file; `report` is called while the answer grows. Raises MemoryError."""
        self._settled.is_settled = bool(job.settled)
        body = Path(job.body) if job.body else None
        with Path(job.to).open("wb", buffering=0) as file:  # noqa: ASYNC230 - this process does nothing else
            answer = _Answer(file.write, report)
            size = body.stat().st_size if body else 0
            await self._app(_scope(job, size), _Body(body, size).receive, answer.write_message)
        assert answer.rendering is not None, "a route that sends no response raises"
        return answer.rendering


class _Body:
    """A request's body, read from its file piece by piece."""

    def __init__(self, file: Path | None, size: int) -> None:
        self._pieces = _pieces(file)
        self._remaining = size
        self._is_over = False

    async def receive(self) -> Message:
        """Return the next piece as an ASGI message."""
        if self._is_over:
            # A streaming route waits here for a disconnect, which must not come: it would end the stream.
            await asyncio.Event().wait()
        piece = next(self._pieces, b"")
        self._remaining -= len(piece)
        self._is_over = self._remaining <= 0 or not piece
        return {"type": "http.request", "body": piece, "more_body": not self._is_over}


def _pieces(file: Path | None) -> Iterator[bytes]:
    if file is not None:
        with file.open("rb") as content:
            while piece := content.read(PIECE):
                yield piece


class _Answer:
    """Receives the messages of a response."""

    def __init__(self, write: Callable[[memoryview], int], report: Callable[[RenderResult], None]) -> None:
        self.rendering: RenderResult | None = None
        self._write = write
        self._report = report
        self._reported = time.monotonic()

    async def write_message(self, message: Message) -> None:
        """Keep the head, or write a piece of the body; report progress."""
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            self.rendering = RenderResult(status=message["status"], headers=headers)
            return
        rest = memoryview(message.get("body", b""))
        while rest:
            rest = rest[self._write(rest) :]
        assert self.rendering is not None
        if message.get("more_body") and time.monotonic() > self._reported + PROGRESS:
            self._report(self.rendering)
            self._reported = time.monotonic()


def _scope(job: RenderJob, size: int) -> Scope:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in job.headers]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": job.method,
        "scheme": "http",
        "path": job.path,
        "raw_path": job.path.encode(),
        "query_string": job.query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-length", str(size).encode()), *headers],
        "server": ("localhost", 0),
        "client": ("localhost", 0),
        GRANT: job.grant,
    }
