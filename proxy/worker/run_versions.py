"""Ask which versions runs have, for recordings that were loaded ahead."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from calls.project_runs import split_run_name
from store.database.run_versions import RunVersions
from store.feed.stored_versions import VersionAnswer, VersionQuestion, encode_frame, read_frame

ANSWER_TIMEOUT: Final = 2.0
"""Seconds to wait for a store server that does not answer. Then the run is fetched."""

LONGEST_ANSWER: Final = 4 << 20

MOST_RUNS: Final = 500
"""Runs of one question."""

type RunVersion = int | str | None
"""The version of a run; None if there is none that says that it is unchanged."""


class VersionReader(Protocol):
    """Reads versions of runs. A version that is read again and is the same says that the run has not changed in between."""

    async def state(self) -> object | None:
        """Return what differs once a run of the project has changed; None if versions cannot be read now."""

    async def read(self, full_names: Sequence[str]) -> tuple[RunVersion, ...]:
        """Return the versions of these runs."""

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

    def __init__(self, path: Path, project: str) -> None:
        self._path = path
        self._project = project
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._asking = asyncio.Lock()

    async def state(self) -> object | None:
        answer = await self._ask([])
        return answer and answer.newest

    async def read(self, full_names: Sequence[str]) -> tuple[RunVersion, ...]:
        found: list[RunVersion] = []
        for begin in range(0, len(full_names), MOST_RUNS):
            names = [split_run_name(one)[1] for one in full_names[begin : begin + MOST_RUNS]]
            answer = await self._ask(names)
            found += answer.versions if answer else [None] * len(names)
        return tuple(found)

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _ask(self, runs: list[str]) -> VersionAnswer | None:
        async with self._asking:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    return await self._ask_server(encode_frame(VersionQuestion(self._project, runs)))
            except (OSError, EOFError, ValueError):
                return None

    async def _ask_server(self, question: bytes) -> VersionAnswer:
        # A connection from which an answer is missing is never used again: the next answer would be taken for that of another question.
        connection, self._connection = self._connection, None
        if connection is None or connection[0].at_eof():
            connection = await asyncio.open_unix_connection(self._path)
        reader, writer = connection
        try:
            writer.write(question)
            answer = _decode_answer(await read_frame(reader, LONGEST_ANSWER))
        except BaseException:
            writer.close()
            raise
        self._connection = connection
        return answer


_decode_answer = msgspec.msgpack.Decoder(VersionAnswer).decode
