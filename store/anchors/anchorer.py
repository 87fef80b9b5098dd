"""Ask for each new checkpoint to be vouched for, apart from everything that records: nothing waits for an answer.

Whoever is asked has a task of its own, which asks for the newest checkpoint of each project: those before it are covered by it. Who does
not answer is asked again after a growing pause. Nothing waits in a queue: what is asked for is read from the database each time.
"""

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from calls.proof.checkpoint import parse_note
from calls.proof.tree import consistency_path
from store.anchors.failure import AnchorContradiction, AnchorFailure
from store.anchors.rows import Anchor, AnchorKind, newest_anchor_size, store_anchor
from store.anchors.targets import AnchorTargets, TimestampTarget, WitnessTarget
from store.database.connection import Database, DatabaseError
from store.feed.feed import projects_in
from store.proof.sealing import newest_checkpoint
from store.proof.tiles import load_nodes

if TYPE_CHECKING:
    # Most store servers ask nobody, and would take a twentieth longer to start.
    import httpx2

    from store.anchors.witness import LoadPath

log = logging.getLogger(__name__)

ASK_EVERY: Final = 10.0
"""Seconds between two requests to one of them for one project, at least."""

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 300.0
DATABASE_PAUSE: Final = 5.0
_SECOND: Final = 1_000_000_000


@dataclass(slots=True)
class Trouble:
    """Why one of them does not vouch for the newest checkpoint of a project."""

    message: str
    is_contradiction: bool
    """Whether it has signed another history."""


@dataclass(slots=True)
class _Turn:
    """When a project is next in line, in monotonic seconds."""

    at: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    """A checkpoint, and what leads to it."""

    note: str
    known: int
    """The size of the checkpoint that this source has vouched for last."""

    load_path: "LoadPath"


class _Source(ABC):
    """One of those who are asked."""

    kind: AnchorKind

    def __init__(self, name: str) -> None:
        self.name = name
        self.due = asyncio.Event()
        self.turns: dict[str, _Turn] = {}
        self.troubles: dict[str, Trouble] = {}

    @abstractmethod
    async def ask(self, client: "httpx2.AsyncClient", question: "_Question") -> Anchor:
        """Ask it about a checkpoint. Raises `AnchorFailure`."""


class _Witness(_Source):
    kind = "witness"

    def __init__(self, target: WitnessTarget) -> None:
        super().__init__(target.verifier_key.name)
        self._target = target

    async def ask(self, client: "httpx2.AsyncClient", question: _Question) -> Anchor:
        from store.anchors.witness import request_cosignature

        note = question.note
        line, at = await request_cosignature(client, self._target, note, question.known, question.load_path)
        return Anchor(parse_note(note).checkpoint.size, self.kind, self.name, at * _SECOND, line.encode())


class _Authority(_Source):
    kind = "timestamp"

    def __init__(self, target: TimestampTarget) -> None:
        super().__init__(target.url)
        self._target = target

    async def ask(self, client: "httpx2.AsyncClient", question: _Question) -> Anchor:
        from store.anchors.timestamp import request_timestamp

        note = question.note
        response, at = await request_timestamp(client, self._target, note.encode())
        return Anchor(parse_note(note).checkpoint.size, self.kind, self.name, at, response)


@dataclass(slots=True)
class Anchorer:
    """Has the checkpoints of one store server vouched for."""

    database: Database
    server: uuid.UUID
    targets: AnchorTargets
    now: Callable[[], float] = time.monotonic
    _sources: list[_Source] = field(init=False)

    def __post_init__(self) -> None:
        witnesses = [_Witness(target) for target in self.targets.witnesses]
        self._sources = [*witnesses, *([_Authority(self.targets.timestamp)] if self.targets.timestamp else [])]

    def note_checkpoint(self, _project: str) -> None:
        """Note that a checkpoint was signed."""
        for source in self._sources:
            source.due.set()

    def troubles(self, project: str) -> Mapping[tuple[AnchorKind, str], Trouble]:
        """Return why some of them do not vouch for the newest checkpoint."""
        return {
            (source.kind, source.name): trouble for source in self._sources if (trouble := source.troubles.get(project))
        }

    async def run(self) -> None:
        """Ask until the task is cancelled."""
        if not self._sources:
            return
        from store.anchors.exchange import make_client

        async with make_client() as client, asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source, client))

    async def ask_due(self) -> None:
        """Ask everybody once whose turn it is."""
        await self._ask_each(self._sources)

    async def finish(self, patience: float) -> None:
        """Ask once more for what was just sealed, for some seconds at most. Who did not answer before is not waited for."""
        answering = [one for one in self._sources if not any(turn.failures for turn in one.turns.values())]
        for source in answering:
            source.turns.clear()
        try:
            async with asyncio.timeout(patience):
                await self._ask_each(answering)
        except TimeoutError:
            log.warning(
                "the last checkpoint is vouched for after the next start: there was no answer within %s seconds",
                patience,
            )

    async def _ask_each(self, sources: Sequence[_Source]) -> None:
        if not sources:
            return
        from store.anchors.exchange import make_client

        async with make_client() as client, asyncio.TaskGroup() as group:
            for source in sources:
                group.create_task(self._anchor_projects(source, client))

    async def _follow(self, source: _Source, client: "httpx2.AsyncClient") -> None:
        while True:
            source.due.clear()
            pause = await self._anchor_projects(source, client)
            try:
                async with asyncio.timeout(pause):
                    await source.due.wait()
            except TimeoutError:
                pass

    async def _anchor_projects(self, source: _Source, client: "httpx2.AsyncClient") -> float | None:
        """Ask for all projects whose turn it is; return the seconds until the next turn, None if nothing is left to ask."""
        waits: list[float] = []
        try:
            async with self.database.connection() as connection:
                projects = [row["project"] for row in await connection.fetch(PROJECTS)]
            for project in projects:
                question = await self._question(source, project)
                if question is None:
                    continue
                turn = source.turns.setdefault(project, _Turn())
                if self.now() >= turn.at:
                    await self._anchor(source, client, project, question, turn)
                    if not turn.failures:
                        continue
                waits.append(max(turn.at - self.now(), 0.0))
        except DatabaseError:
            return DATABASE_PAUSE
        return min(waits, default=None)

    async def _question(self, source: _Source, project: str) -> _Question | None:
        """Return the newest checkpoint of a project if the source has not vouched for it yet."""
        async with self.database.connection() as connection:
            newest = await newest_checkpoint(connection, project, self.server)
            if newest is None:
                return None
            known = await newest_anchor_size(connection, project, self.server, source.kind, source.name)
        size = newest["size"]

        async def load_path(old: int) -> Sequence[bytes]:
            # A tile of the tree has grown if more was sealed meanwhile.
            async with self.database.connection() as connection, connection.transaction(isolation="repeatable_read"):
                last = await newest_checkpoint(connection, project, self.server)
                compute = partial(consistency_path, old, size)
                return await load_nodes(connection, project, self.server, last["size"] if last else size, compute)

        return _Question(newest["note"], known, load_path) if size > known else None

    async def _anchor(
        self, source: _Source, client: "httpx2.AsyncClient", project: str, question: _Question, turn: _Turn
    ) -> None:
        try:
            anchor = await source.ask(client, question)
        except (AnchorFailure, KeyError) as error:
            # A tile that is missing is reported by whatever checks the tree.
            message = (
                str(error)
                if isinstance(error, AnchorFailure)
                else "the tree is damaged, so nothing can be shown to anybody"
            )
            turn.failures += 1
            turn.at = self.now() + min(FIRST_PAUSE * 2 ** min(turn.failures - 1, 16), LONGEST_PAUSE)
            known = source.troubles.get(project)
            if known is None or known.message != message:
                log.warning("a checkpoint of project %s is not vouched for: %s", project, message)
            source.troubles[project] = Trouble(message, isinstance(error, AnchorContradiction))
            return
        async with self.database.connection() as connection:
            await store_anchor(connection, project, self.server, anchor)
        turn.failures, turn.at = 0, self.now() + ASK_EVERY
        source.troubles.pop(project, None)


PROJECTS = projects_in("chains")
