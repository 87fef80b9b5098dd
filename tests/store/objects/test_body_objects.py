"""Large bodies are in object storage, come back byte for byte, and what becomes of an object harms nothing else."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from calls.model import Exchange
from store.database.blobs import BodyUnavailable
from store.database.connection import Database
from store.database.object_forms import NoObjectStorage
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.objects.body_objects import BodyObjects
from store.objects.target import ObjectTarget
from store.query.call_reader import CallReader
from store.query.call_summaries import SUMMARY
from store.query.filters import Filters
from tests.store.running_store import is_problem, open_store
from tests.store.samples import NOON, SECOND, exchange
from tests.store.sums.test_run_sums import derive

THRESHOLD = 8192


def object_storage(database: Database, directory: Path, *, url: str | None = None, pause: float = 0) -> BodyObjects:
    target = ObjectTarget(
        url=url or f"file://{directory}/bucket", threshold=THRESHOLD, keys=str(directory / "keys" / "objects")
    )
    return BodyObjects(database, target, pause=pause)


def noise(size: int, seed: int) -> str:
    """Text that zstd makes no shorter than a half."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


def conversation(run: str = "night", turns: int = 3, size: int = 20_000, seed: int = 0) -> list[Exchange]:
    """Calls that repeat what was said before; each message and each answer is large."""
    messages: list[dict[str, str]] = []
    made = []
    for turn in range(turns):
        messages.append({"role": "user", "content": noise(size, seed * 100 + turn)})
        answer = noise(size, seed * 100 + 50 + turn)
        response = {"model": "gpt-5", "choices": [{"message": {"role": "assistant", "content": answer}}]}
        body = json.dumps({"model": "gpt-5", "messages": messages}).encode()
        made.append(
            exchange(
                turn,
                run=run,
                at=NOON + turn * SECOND + seed * 1000 * SECOND,
                url="https://api.openai.com/v1/chat/completions",
                request=body,
                response=json.dumps(response).encode(),
            )
        )
        messages.append({"role": "assistant", "content": answer})
    return made


async def store(database: Database, exchanges: Sequence[Exchange], writer: BatchWriter | None = None) -> None:
    """Store exchanges, each in a batch of its own."""
    writer = writer or BatchWriter(database)
    for one in exchanges:
        await writer.write_batch([DerivedExchange(one, derive(one))])


async def read_exchanges(database: Database, run: str = "night") -> list[Exchange]:
    return [one async for one in CallReader(database, derive).exchanges(run)]


def object_files(directory: Path) -> list[Path]:
    """All objects of bodies in a folder."""
    return sorted(path for path in (directory / "bucket").glob("*/??/*") if path.is_file())


async def forms_size(database: Database) -> int:
    async with database.connection() as connection:
        size: int = await connection.fetchval(
            "SELECT (SELECT sum(octet_length(request_body) + octet_length(response_body)) FROM exchanges)"
            " + (SELECT coalesce(sum(octet_length(body)), 0) FROM parts)"
        )
    return size


async def test_large_bodies_are_objects_and_come_back(database: Database, tmp_path: Path) -> None:
    database.objects = storage = object_storage(database, tmp_path)
    made = conversation()
    await store(database, made)
    assert await read_exchanges(database) == made
    # What is new in each request, and each answer.
    assert len(object_files(tmp_path)) == storage.written == 6
    assert await forms_size(database) < 20_000
    # A new process reads them from the folder.
    database.objects = object_storage(database, tmp_path)
    assert await read_exchanges(database) == made
    content = b"".join(path.read_bytes() for path in object_files(tmp_path))
    assert noise(20_000, 0)[:50].encode() not in content


async def test_equal_bytes_are_one_object_within_a_project(database: Database, tmp_path: Path) -> None:
    database.objects = storage = object_storage(database, tmp_path)
    await store(database, conversation("one", turns=1))
    before = object_files(tmp_path)
    await store(database, conversation("two", turns=1))
    assert object_files(tmp_path) == before
    await BatchWriter(database, project="other").write_batch(
        [DerivedExchange(one, derive(one), project="other") for one in conversation("one", turns=1)]
    )
    others = [path for path in object_files(tmp_path) if path not in before]
    assert len(others) == len(before)
    assert not {path.name for path in others} & {path.name for path in before}
    assert storage.trouble is None


async def test_a_list_loads_no_object(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    await store(database, conversation())
    database.objects = NoObjectStorage()
    queries = CallReader(database, derive)
    page = await queries.calls(Filters(), fields=SUMMARY)
    assert [call["warnings"] for call in page.items] == [[], [], []]
    assert all(call["text"] for call in page.items)


@pytest.mark.parametrize("harm", ["missing", "damaged", "cut", "swapped"])
async def test_a_lost_object_is_an_error_of_its_call_alone(database: Database, tmp_path: Path, harm: str) -> None:
    database.objects = object_storage(database, tmp_path)
    made = conversation("night", turns=1) + conversation("night", turns=1, seed=1)
    await store(database, made)
    files = object_files(tmp_path)
    (lost,) = [path for path in files if await _is_response_of(database, path, made[0].id)]
    match harm:
        case "missing":
            lost.unlink()
        case "damaged":
            content = bytearray(lost.read_bytes())
            content[-100] ^= 1
            lost.write_bytes(content)
        case "cut":
            lost.write_bytes(lost.read_bytes()[:-1])
        case _:
            lost.write_bytes(next(path for path in files if path != lost).read_bytes())
    database.objects = object_storage(database, tmp_path)
    queries = CallReader(database, derive)
    with pytest.raises(BodyUnavailable) as error:
        await queries.exchange(made[0].id)
    assert error.value.kind == ("missing" if harm == "missing" else "damaged")
    assert lost.name in error.value.reason
    assert await queries.exchange(made[1].id) == made[1]
    # Its request is there all the same.
    assert await queries.request(made[0].id) == made[0].request
    with pytest.raises(BodyUnavailable):
        await queries.response(made[0].id)
    calls = (await queries.run_calls("night")).items
    assert [call["request"] is None for call in calls] == [True, False]
    assert calls[0]["warnings"] == [error.value.reason]


async def _is_response_of(database: Database, path: Path, exchange_id: str) -> bool:
    async with database.connection() as connection:
        form: bytes = await connection.fetchval("SELECT response_body FROM exchanges WHERE id = $1", exchange_id)
    return bytes.fromhex(path.name) in form


async def test_without_its_key_a_project_has_no_objects(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    made = conversation(turns=1)
    await store(database, made)
    (key,) = (tmp_path / "keys" / "objects").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    database.objects = object_storage(database, tmp_path)
    with pytest.raises(BodyUnavailable, match="is gone, and with it every object") as error:
        await CallReader(database, derive).exchange(made[0].id)
    assert error.value.kind == "erased"


async def test_bodies_are_in_the_database_while_object_storage_is_down(database: Database, tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("not a directory")
    database.objects = storage = object_storage(database, tmp_path)
    made = conversation()
    await store(database, made)
    assert storage.trouble
    assert storage.failures
    assert await read_exchanges(database) == made
    assert await forms_size(database) > 50_000
    (tmp_path / "bucket").unlink()
    assert await storage.check() is None
    more = conversation("day", turns=1, seed=1)
    await store(database, more)
    assert object_files(tmp_path)
    assert await read_exchanges(database, "day") == more


async def test_what_is_said_about_object_storage_is_what_the_next_body_meets(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "bucket").write_text("not a directory")
    database.objects = storage = object_storage(database, tmp_path, pause=3600)
    await store(database, conversation(turns=1))
    why = storage.trouble
    assert why is not None
    (tmp_path / "bucket").unlink()
    # It answers again, but within the pause bodies still go into the database: nobody may be told that all is well.
    assert await storage.check() == why
    await store(database, conversation("day", turns=1, seed=1))
    assert (object_files(tmp_path), storage.trouble) == ([], why)
    # A helper process has written one, so it works, and the pause is over.
    storage.add_counts({"objects_written_total": 1}, None)
    await store(database, conversation("noon", turns=1, seed=2))
    assert (len(object_files(tmp_path)), storage.trouble) == (2, None)


async def test_a_run_that_is_not_whole_is_not_exported(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    await store(database, conversation())
    async with open_store(tmp_path / "spool", database) as running_store:
        whole = await running_store.api.get("/v1/runs/night/bundle")
        assert (whole.status_code, whole.text.count("\n")) == (200, 5)
        lost = object_files(tmp_path)[0]
        lost.unlink()
        problem = is_problem(await running_store.api.get("/v1/runs/night/bundle"), 502, "body_missing")
        assert problem["detail"].startswith("run night is not whole: the object ")
        assert lost.name in problem["detail"]
        found = (await running_store.api.get("/v1/runs/night/verify")).json()
        assert (found["verdict"], found["findings"][0]["change"]) == ("failed", "removed")
        # Steps of the replay that do not need it are served.
        assert (await running_store.api.get("/v1/runs/night/rows")).status_code == 200
