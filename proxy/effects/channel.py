"""The socket of a worker on which the effects hooks of commands connect.

In a recording, their effects are redacted and written to the spool. In a replay, each gets the recorded effects of its process, and says
how many of them were asked for.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from calls.effects.items import InvalidEffects, count_results, encode_items, read_items
from calls.effects.redact_items import redact_item
from calls.project_runs import RUN_ID
from proxy.capture.control_path import MAX_PATH_BYTES, remove_directory_elsewhere
from proxy.effects.frames import encode_frame, read_frame
from proxy.recording.recorder import Recorder
from proxy.wire.access import Access
from store.private_file import listen_privately, remove_abandoned_sockets

if TYPE_CHECKING:
    # A worker that only records imports none of this, which takes a tenth of its start.
    from replay.effects import EffectsReplay

logger = logging.getLogger(__name__)

MOST_PROCESSES: Final = 256
"""Processes that are connected at a time."""

MOST_OF_RUN: Final = 256 << 20
"""Bytes of effects that one connection may record; what follows is a gap."""

HELLO_TIMEOUT: Final = 30.0


class _Refusal(Exception):
    """A connection is not served. The message is for the hook."""


class RecordedEffects(Protocol):
    """Finds what answers the effects of a run: the replays of a worker, or the running test of a suite."""

    async def effects_of(self, run: str | None) -> "EffectsReplay | None":
        """Return the effects that answer this run; None if they are recorded. Raises UnusableRecording."""


class EffectsChannel:
    """Serves the hooks of one worker."""

    def __init__(self, access: Access, recorder: Recorder | None, replays: RecordedEffects | None) -> None:
        self._access = access
        self._recorder = recorder
        self._replays = replays
        self._connected = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self, path: Path) -> AsyncIterator[None]:
        """Listen on this path. Where that is not possible, commands run without effects."""
        server = await self._listen(path)
        try:
            yield
        finally:
            if server is not None:
                server.close()
                await asyncio.to_thread(path.unlink, missing_ok=True)
                remove_directory_elsewhere(path)
                await self._finish()

    async def _listen(self, path: Path) -> asyncio.Server | None:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            return None
        try:
            listener = await asyncio.to_thread(_listen_on, path)
            server = await asyncio.start_unix_server(self._connect, sock=listener, limit=1 << 20)
        except OSError as error:
            logger.warning("effects cannot be recorded: cannot listen on %s: %s", path, error)
            return None
        return server

    async def _finish(self) -> None:
        """Wait a little for what processes that have ended sent last."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connected += 1
        try:
            await self._serve(reader, writer)
        except _Refusal as refused:
            with suppress(OSError):
                writer.write(encode_frame(json.dumps({"mode": "off", "why": str(refused)}).encode()))
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            logger.warning("the connection of an effects hook broke: %s", error)
        finally:
            self._connected -= 1
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HELLO_TIMEOUT):
            run, process = self._authorize(await read_frame(reader))
        found = await self._replay_of(run)
        if found is not None:
            found.connected += 1
            try:
                await _answer_replay(found, process, writer)
                recorder = self._recorder if found.is_recorded else None
                await self._follow_replay(found, recorder, run, process, reader)
            finally:
                found.connected -= 1
        elif self._recorder is not None:
            writer.write(encode_frame(b'{"mode": "record"}'))
            await writer.drain()
            await self._record(self._recorder, run, process, reader)
        else:
            raise _Refusal("this worker records nothing")

    def _authorize(self, hello: bytes | None) -> tuple[str, str]:
        """Return the full name of the run, and the process. Raises _Refusal."""
        if self._connected > MOST_PROCESSES:
            raise _Refusal(f"{MOST_PROCESSES} processes are connected already")
        try:
            message = json.loads(hello or b"{}")
            run, token, process = str(message["run"]), str(message.get("token") or ""), str(message["process"])[:200]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _Refusal("the first message of a hook has its run, token and process") from None
        credentials = run, token
        if not RUN_ID.fullmatch(run) or not self._access.is_admitted(credentials):
            raise _Refusal("the run or its token is not valid for this worker")
        full_name = self._access.full_run_name(run, credentials)
        if not self._access.can_write(full_name, credentials):
            raise _Refusal(f"run {run} is claimed by another command")
        return full_name, process

    async def _replay_of(self, run: str) -> "EffectsReplay | None":
        if self._replays is None:
            return None
        from replay.replays import UnusableRecording

        try:
            return await self._replays.effects_of(run)
        except UnusableRecording as why:
            raise _Refusal(str(why)) from why

    async def _record(self, recorder: Recorder, run: str, process: str, reader: asyncio.StreamReader) -> None:
        batches = _ProcessBatches(recorder, run, process)
        while (data := await read_frame(reader)) is not None:
            if not await batches.record(data):
                return

    async def _follow_replay(
        self, found: "EffectsReplay", recorder: Recorder | None, run: str, process: str, reader: asyncio.StreamReader
    ) -> None:
        """Note how a replay goes and, of a fork, record what its processes get."""
        batches = _ProcessBatches(recorder, run, process) if recorder is not None else None
        while (data := await read_frame(reader)) is not None:
            if not data.startswith(b"["):
                found.note(process, json.loads(data))
            elif batches is not None:
                await batches.record(data)


class _ProcessBatches:
    """Records the batches of one process."""

    def __init__(self, recorder: Recorder, run: str, process: str) -> None:
        self._recorder = recorder
        self._run = run
        self._process = process
        self._number = 0
        self._room = MOST_OF_RUN

    async def record(self, data: bytes) -> bool:
        """Record a batch; False once the process has sent too much."""
        recorder, was_open = self._recorder, self._room >= 0
        self._room -= len(data)
        if self._room < 0:
            if was_open:
                reason = f"process {self._process} had more than {MOST_OF_RUN:,} bytes of effects"
                recorder.record_gap(self._run, reason)
            return False
        try:
            # Searching megabytes for secrets would delay the requests that this worker serves.
            items, count = await asyncio.to_thread(_redact_batch, data, recorder)
        except InvalidEffects as error:
            recorder.record_gap(self._run, f"effects of process {self._process} could not be recorded: {error}")
            return True
        recorder.record_effects(self._run, self._process, self._number, count, items)
        self._number += 1
        return True


def _redact_batch(data: bytes, recorder: Recorder) -> tuple[bytes, int]:
    items = read_items(data)
    return encode_items([redact_item(item, recorder.redactor) for item in items]), count_results(items)


async def _answer_replay(found: "EffectsReplay", process: str, writer: asyncio.StreamWriter) -> None:
    recorded = found.items_of(process)
    head: Mapping[str, Any] = {
        "mode": "fork" if found.is_recorded else "replay",
        "frames": len(recorded),
        "processes": found.processes,
        "rules": await asyncio.to_thread(found.rules),
    }
    writer.write(encode_frame(json.dumps(head).encode()))
    for items in recorded:
        writer.write(encode_frame(items))
        await writer.drain()


def _listen_on(path: Path) -> socket.socket:
    with suppress(OSError):
        remove_abandoned_sockets(path.parent, "*.effects", socket.SOCK_STREAM)
    return listen_privately(path, socket.SOCK_STREAM)
