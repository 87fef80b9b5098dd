"""Load the statistics of runs: from the sums that are stored of each run, and from the calls of runs that these lag behind."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Select, Text, and_, bindparam, func, not_, select, text

from calls.model import Usage
from store.attribution.certainty import GUESSED
from store.call_graph.retry_query import RetryGroups, is_among, load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.tables import calls, exchanges, gaps, processes, run_totals
from store.query.filters import is_broken_off, is_cut_answer, is_unkept_exchange
from store.query.rest_shapes import NO_STATS


async def load_run_stats(
    connection: AsyncConnection, project: str, names: Sequence[str], changed: Collection[str] | None = None
) -> Mapping[str, Mapping[str, Any]]:
    """Load the statistics of runs, by name; zeros where there is nothing. Later statements of the transaction get generic plans.

    `changed`: the runs that the stored sums lag behind (`sums.positions.load_changed_runs`); None if these are not used.
    """
    stats: defaultdict[str, dict[str, Any]] = defaultdict(lambda: dict(NO_STATS))
    if not names:
        return stats
    await connection.execute(_PLAN_FOR_ANY_NAMES)

    async def add(query: Any, names: Sequence[str]) -> None:
        parameters = {"project": project, "names": list(names)}
        for row in (await connection.execute(query, parameters)).mappings():
            stats[row["run"]].update(row)

    if changed is not None and (summed := [name for name in names if name not in changed]):
        await add(_TOTALS, summed)
        await add(_UNKEPT, list(stats))
        await add(_CUT, list(stats))
    if unsummed := [name for name in names if name not in stats]:
        groups = await load_retry_groups(connection, project, unsummed)
        await add(_EXCHANGES, unsummed)
        await add(_call_stats(groups), unsummed)
    for query in (_GAPS, _PROCESSES, HEADS):
        await add(query, names)
    return stats


# Until the end of the transaction. A plan for the names of a long page would read all exchanges, of all days, instead of an index.
_PLAN_FOR_ANY_NAMES: Final = text("SET LOCAL plan_cache_mode = force_generic_plan")

# The store servers' chains in the order of their ids, each with its length, so that no two lists of chains give the same bytes.
HEADS: Final = text("""
SELECT r.id AS run, 'sha256:' || encode(
    sha256(string_agg(uuid_send(c.server) || int8send(c.size) || c.head, ''::bytea ORDER BY c.server)), 'hex') AS head
FROM runs r JOIN chains c ON c.project = r.project AND c.incarnation = r.incarnation
WHERE r.project = :project AND r.id = ANY(:names)
GROUP BY r.id
""")


def _stats_by_run(table: Any, columns: Iterable[Any]) -> Select[Any]:
    names = bindparam("names", type_=ARRAY(Text))
    conditions = (table.c.project == bindparam("project"), table.c.run == func.any(names))
    return select(table.c.run, *columns).where(*conditions).group_by(table.c.run)


def can_have_cost() -> ColumnElement[bool]:
    """Condition: a call of a model that may cost something, because it was neither refused nor asked to poll."""
    refused = and_(calls.c.status.is_not(None), calls.c.status >= 300)
    return and_(calls.c.kind == "model", calls.c.pending.is_(None), not_(func.coalesce(refused, False)))


def _call_stats(groups: RetryGroups) -> Select[Any]:
    model = func.coalesce(calls.c.model_requested, calls.c.model_returned)
    models = func.array_remove(func.array_agg(func.distinct(model)), None).label("models")
    number = func.count().filter(~is_among(groups.later_exchanges))
    # A repeated poll has the usage of the answer before, which counts once.
    once = ~is_among(groups.repeated_polls)
    sums = [func.sum(calls.c[name]).filter(once).cast(calls.c[name].type).label(name) for name in Usage.__slots__]
    cost = func.sum(calls.c.cost_usd).filter(once).label("known_cost_usd")
    unpriced = func.count().filter(can_have_cost(), once, calls.c.cost_usd.is_(None)).label("unpriced")
    return _stats_by_run(calls, (number.label("calls"), models, *sums, cost, unpriced, _cut))


_cut = func.count().filter(is_cut_answer()).label("cut")
_unkept = func.count().filter(is_unkept_exchange()).label("unkept")

_EXCHANGES: Final = _stats_by_run(
    exchanges, (func.count().label("exchanges"), _unkept, func.max(exchanges.c.attribution).label("attribution"))
)
_GAPS: Final = _stats_by_run(gaps, (func.sum(gaps.c.count).label("gaps"),))

# Calls that remain in the run of a process which worked on several tasks at once are attributed by a guess.
_PROCESSES: Final = _stats_by_run(processes, (func.max(GUESSED).label("attribution"),)).where(processes.c.is_unclear)

_names = bindparam("names", type_=ARRAY(Text))
_of_totals = (run_totals.c.project == bindparam("project"), run_totals.c.run == func.any(_names))
_TOTALS: Final = select(
    *(
        run_totals.c[name]
        for name in ("run", "calls", "exchanges", *Usage.__slots__, "unpriced", "models", "attribution")
    ),
    run_totals.c.cost_usd.label("known_cost_usd"),
).where(*_of_totals)
# By partial indexes, which have few runs.
_UNKEPT: Final = _stats_by_run(exchanges, (_unkept,)).where(is_unkept_exchange())
_CUT: Final = _stats_by_run(calls, (_cut,)).where(is_broken_off())
