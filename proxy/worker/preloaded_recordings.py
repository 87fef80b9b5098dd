"""Load runs of the store before anybody asks for them, so that the first request of a replay need not wait.

These are the newest runs, replays that were just created over REST, and runs for which a client has opened a tunnel: its TLS
handshake takes some of the time of loading.

What is loaded is used only as long as its run is unchanged (`proxy.worker.run_versions`), and once: the replay that uses it has it
from then on.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.model import UnknownFormat
from calls.project_runs import full_run_name, split_run_name
from proxy.errors import Failure
from proxy.worker.recordings import Fetch, FetchMany, FoundRecording
from proxy.worker.run_versions import RunVersion, VersionReader
from replay.recording import EXCHANGE_SIZE, build_recording, held_bytes
from store.bundle.bundle import BadBundle, Bundle
from store.bundle.rows_bundle import StoredRun
from store.database.blobs import CorruptData

MOST_RUNS: Final = 2048
"""Half as many as there are versions of runs: with more, a run that changes would often look like another one."""

MOST_BYTES: Final = 32 << 20
"""Bytes of memory of all recordings that are loaded ahead."""

MOST_EXCHANGES: Final = MOST_BYTES // 4 // EXCHANGE_SIZE
"""Exchanges of a run that is loaded ahead: it takes a quarter of that memory at most, if it has few large bodies."""

MOST_EXPECTED: Final = 8
"""Runs that are loaded at a time because clients have opened tunnels for them. A further one is loaded by its request."""

BATCH_RUNS: Final = 50
BATCH_CHARACTERS: Final = 1500
"""Characters of the names of runs that are loaded together: the audit log has the first 2,000 of a request."""

REST: Final = 2.0
"""How many times as long as a load took the next one is put off: requests come first."""

START_INTERVAL: Final = 0.5
"""Seconds between two tries while the store server starts."""

LOOK_INTERVAL: Final = 10.0
"""Seconds between two looks whether there are other runs."""

ANNOUNCED_INTERVAL: Final = 0.1
"""Seconds between two looks at shared memory whether a replay was created."""

type ListRuns = Callable[[int, int], Awaitable[list[str]]]
"""Returns the full names of the newest runs, so many at most, that have at most so many exchanges."""


class _PreloadedRecording(msgspec.Struct, kw_only=True):
    found: FoundRecording
    runs: tuple[str, ...]
    version: tuple[RunVersion, ...]
    size: int
    is_expected: bool = False
    """Whether it was loaded because a request for it is expected, not because it is one of the newest runs."""

    version_now: Awaitable[tuple[RunVersion, ...]] | None = None
    """The version that was asked for when the head of the last request came."""


@dataclass(slots=True, kw_only=True)
class PreloadedRecordings:
    """Recordings that were loaded ahead."""

    fetch: Fetch
    fetch_many: FetchMany
    list_runs: ListRuns
    profiles: Profiles
    versions: VersionReader
    replays_directory: Path
    """Has the reports of commands' replays, whose names mean their recordings."""

    is_replaying: Callable[[str], bool] = lambda _name: False
    """Whether there is a replay of this name, which needs nothing loaded any more."""

    _recordings: dict[str, _PreloadedRecording] = field(init=False, default_factory=dict)
    _expected: asyncio.Queue[str] = field(init=False, default_factory=lambda: asyncio.Queue(MOST_EXPECTED))
    """Names of runs for which a client has opened a tunnel, until they are being loaded."""

    _loading: dict[str, asyncio.Event] = field(init=False, default_factory=dict)
    """Those that are being loaded."""

    def expect(self, full_name: str) -> None:
        """Load a run soon, or ask whether what was loaded of it is unchanged: a client will most likely ask for it.

        It is called again for each request whose head has come, so the version is asked for no earlier than that.
        """
        if (one := self._recordings.get(full_name)) is not None:
            one.version_now = self.versions.ask(one.runs)
        is_known = full_name in self._recordings or full_name in self._loading or self._is_replay(full_name)
        if not is_known and len(self._loading) < MOST_EXPECTED:
            self._loading[full_name] = asyncio.Event()
            self._expected.put_nowait(full_name)

    async def load_announced(self) -> None:
        """Load replays and forks that are created over REST, one after the other, until cancelled."""
        position: int | None = None
        with closing(self.versions):
            while True:
                position, names = self.versions.announced_replays(position)
                for name in names:
                    self.expect(name)
                    if (loading := self._loading.get(name)) is not None:
                        await loading.wait()
                await asyncio.sleep(ANNOUNCED_INTERVAL)

    async def load_expected(self) -> None:
        """Load runs that are expected, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._load_expected(await self._expected.get()))

    async def _load_expected(self, name: str) -> None:
        try:
            loaded = await self._load(name)
            if loaded is not None:
                loaded.is_expected = True
                self._recordings[name] = loaded
                self._limit_size(name)
        finally:
            self._loading.pop(name).set()

    def _limit_size(self, newest: str) -> None:
        """Forget what was loaded first until all fits into the memory, with the newest, which may be larger."""
        excess = sum(one.size for one in self._recordings.values()) - MOST_BYTES
        for name in list(self._recordings):
            if excess > 0 and name != newest:
                excess -= self._recordings.pop(name).size

    def loaded_recording(self, full_name: str) -> FoundRecording | None:
        """Return what was loaded under this name, though it may have changed since."""
        one = self._recordings.get(full_name)
        return None if one is None or self._is_replay(full_name) else one.found

    def _expected_names(self) -> Iterator[str]:
        """Return what a request is expected for, without what was loaded first of more than half of the memory."""
        size = 0
        for name, one in reversed(self._recordings.items()):
            size += one.size if one.is_expected else 0
            if one.is_expected and size <= MOST_BYTES // 2:
                yield name

    async def take(self, full_name: str) -> FoundRecording | None:
        """Return what was loaded under this name, once; None if nothing was, or if it has changed since."""
        one = self._pop(full_name)
        return await _if_unchanged(one, self._version_now(one)) if one is not None else None

    def fetch_or_take(self, full_name: str) -> Awaitable[FoundRecording]:
        """Return what was loaded under this name, or else fetch it. Whether it has changed is asked when this is called."""
        if full_name in self._loading:
            return self._take_when_loaded(full_name, self._loading[full_name])
        one = self._pop(full_name)
        if one is None:
            return self.fetch(full_name)
        return self._take_or_fetch(full_name, one, self._version_now(one))

    def _version_now(self, one: _PreloadedRecording) -> Awaitable[tuple[RunVersion, ...]]:
        return one.version_now or self.versions.read(one.runs)

    async def keep_loading(self) -> None:
        """Load runs whenever there are new ones, until cancelled."""
        loaded_state: object | None = None
        while True:
            state = await self.versions.state()
            if state is None or state != loaded_state:
                loaded_state = state if state is not None and await self.load_newest() else None
            await asyncio.sleep(START_INTERVAL if loaded_state is None else LOOK_INTERVAL)

    async def load_newest(self) -> bool:
        """Load the newest runs, and forget those that have changed. False if the store server does not answer yet."""
        await self._forget_changed()
        try:
            names = await self.list_runs(MOST_RUNS, MOST_EXCHANGES)
        except Failure:
            return False
        for name in set(self._recordings) - set(names) - set(self._expected_names()):
            del self._recordings[name]
        loop = asyncio.get_running_loop()
        size = sum(one.size for one in self._recordings.values())
        waiting = deque(name for name in names if name not in self._recordings and not self.is_replaying(name))
        while waiting and size < MOST_BYTES:
            batch = _next_batch(waiting)
            # Read first: what changes while it is loaded is no longer this version.
            read = dict(zip(batch, await self.versions.read(batch), strict=True))
            batch = [name for name in batch if read[name] is not None]
            if not batch:
                continue
            began = loop.time()
            try:
                fetched = await self.fetch_many(batch)
            except Failure:
                return False
            except (BadBundle, CorruptData):
                fetched = dict.fromkeys(batch)  # the others of the batch can be used
            if not fetched:
                return False
            # What did not fit into the answer is first of the next one.
            waiting.extendleft(name for name in reversed(batch) if name not in fetched)
            for name, found in fetched.items():
                loaded = await (self._load(name) if found is None else self._build(found, (name,), (read[name],)))
                if loaded is not None:
                    size += loaded.size
                    if size > MOST_BYTES:
                        break
                    self._recordings[name] = loaded
                await asyncio.sleep((loop.time() - began) * REST)
                began = loop.time()
        return True

    async def _load(self, name: str) -> _PreloadedRecording | None:
        """Load the recording of one run; None if it cannot be used."""
        runs: tuple[str, ...] = (name,)
        # A run may be answered by its newest generation, whose name is known once it is loaded.
        while True:
            version_then = self.versions.read_all()
            version = version_then(runs) if version_then else await self.versions.read(runs)
            if None in version:
                return None
            try:
                found = await self.fetch(name)
            except (Failure, BadBundle, CorruptData, UnknownFormat):
                return None  # the request that needs it says so
            if found.bundle is None or _lacks_bodies(found.bundle):
                return None
            project = split_run_name(name)[0]
            # A replay that was created over REST is that of a run.
            loaded_runs = (name, full_run_name(project, found.run), full_run_name(project, str(found.bundle.run["id"])))
            if version_then:
                runs, version = loaded_runs, version_then(loaded_runs)
            elif not set(loaded_runs) <= set(runs):
                runs = loaded_runs
                continue
            if found.is_edited:
                # The request that needs it edits it, and builds what answers.
                return _PreloadedRecording(found=found, runs=runs, version=version, size=held_bytes(found.bundle))
            return await self._build(found, runs, version)

    async def _build(
        self, found: FoundRecording, runs: tuple[str, ...], version: tuple[RunVersion, ...]
    ) -> _PreloadedRecording | None:
        """Make what answers requests of a recording; None if it cannot be used."""
        bundle = found.bundle
        if bundle is None or None in version or _lacks_bodies(bundle):
            return None
        recording = found.recording
        if recording is None:
            try:
                recording = await asyncio.to_thread(build_recording, bundle, self.profiles)
            except (CorruptData, UnknownFormat):
                return None  # the request that needs it says so
        return _PreloadedRecording(
            found=replace(found, recording=recording), runs=runs, version=version, size=recording.size
        )

    async def _forget_changed(self) -> None:
        """Forget what has changed since it was loaded."""
        loaded = dict(self._recordings)
        versions = iter(await self.versions.read([run for one in loaded.values() for run in one.runs]))
        for name, one in loaded.items():
            if tuple(islice(versions, len(one.runs))) != one.version or self._is_replay(name):
                self._recordings.pop(name, None)

    async def _take_or_fetch(
        self, name: str, one: _PreloadedRecording, version: Awaitable[tuple[RunVersion, ...]]
    ) -> FoundRecording:
        return await _if_unchanged(one, version) or await self.fetch(name)

    async def _take_when_loaded(self, name: str, loaded: asyncio.Event) -> FoundRecording:
        await loaded.wait()
        return await self.take(name) or await self.fetch(name)

    def _pop(self, name: str) -> _PreloadedRecording | None:
        one = self._recordings.pop(name, None)
        return None if one is None or self._is_replay(name) else one

    def _is_replay(self, name: str) -> bool:
        # A path of pathlib would take three times as long, and the first request of a replay waits for this.
        return os.path.exists(f"{self.replays_directory}/{split_run_name(name)[1]}.json")


async def _if_unchanged(one: _PreloadedRecording, version: Awaitable[tuple[RunVersion, ...]]) -> FoundRecording | None:
    """Return what was loaded if this is still its version."""
    return one.found if await version == one.version else None


def _next_batch(waiting: deque[str]) -> list[str]:
    """Take the next names that are loaded together."""
    batch = [waiting.popleft()]
    size = len(batch[0])
    while waiting and len(batch) < BATCH_RUNS and size + len(waiting[0]) <= BATCH_CHARACTERS:
        batch.append(waiting.popleft())
        size += len(batch[-1])
    return batch


def _lacks_bodies(bundle: Bundle) -> bool:
    """Whether object storage did not have a body, which may be there when it is needed."""
    return not isinstance(bundle.entries, StoredRun) or bundle.entries.lacks_bodies
