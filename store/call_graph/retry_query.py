"""Find the exchanges of a run that are one call (`calls.retry_grouping`), loading only those that could be.

The groups are computed when they are read, not stored: a late exchange may be the first attempt of a call that is stored.
"""

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    LargeBinary,
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
)

from calls.model import is_answer_broken
from calls.retry_grouping import Attempt, RetryGroup, group_retries
from store.database.asyncio_engine import AsyncConnection
from store.database.plans import planned_for_any_values
from store.database.rows import digest_text
from store.database.tables import calls, exchanges

FAILED: Final = or_(
    calls.c.status.in_((408, 409, 429)),
    calls.c.status >= 500,
    and_(calls.c.outcome != "completed", ~calls.c.complete),
)
"""As `Part.failed`, or more."""


@dataclass(frozen=True, slots=True)
class RetryGroups:
    """The calls of some runs that have more than one exchange, and the polls that are not calls."""

    groups: Sequence[RetryGroup] = ()
    repeated_polls: Sequence[uuid.UUID] = ()
    """Polls of work that had ended before: they repeat an answer that was given."""

    _by_part: dict[str, RetryGroup] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_part.update((name, call) for call in self.groups for name in call.ids)

    def ids_and_attempts(self, id: uuid.UUID) -> tuple[tuple[str, ...], int]:  # noqa: A002 # what it is
        """Return the exchanges of the call that this one belongs to, and the number of its attempts."""
        call = self._by_part.get(str(id))
        return (call.ids, call.attempts) if call else ((str(id),), 1)

    def is_complete(self, row: RowMapping) -> bool:
        """Whether the last exchange of this one's call is complete."""
        call = self._by_part.get(str(row["id"]))
        return call.parts[-1].complete if call else bool(row["complete"])

    def has_failed(self, row: RowMapping) -> bool:
        """Whether the last exchange of this one's call failed (`store.query.filters.is_failed_exchange`)."""
        call = self._by_part.get(str(row["id"]))
        last = call.parts[-1] if call else None
        status, is_broken = (last.status, last.has_broken_answer) if last else (row["status"], _has_broken_answer(row))
        return status is None or status >= 400 or is_broken

    def earlier_exchanges(self, id: uuid.UUID) -> list[uuid.UUID]:  # noqa: A002
        """Return the exchanges of the same call before this one."""
        names, _ = self.ids_and_attempts(id)
        return [uuid.UUID(name) for name in names[: names.index(str(id))]]

    def exchanges_after(self, id: uuid.UUID) -> list[uuid.UUID]:  # noqa: A002
        """Return the exchanges of the same call after this one."""
        names, _ = self.ids_and_attempts(id)
        return [uuid.UUID(name) for name in names[names.index(str(id)) + 1 :]]

    def __or__(self, other: "RetryGroups") -> "RetryGroups":
        """Join the groups of both."""
        new = (call for call in other.groups if call.ids[0] not in self._by_part)
        return RetryGroups([*self.groups, *new], list({*self.repeated_polls, *other.repeated_polls}))

    @property
    def later_exchanges(self) -> list[uuid.UUID]:
        """All exchanges except the first of each call."""
        return [uuid.UUID(name) for call in self.groups for name in call.ids[1:]]

    @property
    def superseded_exchanges(self) -> list[uuid.UUID]:
        """All exchanges of each call but its last."""
        return [uuid.UUID(name) for group in self.groups for name in group.ids[:-1]]


def is_among(ids: Iterable[uuid.UUID]) -> ColumnElement[bool]:
    """Condition: the call has one of these ids. They are one array, as a run may have more than a statement has parameters."""
    return calls.c.id == any_(literal(list(ids), ARRAY(Uuid)))


async def load_retry_groups(connection: AsyncConnection, project: str, runs: Iterable[str]) -> RetryGroups:
    """Load the retry groups of these runs."""
    async with planned_for_any_values(connection):
        rows = await _load_candidates(connection, project, sorted(set(runs)))
        if not rows:
            return RetryGroups()
        # Not joined: few calls are candidates, and Postgres would join all exchanges of the runs.
        end_times = select(exchanges.c.id, exchanges.c.ended_at).where(
            exchanges.c.project == project, exchanges.c.id == any_(literal([row["id"] for row in rows], ARRAY(Uuid)))
        )
        ends = {row[0]: row[1] for row in await connection.execute(end_times)}
    found = [
        call
        for _, run in itertools.groupby(rows, _run_of)
        for call in group_retries(make_attempt(row, ends[row["id"]]) for row in run if row["id"] in ends)
    ]
    return RetryGroups(
        [call for call in found if len(call.parts) > 1],
        [uuid.UUID(call.ids[0]) for call in found if _is_repeated_poll(call)],
    )


def _is_repeated_poll(call: RetryGroup) -> bool:
    only = call.parts[0]
    return len(call.parts) == 1 and only.polls is not None and only.pending is None


def _run_of(row: RowMapping) -> str:
    run: str = row["run"]
    return run


def make_attempt(row: RowMapping, duration: int | None) -> Attempt:
    """Return the attempt that a row is, with how long it took, if it came to its end."""
    return Attempt(
        id=str(row["id"]),
        key=digest_text(row["key"]),
        started_at=row["started_at"],
        ended_at=None if duration is None else row["started_at"] + duration,
        status=row["status"],
        outcome=row["outcome"],
        complete=row["complete"],
        polls=row["polls"],
        pending=row["pending"],
        has_broken_answer=_has_broken_answer(row),
    )


ANSWER_COLUMNS: Final = ("kind", "streamed", "status", "outcome", "complete", "finish_reason", "answer_state")
"""The columns that say how an exchange's answer ended."""


def _has_broken_answer(row: RowMapping) -> bool:
    return is_answer_broken(**{name: row[name] for name in ANSWER_COLUMNS})


async def _load_candidates(connection: AsyncConnection, project: str, runs: Sequence[str]) -> list[RowMapping]:
    """Load the exchanges that could be part of a call with several, ordered by run and step."""
    first = (await connection.execute(_BEGINNINGS, {"project": project, "runs": runs})).mappings().all()
    failed = [row for row in first if row["failed"]]
    # In two statements: most pages have no failed call, and for a join Postgres would read all calls of all runs.
    parameters = {
        "project": project,
        "runs": sorted({row["run"] for row in failed}),
        "keys": sorted({row["key"] for row in failed}),
    }
    again = (await connection.execute(_SAME_REQUESTS, parameters)).mappings().all() if failed else ()
    found = {row["id"]: row for row in (*first, *again)}
    return sorted(found.values(), key=lambda row: (row["run"], row["started_at"], row["id"]))


def _of_runs() -> Select[Any]:
    run = func.any(bindparam("runs", type_=ARRAY(Text)))
    return select(*_COLUMNS).where(calls.c.project == bindparam("project"), calls.c.run == run)


_COLUMNS: Final = (
    *(calls.c.run, calls.c.id, calls.c.key, calls.c.started_at, calls.c.status, calls.c.outcome, calls.c.complete),
    *(calls.c.polls, calls.c.pending, calls.c.kind, calls.c.streamed, calls.c.finish_reason),
    calls.c.answer_state,
)
_BEGINNINGS: Final = (
    _of_runs()
    .add_columns(FAILED.label("failed"))
    .where(or_(calls.c.polls.is_not(None), calls.c.pending.is_not(None), FAILED))
)
# A look-up in a hash table: `= ANY` of a parameter compares the key of each call of the runs with all of these.
_SAME_REQUESTS: Final = _of_runs().where(
    calls.c.key.in_(select(func.unnest(bindparam("keys", type_=ARRAY(LargeBinary))))).is_(True)
)
