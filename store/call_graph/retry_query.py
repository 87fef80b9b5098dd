"""Find which exchanges of a run are one call (`calls.retry_grouping`), looking only at those that could be.

It is worked out when it is read: an exchange that comes in late may be the first try of one that was stored before.
"""

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    RowMapping,
    Select,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from calls.retry_grouping import Part, RetryGroup, fold
from store.database.rows import digest_text
from store.database.tables import calls, exchanges

FAILED: Final = or_(
    calls.c.status.in_((408, 409, 429)),
    calls.c.status >= 500,
    and_(calls.c.outcome != "completed", ~calls.c.complete),
)
"""As `Part.failed`, or more."""


@dataclass(frozen=True, slots=True)
class Folds:
    """The calls of some runs that are more than one exchange, and the looks that are none."""

    calls: Sequence[RetryGroup] = ()
    strays: Sequence[uuid.UUID] = ()
    """Looks at work that was done before: they tell again what was told."""

    _by_part: dict[str, RetryGroup] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_part.update((name, call) for call in self.calls for name in call.ids)

    def whole(self, id: uuid.UUID) -> tuple[tuple[str, ...], int]:  # noqa: A002 # what it is
        """The exchanges of the call that this one belongs to, and how often it was tried."""
        call = self._by_part.get(str(id))
        return (call.ids, call.attempts) if call else ((str(id),), 1)

    def complete(self, row: RowMapping) -> bool:
        """Whether the call that this exchange belongs to is complete: whether its last one is."""
        call = self._by_part.get(str(row["id"]))
        return call.parts[-1].complete if call else bool(row["complete"])

    def before(self, id: uuid.UUID) -> list[uuid.UUID]:  # noqa: A002
        """The exchanges of the same call that come before this one."""
        names, _ = self.whole(id)
        return [uuid.UUID(name) for name in names[: names.index(str(id))]]

    def __or__(self, other: "Folds") -> "Folds":
        """Of all runs of both."""
        new = (call for call in other.calls if call.ids[0] not in self._by_part)
        return Folds([*self.calls, *new], list({*self.strays, *other.strays}))

    @property
    def later(self) -> list[uuid.UUID]:
        """All exchanges but the first of each call: they are no calls."""
        return [uuid.UUID(name) for call in self.calls for name in call.ids[1:]]


def among(ids: Iterable[uuid.UUID]) -> ColumnElement[bool]:
    """Whether a call is of one of these exchanges. One array: a run may have more of them than a statement has parameters."""
    return calls.c.id == any_(literal(list(ids), ARRAY(Uuid)))


async def folds(connection: AsyncConnection, project: str, runs: Iterable[str]) -> Folds:
    """What is folded in these runs."""
    wanted = {"project": project, "runs": sorted(set(runs))}
    rows = (await connection.execute(_CANDIDATES, wanted)).mappings().all()
    found = [call for _, run in itertools.groupby(rows, _run) for call in fold(map(_part, run))]
    return Folds(
        [call for call in found if len(call.parts) > 1],
        [uuid.UUID(call.ids[0]) for call in found if _is_stray(call)],
    )


def _is_stray(call: RetryGroup) -> bool:
    only = call.parts[0]
    return len(call.parts) == 1 and only.polls is not None and only.pending is None


def _run(row: RowMapping) -> str:
    run: str = row["run"]
    return run


def _part(row: RowMapping) -> Part:
    ended = row["ended_at"]
    return Part(
        id=str(row["id"]),
        key=digest_text(row["key"]),
        started_at=row["started_at"],
        ended_at=None if ended is None else row["started_at"] + ended,
        status=row["status"],
        outcome=row["outcome"],
        complete=row["complete"],
        polls=row["polls"],
        pending=row["pending"],
    )


def _candidates() -> Select[Any]:
    """What could be part of a call of several exchanges, in step order, run by run."""
    run = func.any(bindparam("runs", type_=ARRAY(Text)))
    here = (calls.c.project == bindparam("project"), calls.c.run == run)
    failed = select(calls.c.run, calls.c.key).where(*here, FAILED).distinct().cte("failed")
    tried_again = tuple_(calls.c.run, calls.c.key).in_(select(failed.c.run, failed.c.key))
    same = and_(exchanges.c.project == calls.c.project, exchanges.c.id == calls.c.id)
    return (
        select(*_COLUMNS, exchanges.c.ended_at)
        .join(exchanges, same)
        .where(*here, or_(calls.c.polls.is_not(None), calls.c.pending.is_not(None), tried_again))
        .order_by(calls.c.run, calls.c.started_at, calls.c.id)
    )


_COLUMNS: Final = (
    *(calls.c.run, calls.c.id, calls.c.key, calls.c.started_at, calls.c.status, calls.c.outcome, calls.c.complete),
    *(calls.c.polls, calls.c.pending),
)
_CANDIDATES: Final = _candidates()
