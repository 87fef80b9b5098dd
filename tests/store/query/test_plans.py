"""The plans of all statements that the store server executes while it serves, with tables large enough for plans to matter.

Postgres reports each plan itself (auto_explain), of reads and writes, whatever driver sent them. No plan may read a whole large table,
and each scan of a table must have a condition on the project: Citus, which distributes the tables by project, then sends the statement
and all its joins to one node.
"""

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from store.database.connection import Database
from store.database.tables import metadata
from store.database.traits import trait_number
from store.ingest.partitions import Partitions
from store.search.groups import GroupText, make_group
from store.sums.summed_days import DAY
from tests.store.running_store import RunningStore, import_bundle, open_store
from tests.store.samples import NOON

type Plan = Mapping[str, Any]

LARGE = frozenset(
    [
        "calls",
        "exchanges",
        "parts",
        "text_groups",
        "text_hashes",
        "call_sums",
        "feed",
        "runs",
        "run_totals",
        "model_answers",
    ]
)
TABLES = frozenset(metadata.tables)
PARTITION = re.compile(r"_\d{8}$")

LISTING_PROJECTS = (
    # Citus refuses it, and docs/scale.md says what must take its place (`store.feed.feed`).
    "WITH RECURSIVE found AS",
    # Citus asks every node, which once an hour is no harm.
    "SELECT DISTINCT project FROM audit_log",
    # A partition has a day of all projects, and is written anew for all of them (`store.retention.partition_swap`).
    "DELETE FROM expirations WHERE day",
    "SELECT DISTINCT day FROM expirations WHERE part",
)
"""The beginnings of the only statements without a project: they list the projects for which others are executed."""

READING_ALL_RUNS = (
    # Once a minute, since an index on the last activity would be written with each batch (`store.feed.idle_runs`).
    "UPDATE runs SET idle_at",
    # Retention and erasure write the partition of a day anew (`store.retention.partition_swap`).
    re.compile(r"^\s*INSERT INTO \w+_\d{8}_new "),
    # Part of an id, name or label is no word that an index has; there are few runs.
    r"runs\.id ILIKE",
    # Sums by label take the labels of many runs from them at once; those of whole days have them (`store.sums.day_sums`).
    r"rows\.labels ->>",
)

BEGUN = NOON - NOON % DAY
"""When the later of two days began, that of which no models are stored."""

GROUP = make_group([GroupText(b"hash", uuid.UUID(int=0), NOON, "prompt", "word77")]).texts.hex()
"""What a group of texts has."""

# Four calls each of four thousand runs in two days; one has rare values. Ids need no more than their times and a hash.
ROWS = f"""
CREATE TEMPORARY TABLE made AS SELECT run, begun + step * 1000000000::bigint AS at, row_number() OVER () AS n,
    (lpad(to_hex((begun + step * 1000000000::bigint) / 1000000), 12, '0') || '70008' || left(md5(run || step), 15))::uuid AS id
FROM (SELECT 'run-' || n AS run, {NOON} - n * 20000000000::bigint AS begun FROM generate_series(1, 4000) AS n) AS one,
    generate_series(1, 4) AS step;
INSERT INTO runs (project, id, incarnation, labels, started_at, newest_at, active_at, idle_at, parent)
SELECT 'default', run, gen_random_uuid(), CASE WHEN run = 'run-7' THEN '{{"team": "rare"}}'::jsonb ELSE '{{}}'::jsonb END,
    min(at), max(at), max(at), max(at), CASE WHEN run = 'run-7' THEN 'run-1' END FROM made GROUP BY run;
INSERT INTO run_totals (project, run, started_at, calls, errors, tokens, cost_usd, duration, exchanges, unpriced, models, facets,
    is_cut, traits)
SELECT project, id, started_at, 4, 0, (random() * 1e6)::bigint, random()::numeric, (random() * 1e9)::bigint, 4, 0, ARRAY['m'],
    ARRAY['model=m', 'host=' || id], false, ARRAY[{trait_number("model", "m")}, hashtext(id)] FROM runs;
INSERT INTO exchanges (project, id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, truncated, redactions,
    request_digest, head, request_body)
SELECT 'default', id, run, at, 1, 2, 'POST', 'https://a.example/', 200, 'completed', false, 0, '', '', '' FROM made;
INSERT INTO calls (project, id, run, started_at, kind, provider, dialect, operation, host, status, outcome, model_requested, streamed,
    complete, key, profile, cost_usd, input_tokens, output_tokens, duration, first_byte, traits)
SELECT 'default', id, run, at, 'model', 'openai', 'openai_chat', 'chat', 'a.example', 200, 'completed', 'm', false, true,
    md5(n::text)::bytea, 'p', random()::numeric, n % 500, 10, n, 1, ARRAY[1, n] FROM made;
INSERT INTO call_sums (project, run, place, hour, kind, provider, dialect, operation, host, calls, exchanges, errors, unpriced)
SELECT 'default', run, n, at - at % 3600000000000, 'model', 'openai', 'openai_chat', 'chat', 'a.example', 1, 1, 0, 0 FROM made;
INSERT INTO model_answers (project, key, started_at, id, variant, answer)
SELECT 'default', substring(md5(n::text)::bytea FOR 16), at - (1 + n % 9) * {DAY}, id, 0, '' FROM made;
INSERT INTO model_days (project, day, changes, variants) SELECT 'default', {BEGUN} - n * {DAY}, 1, decode('90', 'hex') FROM generate_series(1, 9) AS n;
INSERT INTO summed_days (project, day, is_valid, changes, changed_at) SELECT 'default', {BEGUN} - n * {DAY}, n > 0, 1, {1 << 62} FROM generate_series(0, 9) AS n;
INSERT INTO text_groups (project, run, day, id, newest_at, words, texts)
SELECT 'default', run, (to_timestamp(at / 1e9) AT TIME ZONE 'UTC')::date, id, at, to_tsvector('simple', 'word' || n), decode('{GROUP}', 'hex') FROM made;
INSERT INTO text_hashes (project, run, day, hash, call, text_group)
SELECT 'default', run, (to_timestamp(at / 1e9) AT TIME ZONE 'UTC')::date, md5(n::text)::bytea, id, id FROM made;
INSERT INTO parts SELECT 'default', run, (to_timestamp(at / 1e9) AT TIME ZONE 'UTC')::date, md5(n::text)::bytea, '' FROM made;
INSERT INTO feed (project, id, stored_at, entries, transaction) SELECT 'default', gen_random_uuid(), CASE WHEN n > 9 THEN {1 << 62} ELSE 1 END, decode('90', 'hex'), n - 20000 FROM made;
INSERT INTO feed_positions SELECT 'default', consumer, 0, gen_random_uuid() FROM unnest(ARRAY['sums/5', 'texts/1', 'models/1', 'metrics/1']) AS consumer;
ANALYZE
"""

FILTERS = (
    *(
        "",
        "model=absent",
        "provider=absent",
        "host=absent",
        "tool=absent",
        "status=429",
        "status=5xx",
        "kind=retrieval",
    ),
    *(
        "dialect=absent",
        "operation=absent",
        "actor=absent",
        "key=sha256:" + "0" * 64,
        "label=team%3Drare",
        "min_cost=1000",
    ),
    *("min_duration=1000000", "error=true", "error=false", "incomplete=true", "parent=run-1", "q=word77", "model=m"),
    *("since=2026-11-21T00:00:00Z&until=2026-11-21T00:01:00Z", "sort=cost", "sort=duration", "sort=tokens"),
    "sort=cost&order=asc",
)
LISTS = tuple(f"/v1/{what}?limit=5&fields=id&{one}" for what in ("calls", "runs") for one in FILTERS)
OTHERS = (
    *("/v1/runs?limit=5", "/v1/runs?limit=5&sort=cost", "/v1/search?q=word77", "/v1/drift"),
    *("/v1/facets", "/v1/facets?model=absent", "/v1/runs?model=m&sort=cost", "/v1/runs?model=m&status=429"),
    *("/v1/stats?group_by=label:team&since=2026-11-21T11:00:00Z", "/v1/stats?group_by=model&min_cost=1000"),
    *("/v1/stats?group_by=run&since=2026-11-21T11:00:00Z", "/v1/stats?group_by=model&model=absent&min_cost=1"),
    *(
        "/v1/runs/{run}",
        "/v1/runs/{run}/calls",
        "/v1/runs/{run}/calls?sort=cost",
        "/v1/runs/{run}/gaps",
        "/v1/runs/{run}/bundle",
    ),
    *("/v1/calls/{call}", "/v1/exchanges/{call}", "/v1/runs/{run}/spans"),
)


@dataclass(frozen=True, slots=True)
class ExplainedStatement:
    """A statement and the plan by which it was executed."""

    text: str
    plan: Plan


@pytest.fixture
def explained_statements(monkeypatch: pytest.MonkeyPatch) -> list[ExplainedStatement]:
    """Everything that is executed by the connections that are opened from now on."""
    found: list[ExplainedStatement] = []

    def note(_: object, fields: Mapping[str, str], __: object) -> None:
        if "plan:\n" in (text := fields.get("M", "")):
            answer = json.loads(text.partition("plan:\n")[2])
            found.append(ExplainedStatement(answer["Query Text"], answer["Plan"]))

    monkeypatch.setattr(asyncpg.Connection, "_process_log_message", note)
    return found


async def fill(database: Database) -> None:
    """Make rows and their statistics, and have Postgres report the plans of later connections."""
    day = dt.datetime.fromtimestamp(NOON // 10**9, dt.UTC).date()
    await Partitions(database).create_missing([day, day - dt.timedelta(days=1)])
    async with database.connection() as connection:
        for statement in ROWS.split(";\n"):
            await connection.execute(statement)
        name = await connection.fetchval("SELECT current_database()")
        for setting in ("log_min_duration = 0", "log_format = json", "log_level = notice", "log_verbose = on"):
            await connection.execute(f"ALTER DATABASE {name} SET auto_explain.{setting}")
        await connection.execute(f"ALTER DATABASE {name} SET session_preload_libraries = auto_explain")
        # As for a disk without heads: else the sample of ANALYZE decides whether reading all of these few rows looks cheaper.
        await connection.execute(f"ALTER DATABASE {name} SET random_page_cost = 1.1")


def nodes(plan: Plan, conditions: str = "") -> Iterator[tuple[Plan, str]]:
    """The nodes of a plan, each with the conditions of itself, of the joins above it and of the bitmaps below it."""
    own = " ".join(str(value) for name, value in plan.items() if name.endswith(("Cond", "Filter")))
    below = plan.get("Plans", ())
    bitmaps = " ".join(each for part in below if "Bitmap" in part["Node Type"] for _, each in nodes(part))
    yield plan, f"{conditions} {own} {bitmaps}"
    for part in below:
        yield from nodes(part, f"{conditions} {own}")


def table_of(node: Plan) -> str | None:
    """The table that a node reads, without the day of a partition."""
    name = node.get("Relation Name")
    return None if name is None or node["Node Type"] == "ModifyTable" else PARTITION.sub("", name)


def whole_reads(statements: list[ExplainedStatement]) -> set[str]:
    """The large tables that are read as a whole, each with the statement."""
    return {
        f"{table}: {one.text}"
        for one in statements
        if not any(re.search(words, one.text) for words in READING_ALL_RUNS)
        for node, _ in nodes(one.plan)
        if "Seq Scan" in node["Node Type"] and (table := table_of(node)) in LARGE
    }


def reads_without_project(statements: list[ExplainedStatement]) -> set[str]:
    """The tables that are read without a condition on the project, each with the statement."""
    return {
        f"{table}: {one.text}"
        for one in statements
        if not one.text.strip().startswith(LISTING_PROJECTS)
        for node, conditions in nodes(one.plan)
        if (table := table_of(node)) in TABLES
        and not re.search(rf"\b({re.escape(node['Alias'])}\.)?project\b", conditions)
    }


async def serve(running_store: RunningStore, database: Database) -> None:
    """Record a run, have everything follow it, and ask for all that can be asked."""
    run = (await import_bundle(running_store))["id"]
    await running_store.followers.wait_until_caught_up()
    [call, *_] = (await running_store.api.get(f"/v1/runs/{run}/calls", params={"fields": "id"})).json()["items"]
    for path in (*LISTS, *OTHERS):
        answer = await running_store.api.get(path.format(run=run, call=call["id"]))
        assert answer.status_code == 200, (path, answer.text)
    await running_store.api.patch(f"/v1/runs/{run}", json={"ended": True})
    await running_store.api.delete(f"/v1/runs/{run}")


async def test_no_statement_reads_a_whole_large_table_or_several_projects(
    tmp_path: Path, database: Database, explained_statements: list[ExplainedStatement]
) -> None:
    await fill(database)
    await database.close()
    async with open_store(tmp_path / "spool", fresh := Database(database.url)) as running_store:
        await fresh.connect()
        await serve(running_store, fresh)
    await fresh.close()
    assert len({one.text for one in explained_statements}) > 100
    assert not whole_reads(explained_statements)
    assert not reads_without_project(explained_statements)


async def test_a_missing_index_and_a_missing_project_are_found(
    database: Database, explained_statements: list[ExplainedStatement]
) -> None:
    await fill(database)
    await database.close()
    connection = await asyncpg.connect(database.url)
    await connection.execute("DROP INDEX calls_project_started_at_id_idx")
    # Else it depends on the sample of ANALYZE whether reading all by another index looks cheaper than by none.
    await connection.execute("SET random_page_cost = 10")
    await connection.fetch("SELECT id FROM calls WHERE project = 'default' ORDER BY started_at, id LIMIT 5")
    await connection.fetch(
        "SELECT FROM runs JOIN gaps ON gaps.run = runs.id WHERE runs.project = 'default' AND runs.id = 'run-1'"
    )
    await connection.close()
    assert {one.partition(":")[0] for one in whole_reads(explained_statements)} == {"calls"}
    assert {one.partition(":")[0] for one in reads_without_project(explained_statements)} == {"gaps"}
