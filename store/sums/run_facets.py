"""Keep one row of each run with what lists show of it, sort it by and filter it by: `run_totals`.

The facets of a run are what its calls have, such as `model=gpt-5`: kind, provider, dialect, operation, host, actor, status (`429`, `4xx`),
model (the requested one, else the returned one), returned (a returned model with another name), tool (as in `call_sums`), own (the
operation and host of a call to a tool) and error. Their numbers are indexed (`store.database.traits`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import asyncpg

from calls.model import Usage
from store.sums.call_rows import HOUR

MOST_FACETS: Final = 1000
"""Facets that are stored of a run. A run with more is found by its calls."""

COUNTED_FACETS: Final = ("model", "provider", "status", "kind", "host", "actor", "tool")
"""Those that a list of runs counts."""


async def sum_totals(
    connection: asyncpg.Connection,
    project: str,
    hours: Mapping[str, Collection[int] | None],
    failed: Collection[str],
) -> None:
    """Make the rows of these runs, whose `call_sums` are made, anew. `hours`: those in which something changed; None for all.

    `failed`: those of the runs that have an exchange that failed.
    """
    parts: list[tuple[str, int]] = [(run, hour) for run, each in hours.items() for hour in each or ()]
    whole: Sequence[str] = [run for run, each in hours.items() if each is None]
    part_runs, part_hours = [run for run, _ in parts], [hour for _, hour in parts]
    await connection.execute(SUM_TOTALS, project, list(hours), whole, part_runs, part_hours, list(failed))


_SUMMED = ("calls", "errors", "exchanges", "unpriced")
_KNOWN = (*Usage.__slots__, "cost_usd")
_COLUMNS = (
    *("project", "run", "started_at", "duration", "tokens", "models", "attribution", "facets", "is_cut", "traits"),
    *(*_SUMMED, *_KNOWN),
)

SUM_TOTALS: Final = f"""
WITH sums AS MATERIALIZED (
    SELECT * FROM call_sums WHERE project = $1 AND run = ANY ($2::text[])
), totals AS (
    SELECT run, {", ".join(f"sum({name}) AS {name}" for name in (*_SUMMED, *_KNOWN))},
        sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) AS tokens,
        array_agg(DISTINCT model) FILTER (WHERE model IS NOT NULL) AS models
    FROM sums GROUP BY run
), facets AS (
    SELECT run, array_agg(DISTINCT facet) AS facets FROM (
        SELECT run, unnest(ARRAY[
            'kind=' || kind, 'provider=' || provider, 'dialect=' || dialect, 'operation=' || operation, 'host=' || host,
            'actor=' || actor, 'status=' || status, 'status=' || left(status::text, 1) || 'xx', 'model=' || model,
            CASE WHEN model_returned <> model THEN 'returned=' || model_returned END,
            CASE WHEN kind = 'tool' THEN 'own=' || operation END, CASE WHEN kind = 'tool' THEN 'own=' || host END
        ] || ARRAY(SELECT 'tool=' || tool FROM unnest(tools) AS tool)) AS facet FROM sums
        UNION ALL SELECT unnest($6::text[]), 'error=true'
    ) AS found WHERE facet IS NOT NULL GROUP BY run
), certainties AS (
    SELECT run, max(attribution) AS attribution FROM (
        SELECT run, attribution FROM exchanges WHERE project = $1 AND run = ANY ($3::text[])
        UNION ALL
        SELECT exchanges.run, exchanges.attribution FROM unnest($4::text[], $5::bigint[]) AS part (run, hour)
        JOIN exchanges ON exchanges.project = $1 AND exchanges.run = part.run
            AND exchanges.started_at >= part.hour AND exchanges.started_at < part.hour + {HOUR}
    ) AS found GROUP BY run
)
INSERT INTO run_totals ({", ".join(_COLUMNS)})
SELECT runs.project, runs.id, runs.started_at, greatest(runs.active_at - runs.started_at, 0), coalesce(tokens, 0),
    coalesce(models, '{{}}'), attribution, coalesce(facets[1:{MOST_FACETS}], '{{}}'), cardinality(facets) > {MOST_FACETS},
    ARRAY(
        SELECT ('x' || substr(md5(facet), 1, 8))::bit(32)::integer FROM unnest(facets[1:{MOST_FACETS}]) AS facet
    ), {", ".join(f"coalesce({name}, 0)" for name in _SUMMED)}, {", ".join(_KNOWN)}
FROM runs LEFT JOIN totals ON totals.run = runs.id LEFT JOIN facets ON facets.run = runs.id
    LEFT JOIN certainties ON certainties.run = runs.id
WHERE runs.project = $1 AND runs.id = ANY ($2::text[])
ON CONFLICT (project, run) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in ("project", "run", "attribution"))},
    attribution = CASE WHEN excluded.run = ANY ($3::text[]) THEN excluded.attribution
        ELSE greatest(run_totals.attribution, excluded.attribution) END
"""  # noqa: S608 - our own names
