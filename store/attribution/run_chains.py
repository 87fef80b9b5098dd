"""Join exchanges that only ids connect: a request that refers to an id of another run's answer continues that run.

The run of a chain is named after its first exchange, so the result does not depend on the order of arrival: if an earlier
exchange arrives late, the chain is renamed to it. An id that answers of several runs produced connects none of them, because
servers that count (`call_1`) produce the same ids for all clients.
"""

import uuid
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from calls.model import Exchange
from store.attribution.correlation_ids import owner_run
from store.attribution.run_assignment import CHAIN_PREFIX, can_join_chain

SEARCH_WINDOW: Final = 3 * 24 * 3600 * 1_000_000_000
"""Nanoseconds before and after an exchange in which related ones are searched."""

MAX_ROWS: Final = 1000
"""Exchanges that are read, and that are moved, for one batch at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """An exchange and its ties (`correlation_ids`)."""

    id: str
    started_at: int
    run: str
    ties: Sequence[int]
    is_movable: bool
    """Whether it may be moved to another run."""

    owner: str | None = None
    """The run of its connection's owner; None if it is unknown here."""


def chain_link(exchange: Exchange, ties: Sequence[int]) -> ChainLink:
    """The link of an exchange that is about to be stored."""
    return ChainLink(
        id=exchange.id,
        started_at=exchange.started_at,
        run=exchange.run,
        ties=ties,
        is_movable=can_join_chain(exchange),
        owner=owner_run(exchange),
    )


@dataclass(slots=True)
class Chains:
    """The runs that result from these links. Of links with the same id, the last one counts."""

    links: Iterable[ChainLink]
    runs: dict[str, str] = field(init=False, default_factory=dict)
    """The run of each exchange."""

    renames: dict[str, str] = field(init=False, default_factory=dict)
    """For each chain that turned out to continue another run, that run."""

    _producers: dict[int, list[ChainLink]] = field(init=False, default_factory=dict)
    _referrers: dict[int, list[ChainLink]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        continued: set[str] = set()
        order = sorted({one.id: one for one in self.links}.values(), key=lambda one: (one.started_at, one.id))
        for link in order:
            predecessor = self._predecessor(link) if link.is_movable else None
            self.runs[link.id] = self._own_run(link) if predecessor is None else self.runs[predecessor.id]
            if predecessor is not None:
                continued.add(self.runs[link.id])
                if link.run == _chain_name(link):
                    self.renames[link.run] = self.runs[link.id]
            for tie in link.ties:
                (self._referrers if tie & 1 else self._producers).setdefault(tie & ~1, []).append(link)
        for link in order:
            # An exchange that no other continues is not a chain.
            if self.runs[link.id] == _chain_name(link) != link.run and self.runs[link.id] not in continued:
                self.runs[link.id] = link.run

    def _own_run(self, link: ChainLink) -> str:
        if not link.is_movable:
            return link.run
        return self.renames.get(link.run, link.run) if link.run.startswith(CHAIN_PREFIX) else _chain_name(link)

    def _predecessor(self, link: ChainLink) -> ChainLink | None:
        """The exchange that a link continues: the last that produced an id it refers to, else the first with the same id."""
        producers: list[ChainLink] = []
        referrers: list[ChainLink] = []
        for tie in (tie & ~1 for tie in link.ties if tie & 1):
            found = self._producers.get(tie, [])
            if len({self.runs[producer.id] for producer in found}) == 1:
                producers.append(found[-1])
            elif not found:
                referrers += self._referrers.get(tie, [])[:1]
        return max(producers or referrers, key=lambda link: (link.started_at, link.id), default=None)


def _chain_name(link: ChainLink) -> str:
    return CHAIN_PREFIX + link.id


async def fetch_related(connection: asyncpg.Connection, project: str, fresh: Sequence[ChainLink]) -> list[ChainLink]:
    """Fetch the stored exchanges that have ties with these, and those of these that are stored in a chain."""
    id_range = search_range([one.started_at for one in fresh])
    links = _stored_links(
        await connection.fetch(FETCH_CHAINED, project, [one.id for one in fresh if one.is_movable], CHAIN_PREFIX), fresh
    )
    counterparts = {tie ^ 1 for one in fresh for tie in one.ties}
    links += _stored_links(
        await connection.fetch(FETCH_TIED, project, sorted(counterparts), *id_range, MAX_ROWS), fresh
    )
    produced = {tie for one in (*fresh, *links) for tie in one.ties if not tie & 1}
    # The exchange that produced these ids is unknown, but others may refer to them.
    orphans = {tie for one in fresh for tie in one.ties if tie & 1 and tie & ~1 not in produced}
    if orphans:
        links += _stored_links(await connection.fetch(FETCH_TIED, project, sorted(orphans), *id_range, MAX_ROWS), fresh)
    return links


async def fetch_run_members(
    connection: asyncpg.Connection, project: str, runs: Collection[str], known_ids: Set[str]
) -> dict[str, str]:
    """Fetch the exchanges of these runs and the run of each, without those that are known."""
    rows = await connection.fetch(FETCH_MEMBERS, project, sorted(runs), MAX_ROWS) if runs else []
    return {str(row["id"]): row["run"] for row in rows if str(row["id"]) not in known_ids}


def _stored_links(rows: Sequence[asyncpg.Record], fresh: Sequence[ChainLink]) -> list[ChainLink]:
    owners = {one.owner for one in fresh}
    return [
        ChainLink(
            id=str(row["id"]),
            started_at=row["started_at"],
            run=row["run"],
            ties=row["ties"] or (),
            is_movable=row["run"].startswith(CHAIN_PREFIX) or row["run"] in owners,
        )
        for row in rows
    ]


def search_range(times: Sequence[int]) -> tuple[uuid.UUID, uuid.UUID]:
    """The range of ids in which exchanges related to some of these times are searched."""
    return _first_id_at(min(times) - SEARCH_WINDOW), _first_id_at(max(times) + SEARCH_WINDOW)


def _first_id_at(at: int) -> uuid.UUID:
    """The least uuidv7 of this time."""
    return uuid.UUID(int=min(max(at // 1_000_000, 0), (1 << 48) - 1) << 80)


FETCH_CHAINED = """
SELECT id, run, started_at, ties FROM exchanges
WHERE project = $1 AND id = ANY ($2::uuid[]) AND starts_with(run, $3)
"""

FETCH_TIED = """
SELECT id, run, started_at, ties FROM exchanges
WHERE project = $1 AND ties && $2::bigint[] AND id BETWEEN $3 AND $4
LIMIT $5
"""

FETCH_MEMBERS = "SELECT id, run FROM exchanges WHERE project = $1 AND run = ANY ($2::text[]) LIMIT $3"
