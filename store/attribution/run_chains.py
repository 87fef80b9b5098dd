"""Join runs that only ids connect: a request that sends an id of another run's answer continues that run.

The run of a chain is named after its first exchange, so it is the same in whatever order they come: one that comes late and
stands in front takes what had a name of its own into its run. An id that answers of several runs made names nobody: servers
that count (`call_1`) make the same ones for everybody.
"""

import uuid
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from calls.model import Exchange
from store.attribution.correlation_ids import owner_of
from store.attribution.run_assignment import CHAIN, may_follow

REACH: Final = 3 * 24 * 3600 * 1_000_000_000
"""Nanoseconds before and after an exchange in which its kin is looked for."""

MOST: Final = 1000
"""Exchanges that are looked at, and that are moved, for one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An exchange and its ties (`ties`)."""

    id: str
    started_at: int
    run: str
    ties: Sequence[int]
    loose: bool
    """Whether it may be put into another run."""

    owner: str | None = None
    """The run in which it would be if nothing said another; None where it is not known here."""


def link_of(exchange: Exchange, tied: Sequence[int]) -> Link:
    """The link that an exchange is, which is about to be stored."""
    return Link(
        id=exchange.id,
        started_at=exchange.started_at,
        run=exchange.run,
        ties=tied,
        loose=may_follow(exchange),
        owner=owner_of(exchange),
    )


@dataclass(slots=True)
class Chains:
    """The runs that follow from these links. Of two with one id, the later given says what is stored."""

    links: Iterable[Link]
    runs: dict[str, str] = field(init=False, default_factory=dict)
    """By exchange: its run."""

    renamed: dict[str, str] = field(init=False, default_factory=dict)
    """By the name of a chain that turned out to go on from another run: that one."""

    _made: dict[int, list[Link]] = field(init=False, default_factory=dict)
    _taken: dict[int, list[Link]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        led: set[str] = set()
        order = sorted({one.id: one for one in self.links}.values(), key=lambda one: (one.started_at, one.id))
        for one in order:
            before = self._before(one) if one.loose else None
            self.runs[one.id] = self._own(one) if before is None else self.runs[before.id]
            if before is not None:
                led.add(self.runs[one.id])
                if one.run == _named(one):
                    self.renamed[one.run] = self.runs[one.id]
            for tie in one.ties:
                (self._taken if tie & 1 else self._made).setdefault(tie & ~1, []).append(one)
        for one in order:
            # Whom nobody goes on from is no chain.
            if self.runs[one.id] == _named(one) != one.run and self.runs[one.id] not in led:
                self.runs[one.id] = one.run

    def _own(self, one: Link) -> str:
        if not one.loose:
            return one.run
        return self.renamed.get(one.run, one.run) if one.run.startswith(CHAIN) else _named(one)

    def _before(self, one: Link) -> Link | None:
        """Whom it goes on from: the last of those whose answers made what it hands back, or the first who handed it back."""
        makers: list[Link] = []
        sharers: list[Link] = []
        for tie in (tie & ~1 for tie in one.ties if tie & 1):
            made = self._made.get(tie, [])
            if len({self.runs[maker.id] for maker in made}) == 1:
                makers.append(made[-1])
            elif not made:
                sharers += self._taken.get(tie, [])[:1]
        return max(makers or sharers, key=lambda link: (link.started_at, link.id), default=None)


def _named(one: Link) -> str:
    return CHAIN + one.id


async def kin(connection: asyncpg.Connection, project: str, fresh: Sequence[Link]) -> list[Link]:
    """Those that are stored and have ties with these; and of these, those that are in a chain already."""
    near = reach([one.started_at for one in fresh])
    found = _stored(await connection.fetch(SELF, project, [one.id for one in fresh if one.loose], CHAIN), fresh)
    counterparts = {tie ^ 1 for one in fresh for tie in one.ties}
    found += _stored(await connection.fetch(TIED, project, sorted(counterparts), *near, MOST), fresh)
    made = {tie for one in (*fresh, *found) for tie in one.ties if not tie & 1}
    # Nobody is known to have made it: but others may have handed it back.
    orphans = {tie for one in fresh for tie in one.ties if tie & 1 and tie & ~1 not in made}
    if orphans:
        found += _stored(await connection.fetch(TIED, project, sorted(orphans), *near, MOST), fresh)
    return found


async def members(
    connection: asyncpg.Connection, project: str, runs: Collection[str], known: Set[str]
) -> dict[str, str]:
    """The exchanges of these runs, and which each is of; without those that are known."""
    rows = await connection.fetch(MEMBERS, project, sorted(runs), MOST) if runs else []
    return {str(row["id"]): row["run"] for row in rows if str(row["id"]) not in known}


def _stored(rows: Sequence[asyncpg.Record], fresh: Sequence[Link]) -> list[Link]:
    owners = {one.owner for one in fresh}
    return [
        Link(
            id=str(row["id"]),
            started_at=row["started_at"],
            run=row["run"],
            ties=row["ties"] or (),
            loose=row["run"].startswith(CHAIN) or row["run"] in owners,
        )
        for row in rows
    ]


def reach(times: Sequence[int]) -> tuple[uuid.UUID, uuid.UUID]:
    """The ids between which kin of exchanges of these times is looked for."""
    return _moment(min(times) - REACH), _moment(max(times) + REACH)


def _moment(at: int) -> uuid.UUID:
    """Not greater than any uuidv7 of this time."""
    return uuid.UUID(int=min(max(at // 1_000_000, 0), (1 << 48) - 1) << 80)


SELF = """
SELECT id, run, started_at, ties FROM exchanges
WHERE project = $1 AND id = ANY ($2::uuid[]) AND starts_with(run, $3)
"""

TIED = """
SELECT id, run, started_at, ties FROM exchanges
WHERE project = $1 AND ties && $2::bigint[] AND id BETWEEN $3 AND $4
LIMIT $5
"""

MEMBERS = "SELECT id, run FROM exchanges WHERE project = $1 AND run = ANY ($2::text[]) LIMIT $3"
