"""Ask which versions runs have, for recordings that were loaded ahead."""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from calls.project_runs import split_run_name
from store.database.run_versions import RunVersions
from store.feed.stored_versions import MOST_RUNS, PACKET_BYTES, VersionAnswer, VersionQuestion

ANSWER_TIMEOUT: Final = 2.0
"""Seconds to wait for a store server that does not answer. Then the run is fetched."""

type RunVersion = int | str | None
"""The version of a run; None if there is none that says that it is unchanged."""


type AnnouncedReplays = Callable[[int | None], tuple[int | None, list[str]]]
"""Returns a position, and the full names of the replays and forks that were created over REST since that one; None: since now."""


class VersionReader(Protocol):
    """Reads versions of runs. A version that is read again and is the same says that the run has not changed in between."""

    async def state(self) -> object | None:
        """Return what differs once a run of the project has changed; None if versions cannot be read now."""

    def read(self, full_names: Sequence[str]) -> Awaitable[tuple[RunVersion, ...]]:
        """Return the versions of these runs as of this call, which asks for them, or later."""

    def ask(self, full_names: Sequence[str]) -> Awaitable[tuple[RunVersion, ...]] | None:
        """Ask for versions that will most likely be read soon, and return them as `read` does; None if to read them takes no time."""

    def read_all(self) -> Callable[[Sequence[str]], tuple[RunVersion, ...]] | None:
        """Return what says later which versions runs have now; None if only the versions of named runs can be read."""

    def announced_replays(self, since: int | None) -> tuple[int | None, list[str]]:
        """Return a position, and the full names of the replays that were created over REST since that one; None: since now."""

    def close(self) -> None:
        """Close what versions are read from."""


class SharedVersions:
    """Versions that the store server writes into memory which it shares with the workers: it alone writes to the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._versions: RunVersions | None = None

    async def state(self) -> object | None:
        versions = self._open()
        return versions and versions.content()

    async def read(self, full_names: Sequence[str]) -> tuple[RunVersion, ...]:
        versions = self._open()
        return versions.version(full_names) if versions else (None,) * len(full_names)

    def ask(self, full_names: Sequence[str]) -> None:  # noqa: ARG002 - the protocol's signature
        return None

    def read_all(self) -> Callable[[Sequence[str]], tuple[RunVersion, ...]] | None:
        versions = self._open()
        return None if versions is None else partial(versions.version_in, versions.content())

    def announced_replays(self, since: int | None) -> tuple[int | None, list[str]]:
        versions = self._open()
        return (since, []) if versions is None else versions.announced_replays(since)

    def close(self) -> None:
        pass  # the memory belongs to the process

    def _open(self) -> RunVersions | None:
        if self._versions is None:
            try:
                self._versions = RunVersions(self._path, is_writer=False)
            except OSError:
                return None  # the store server has not made it yet
        return self._versions


class StoredVersions:
    """Versions that the store server reads from the database for each question: others may write to it.

    Without an answer no version is known, so whatever was loaded ahead is fetched anew.
    """

    def __init__(self, path: Path, project: str, announced_replays: AnnouncedReplays | None = None) -> None:
        """`announced_replays`: of the store server of this `up`. Whoever uses another one announces nothing."""
        self._path = path
        self._project = project
        self._announced_replays = announced_replays
        self._socket: socket.socket | None = None
        self._questions: deque[_Question] = deque()
        """Those without an answer, in the order in which they were asked."""

    async def state(self) -> object | None:
        answer = await self._ask([])
        return answer and answer.newest

    def read(self, full_names: Sequence[str]) -> Awaitable[tuple[RunVersion, ...]]:
        names = [name for project, name in map(split_run_name, full_names) if project == self._project]
        if len(names) < len(full_names):
            return _unknown_versions(len(full_names))
        # Whoever reads the versions of more runs than one question may have does not wait for one of them.
        return self._read_many(names) if len(names) > MOST_RUNS else self._ask_versions(names)

    def ask(self, full_names: Sequence[str]) -> Awaitable[tuple[RunVersion, ...]]:
        return self.read(full_names)

    def read_all(self) -> None:
        return None

    def announced_replays(self, since: int | None) -> tuple[int | None, list[str]]:
        return self._announced_replays(since) if self._announced_replays else (since, [])

    async def _read_many(self, names: Sequence[str]) -> tuple[RunVersion, ...]:
        found: list[RunVersion] = []
        for begin in range(0, len(names), MOST_RUNS):
            some = names[begin : begin + MOST_RUNS]
            found += await self._ask_versions(some)
        return tuple(found)

    def _ask_versions(self, names: Sequence[str]) -> "_AskedVersions":
        return _AskedVersions(self._ask(names), len(names))

    def close(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        # An answer that comes later would be taken for that of another question.
        unanswered, self._questions = self._questions, deque()
        for question in unanswered:
            question.end(None)

    def _ask(self, runs: Sequence[str]) -> "asyncio.Future[VersionAnswer | None]":
        """Send a question, at once: whoever asks has other work while the store server answers."""
        question = _Question(self.close)
        try:
            self._connect().send(_encode(VersionQuestion(self._project, list(runs))))
        except OSError:
            self.close()
            question.end(None)
        else:
            self._questions.append(question)
        return question.answer

    def _connect(self) -> socket.socket:
        if self._socket is None:
            # A store server of this machine accepts at once, or it is not there.
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                connection.connect(str(self._path))
            except OSError:
                connection.close()
                raise
            self._socket = connection
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(connection, self._receive, connection)
        return self._socket

    def _receive(self, connection: socket.socket) -> None:
        try:
            answer = _decode_answer(connection.recv(PACKET_BYTES))
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError):
            self.close()  # it has ended, or is another version's
            return
        if self._questions:
            self._questions.popleft().end(answer)
        else:
            self.close()


class _AskedVersions(NamedTuple):
    """Versions that were asked for. Unlike a coroutine, it need not be awaited."""

    answer: "asyncio.Future[VersionAnswer | None]"
    size: int

    def __await__(self) -> Generator[Any, None, tuple[RunVersion, ...]]:
        answer = yield from self.answer
        return tuple(answer.versions) if answer else (None,) * self.size


async def _unknown_versions(count: int) -> tuple[RunVersion, ...]:
    return (None,) * count


class _Question:
    """A question that was sent."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[VersionAnswer | None] = loop.create_future()
        self._deadline = loop.call_later(ANSWER_TIMEOUT, give_up)

    def end(self, answer: VersionAnswer | None) -> None:
        """Return the answer to whoever asked; None if there is none."""
        self._deadline.cancel()
        if not self.answer.done():
            self.answer.set_result(answer)


_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(VersionAnswer).decode
