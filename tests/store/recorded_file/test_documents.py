"""The documents of a file are those that a store server has of the same run."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from store.bundle.bundle import read_bundle
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.recorded_file.documents import FileDocuments, FileProblem, StoredBody
from store.recorded_file.embedding import embed_documents, encode_document
from tests.store.exchanges import effect_batch
from tests.store.running_store import PROFILES, import_bundle, open_store
from tests.store.samples import exchange

ONLY_IN_THE_STORE = {"active_at", "head", "mode", "pinned", "profile", "settled"}
"""Members of a run that a bundle leaves out, or that depend on the store."""


def plain(value: Any) -> Any:
    """The document as JSON has it, without what only a store server knows."""
    found = json.loads(encode_document(value)) if not isinstance(value, bytes) else json.loads(value)
    return without(found)


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(one) for name, one in value.items() if name not in ONLY_IN_THE_STORE}
    return [without(one) for one in value] if isinstance(value, list) else value


async def test_a_file_and_a_store_server_answer_the_same(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        run = (await import_bundle(running_store))["id"]
        began = (
            read_bundle(BytesIO((await running_store.api.get(f"/v1/runs/{run}/bundle")).content))
            .exchanges[0]
            .started_at
        )
        await BatchWriter(database).write_batch((), effects=[effect_batch(number, run, began) for number in range(2)])
        exported = (await running_store.api.get(f"/v1/runs/{run}/bundle")).content
        file = FileDocuments(read_bundle(BytesIO(exported)), PROFILES, str)
        compared = 0
        for path, parameters in file.addresses():
            if path in ("/v1/runs", "/v1/calls") or path.endswith("/gaps"):
                continue
            stored = await running_store.api.get(path, params=dict(parameters))
            assert stored.status_code == 200, stored.text
            found = file.answer(path, parameters)
            if isinstance(found, StoredBody):
                assert found.data == stored.content, path
            else:
                assert plain(found) == plain(stored.content), path
            compared += 1
        assert compared > 20, "the test would prove nothing"


async def test_each_attempt_of_unknown_cost_counts_in_a_file_as_in_a_store(tmp_path: Path, database: Database) -> None:
    request = b'{"model": "no-known-model", "messages": [{"role": "user", "content": "hi"}]}'
    url = "https://api.openai.com/v1/chat/completions"
    lost = exchange(0, url=url, request=request, outcome="server_closed")
    tries = [replace(lost, response=None, first_byte_at=None), exchange(1, url=url, request=request)]
    async with open_store(tmp_path / "spool", database) as running_store:
        await BatchWriter(database).write_batch(
            [DerivedExchange(one, derive_call(one, PROFILES), (), None) for one in tries]
        )
        exported = (await running_store.api.get("/v1/runs/night-run/bundle")).content
        stored = (await running_store.api.get("/v1/runs/night-run")).json()
    file = FileDocuments(read_bundle(BytesIO(exported)), PROFILES, str)
    assert (stored["calls"], stored["unpriced"]) == (1, 2)
    assert plain(file.answer("/v1/runs/night-run", {}))["unpriced"] == 2


def test_everything_is_embedded_where_it_is_small_and_named_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).parents[1] / "example.jsonl"
    file = FileDocuments(read_bundle(BytesIO(example.read_bytes())), PROFILES, str)
    whole = embed_documents(file)
    assert not whole.left_out
    assert f"/v1/runs/{file.run}/timeline" in whole.documents
    assert all(json.loads(text) is not None for text in whole.documents.values())
    monkeypatch.setattr("store.recorded_file.embedding.LARGEST_BODY", 10)
    cut = embed_documents(file)
    assert cut.left_out
    assert all(name.startswith("/v1/exchanges/") for name in cut.left_out)
    monkeypatch.setattr("store.recorded_file.embedding.LARGEST_FILE", 4000)
    assert sum(map(len, embed_documents(file).documents.values())) <= 4000


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/runs/other", 404), ("/v1/calls/x", 404), ("/v1/exchanges/x", 404), ("/v1/search", 404), ("/v1/stats", 404)],
)
def test_what_a_file_does_not_have_is_a_problem(path: str, status: int) -> None:
    example = Path(__file__).parents[1] / "example.jsonl"
    file = FileDocuments(read_bundle(BytesIO(example.read_bytes())), PROFILES, str)
    with pytest.raises(FileProblem) as problem:
        file.answer(path, {})
    assert problem.value.status == status
