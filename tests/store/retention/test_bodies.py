"""Bodies go before their run: what was said is gone from everywhere, and what is known about it stays, with its proof."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from calls.effects.items import encode_items
from calls.events import EffectBatch
from calls.model import Chunk, Exchange
from store.database.blobs import BodyUnavailable
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof.sealing import Sealer
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.retention import runner
from store.retention.runner import RetentionRunner
from tests.store.erasure.test_eraser import index
from tests.store.objects.test_body_objects import conversation, object_files, object_storage
from tests.store.retention.test_runner import fetch, policy
from tests.store.retention.test_runner import store as store_with_sums
from tests.store.running_store import SIGNING_KEYS, is_problem, open_store
from tests.store.samples import NOON, SECOND, uuid7
from tests.store.sums.test_run_sums import derive

DAY = 86_400 * SECOND
TEXTS = " UNION ALL ".join(f"SELECT FROM {table}" for table in ("parts", "text_groups", "text_hashes"))
POLICY = policy({"name": "short", "keep": "90d", "keep_bodies": "7d"})


def retention(database: Database, days: int = 10) -> RetentionRunner:
    return RetentionRunner(database, POLICY, now=lambda: NOON + days * DAY)


async def columns_with(database: Database, needle: str) -> list[str]:
    """The columns of all tables in which a text is, as it is or in hexadecimal."""
    found = []
    rows = await fetch(
        database,
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        " AND data_type IN ('bytea', 'text', 'tsvector')",
    )
    for row in rows:
        column = f'"{row["column_name"]}"'
        value = f"encode({column}, 'escape')" if row["data_type"] == "bytea" else f"{column}::text"
        query = f"SELECT count(*) FROM {row['table_name']} WHERE {value} LIKE $1"
        if (await fetch(database, query, f"%{needle}%"))[0]["count"]:
            found.append(f"{row['table_name']}.{row['column_name']}")
    return found


async def store(database: Database, exchanges: list[Exchange]) -> None:
    await store_with_sums(database, exchanges)
    await index(database)


async def test_bodies_go_and_what_is_known_stays(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.database.blobs.MIN_COMPRESSED_SIZE", 1 << 40)
    database.objects = storage = object_storage(database, tmp_path)
    storage._now = lambda: NOON
    made = conversation("night", turns=2) + conversation("night", turns=3, size=300, seed=3)
    canary = "c4n4ry" * 3
    said = made[-1].request.body.data.replace(b'"model"', f'"user": "{canary}", "model"'.encode(), 1)
    made[-1] = _with_body(made[-1], said)
    await store(database, made)
    items = encode_items([{"kind": "input", "results": [canary]}])
    observed = EffectBatch("night", uuid7(NOON, 77), NOON, "0", 0, 1, items)
    await BatchWriter(database).write_batch((), effects=[observed])
    assert "effects.items" in await columns_with(database, canary)
    queries = CallReader(database, derive)
    before = (await queries.run_calls("night")).items
    assert await columns_with(database, canary)
    plan = await retention(database).plan()
    assert [(one.part, one.reason) for one in plan.expiries] == [("bodies", "short: bodies older than 1w")]
    storage._now = lambda: NOON + 10 * DAY
    report = await retention(database).run_once()
    assert [one.part for one in report.runs] == ["bodies"]
    assert report.objects == 4
    # The chunks of both bodies are of a day that nothing is written to any more.
    assert {day.way for day in report.days} == {"rewritten"}
    assert sum(day.after for day in report.days) < sum(day.before for day in report.days)
    assert await columns_with(database, canary) == []
    assert object_files(tmp_path) == []
    assert await fetch(database, TEXTS) == []
    after = (await queries.run_calls("night")).items
    for was, now in zip(before, after, strict=True):
        assert now["request"] is now["answer"] is now["text"] is None
        assert any("erased by retention" in warning for warning in now["warnings"])
        kept = (
            "id",
            "step",
            "model_requested",
            "usage",
            "cost_usd",
            "key",
            "status",
            "duration_ms",
            "started_at",
            "actor",
        )
        assert {name: now[name] for name in kept} == {name: was[name] for name in kept}
    assert len((await queries.calls(Filters())).items) == len(made)
    with pytest.raises(BodyUnavailable, match="erased by retention"):
        await queries.exchange(made[0].id)
    # Nothing is left to do.
    again = await retention(database).run_once()
    assert (again.runs, again.days) == ([], [])


def _with_body(one: Exchange, data: bytes) -> Exchange:
    body = replace(one.request.body, data=data, size=len(data), chunks=(Chunk(0, 0, len(data)),))
    return replace(one, request=replace(one.request, body=body))


async def test_the_proof_is_whole_and_lists_what_is_gone(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await store(database, conversation("night", turns=2, size=500))
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        sealer = Sealer(database, SIGNING_KEYS, tmp_path / "checkpoints")
        await sealer.seal_all()
        await retention(database).run_once()
        await sealer.seal_all()
        answer = await running_store.api.get("/v1/runs/night/verify")
        found = answer.json()
        assert answer.status_code == 200, answer.text
        assert (found["verdict"], found["proven"], found["findings"]) == ("verified", 2, [])
        assert [(one["part"], one["rule"]) for one in found["erased"]] == [("bodies", "short")] * 2
        # Somebody else's hand is found: a body that vanished without a record.
        await store(database, conversation("day", turns=1, size=500, seed=2))
        await sealer.seal_all()
        async with database.connection() as connection:
            await connection.execute(
                "UPDATE exchanges SET request_body = NULL, response_body = NULL, request_digest = NULL,"
                " response_digest = NULL WHERE run = 'day'"
            )
        found = (await running_store.api.get("/v1/runs/day/verify")).json()
        assert (found["verdict"], found["findings"][0]["change"]) == ("failed", "removed")
        await _check_answers(running_store.api)


async def _check_answers(api: httpx2.AsyncClient) -> None:
    """Whoever asks for the bodies gets one clear answer; whoever asks for the rest gets it."""
    calls = (await api.get("/v1/runs/night/calls?fields=*")).json()["items"]
    name = calls[0]["id"]
    is_problem(await api.get(f"/v1/exchanges/{name}/request"), 410, "body_erased")
    is_problem(await api.get("/v1/runs/night/bundle"), 410, "body_erased")
    problem = is_problem(await api.get("/v1/runs/night/rows"), 410, "body_erased")
    assert "cannot be replayed" in problem["detail"]
    one = (await api.get(f"/v1/exchanges/{name}")).json()
    assert (one["request_digest"], one["status"]) == (None, 200)
    assert one["request_size"] > 0
    assert (await api.get(f"/v1/calls/{name}")).json()["request"] is None
    assert (await api.get("/v1/runs/night/calls")).json()["items"][0]["status"] == 200


@pytest.mark.parametrize("step", ["expire_bodies", "clear_day"])
async def test_a_pass_that_was_killed_is_continued(
    database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    await store(database, conversation("night", turns=2, size=500))
    real: Any = getattr(runner, step)

    async def raise_killed(*what: Any) -> Any:
        if step == "expire_bodies":
            await real(*what)
        raise ZeroDivisionError

    monkeypatch.setattr(runner, step, raise_killed)
    with pytest.raises(ZeroDivisionError):
        await retention(database).run_once()
    monkeypatch.undo()
    await retention(database).run_once()
    rows = await fetch(database, "SELECT request_body, response_body FROM exchanges")
    assert [tuple(row) for row in rows] == [(None, None)] * 2
    assert await fetch(database, "SELECT FROM expirations") == []


async def test_pinned_and_flagged_runs_stay_whole(database: Database) -> None:
    made = {
        name: conversation(name, turns=1, size=500, seed=n) for n, name in enumerate(("pinned", "flagged", "plain"))
    }
    for exchanges in made.values():
        await store(database, exchanges)
    async with database.connection() as connection:
        await connection.execute("UPDATE runs SET pinned = true WHERE id = 'pinned'")
        await connection.execute("UPDATE runs SET labels = jsonb_build_object('flagged', 'true') WHERE id = 'flagged'")
    report = await retention(database).run_once()
    assert [one.judged.facts.run for one in report.runs] == ["plain"]
    queries = CallReader(database, derive)
    for name in ("pinned", "flagged"):
        assert [one async for one in queries.exchanges(name)] == made[name]


async def test_a_run_that_goes_on_has_its_new_bodies(database: Database) -> None:
    made = conversation("night", turns=2, size=500)
    await store(database, made[:1])
    await retention(database).run_once()
    later = _later(made[1], 10 * DAY)
    await store(database, [later])
    queries = CallReader(database, derive)
    assert await queries.exchange(later.id) == later
    with pytest.raises(BodyUnavailable):
        await queries.exchange(made[0].id)
    await retention(database, days=30).run_once()
    with pytest.raises(BodyUnavailable):
        await queries.exchange(later.id)


def _later(one: Exchange, by: int) -> Exchange:
    at = one.started_at + by
    return replace(one, started_at=at, id=uuid7(at, 77))
