"""What the OpenAPI document says is what the API answers."""

import ast
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from store.api.app import create_app
from store.api.openapi.answers import ROUTES
from store.api.openapi.document import openapi_document
from store.api.openapi.problems import PROBLEMS
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from tests.store.agents import Agent
from tests.store.described import Description, UndescribedAnswer
from tests.store.running_store import EXAMPLE, PROFILES, RUN, RunningStore, import_bundle, open_store
from tests.store.samples import exchange

API = Path(__file__).parents[4] / "store" / "api"

UNREACHED = {
    ("GET /ca.pem", 200): "it needs a directory with a certificate",
    ("GET /ca-bundle.pem", 200): "likewise",
    ("POST /v1/session", 204): "its server has no tokens; tests/store/page logs in",
    ("POST /v1/session/codes", 201): "likewise",
    ("GET /readyz", 503): "it needs a database that does not answer",
}
"""Answers that the visit below does not get, and why."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document(create_app(Mock(), {}))


@asynccontextmanager
async def check_answers(running_store: RunningStore) -> AsyncIterator[Description]:
    """Check every answer that the client gets inside of the block."""
    description = Description((await running_store.api.get("/openapi.json")).json())

    async def check(answer: httpx2.Response) -> None:
        # A stream of events does not end.
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            await answer.aread()
        description.check(answer)

    running_store.api.event_hooks = {"response": [check]}
    yield description


async def _store(database: Database, run: str, agent: Agent) -> None:
    made = agent.run(run)
    lone = replace(exchange(7, run=run, url="https://down.example.com/"), response=None, outcome="refused")
    kept = [DerivedExchange(one, derive_call(one, profiles=PROFILES)) for one in (*made, lone)]
    await BatchWriter(database, profile=PROFILES.digest).write_batch(kept)


async def _visit(running_store: RunningStore, database: Database, description: Description) -> None:
    """Ask every route for something that exists."""
    api = running_store.api
    await import_bundle(running_store)
    await import_again(running_store)
    await _store(database, "one", Agent(turns=3))
    await _store(
        database,
        "other",
        Agent(turns=4, finds=lambda turn: {"found": f"gamma {turn}"}, fingerprint=lambda turn: "fp_2", offset=9),
    )
    await api.put("/v1/runs/made", json={"name": "Night", "labels": {"a": "b"}})
    await api.patch("/v1/runs/made", json={"pinned": True})
    await api.post("/v1/runs/made/gaps", json={"gaps": [{"reason": "disk_full", "count": 2}]})
    for path in (
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/session",
        "/v1/runs",
        "/v1/drift",
        "/v1/audit",
        "/v1/runs/made/gaps",
        "/v1/calls",
    ):
        await api.get(path)
    await api.get("/v1/stats", params={"group_by": ["model", "tool", "day"], "settled": "true"})
    await api.get("/v1/facets", params={"settled": "true"})
    await api.get("/v1/marks", params={"run": [RUN, "one"]})
    await api.get("/v1/checkpoint", params={"since": 1})
    await api.get("/v1/verify")
    await api.get("/v1/verifications", params={"run": [RUN, "unknown"]})
    await api.get("/v1/search", params={"q": "the OR a", "settled": "true"})
    await api.post("/v1/search/rebuild")
    for run in (RUN, "one", "other"):
        await _visit_run(api, run)
    await api.get("/v1/runs/one/diff/other?settled=true")
    await api.get(f"/v1/runs/one/diff/{RUN}")
    await api.get("/v1/calls", params={"fields": "id,kind,cost_usd"})
    for what in ("runs", "calls"):
        await api.get(f"/v1/{what}", params={"sort": "cost", "order": "asc", "limit": 2})
        description.check_lines(await api.get(f"/v1/{what}", headers={"accept": "application/x-ndjson"}))
    await api.get("/v1/runs?fields=id,cost_usd")
    async with api.stream("GET", "/v1/events"):
        pass
    await api.post("/v1/replays", json={"run": RUN, "id": "again"})
    await api.get("/v1/replays/again")
    await api.post("/v1/replays/again/end")
    await api.post(f"/v1/runs/{RUN}/forks", json={"from": 1, "id": "fork"})
    description.check_lines(await api.post("/v1/rekey", json={"dry_run": True}))
    shot = {"rules": {}, "run": "one", "answers": [{"pin": "p", "answer": {"exact": "a", "structure": "b"}}]}
    await api.post("/v1/canaries/night/shots", json=shot)
    await api.get("/v1/canaries")
    await api.delete("/v1/canaries/night")
    await api.post("/v1/runs/one/questions", json={"prompt": "Refund it?", "asked_from": "agent.py:3"})
    await api.get("/v1/waiting")
    step = {"kind": "langgraph.node", "args": {"name": "route"}, "results": ["refund"]}
    await api.post("/v1/runs/one/effects", json={"process": "langgraph", "number": 0, "items": [step]})
    await api.post("/v1/runs/one/answers", json={"value": "yes"})
    await api.get("/v1/retention")
    await api.post("/v1/retention/run")
    await api.post("/v1/erasures", json={"match": "$.nothing=1"})
    await api.delete(f"/v1/calls/{(await api.get(f'/v1/runs/{RUN}/calls')).json()['items'][0]['id']}")
    await api.delete("/v1/runs/made")
    await api.delete("/v1/session")


async def import_again(running_store: RunningStore) -> None:
    """A second time nothing is new."""
    assert (await running_store.api.post("/v1/import", content=EXAMPLE.read_bytes())).status_code == 200


async def _visit_run(api: httpx2.AsyncClient, run: str) -> None:
    for path in (
        "",
        "?settled=true",
        "/calls",
        "/calls?fields=*",
        "/gaps",
        "/bundle",
        "/spans",
        "/cost",
        "/timeline",
        "/conversation",
        "/effects",
        "/effects/sums",
        "/verify",
        "/envelope",
    ):
        await api.get(f"/v1/runs/{run}{path}")
    for call in (await api.get(f"/v1/runs/{run}/calls")).json()["items"]:
        for path in ("", "/explain", "/snippet?as=curl", "?content=short"):
            await api.get(f"/v1/calls/{call['id']}{path}")
        for path in ("", "/chunks", "/request", "/response"):
            await api.get(f"/v1/exchanges/{call['exchanges'][0]}{path}")
            await api.get(f"/v1/exchanges/{call['exchanges'][0]}{path}", headers={"range": "bytes=0-0"})


async def test_every_route_answers_what_the_document_says(tmp_path: Path, database: Database) -> None:
    async with (
        open_store(tmp_path / "spool", database, mode="auto") as running_store,
        check_answers(running_store) as description,
    ):
        await _visit(running_store, database, description)
    promised = {(name, status) for name, answers in ROUTES.items() for status in answers.statuses}
    assert promised - description.seen == set(UNREACHED), "visit every route, or say here why not"


def test_every_route_has_declared_answers(document: dict[str, Any]) -> None:
    assert set(ROUTES) == set(Description(document).operations), "declare them in store/api/openapi/answers.py"


def _problems_in_code() -> Iterator[tuple[int | None, str]]:
    """The status and name of each problem that the API makes."""
    for file in API.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            values = [each.value if isinstance(each, ast.Constant) else None for each in node.args]
            if node.func.id == "Problem" and isinstance(values[1], str):
                yield values[0] if isinstance(values[0], int) else None, values[1]
            if node.func.id == "not_found":
                yield 404, f"unknown_{values[0]!s}"


def test_every_problem_of_the_code_is_listed_with_its_status() -> None:
    missing = [(status, name) for status, name in _problems_in_code() if name not in PROBLEMS]
    assert missing == [], "list them in store/api/openapi/problems.py"
    assert [(s, name) for s, name in _problems_in_code() if s is not None and s not in PROBLEMS[name][0]] == []


def test_every_problem_can_be_merged_by_generators_of_clients(document: dict[str, Any]) -> None:
    """openapi-python-client leaves out an answer in which a `const` restricts the integer of `Problem`."""
    problem = "application/problem+json"
    statuses = [
        restriction["properties"]["status"]
        for operations in document["paths"].values()
        for operation in operations.values()
        for answer in operation["responses"].values()
        for restriction in answer.get("content", {}).get(problem, {}).get("schema", {}).get("allOf", [])[1:]
    ]
    assert len(statuses) > 100
    assert {tuple(each) for each in statuses} == {("enum",)}


def test_every_example_is_as_its_schema_says(document: dict[str, Any]) -> None:
    description = Description(document)
    count = 0
    for name, operation in description.operations.items():
        for response in operation["responses"].values():
            for content in response.get("content", {}).values():
                values = [one["value"] for one in content.get("examples", {}).values()]
                values += [content["example"]] if "example" in content else []
                for value in values:
                    description.validate(content["schema"], value, name)
                    count += 1
    assert count > 100


def test_every_parameter_is_described(document: dict[str, Any]) -> None:
    bare = [
        f"{name} {parameter['name']}"
        for name, operation in Description(document).operations.items()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    ]
    assert bare == []


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


async def test_a_member_that_is_not_declared_is_found(document: dict[str, Any]) -> None:
    request = httpx2.Request("GET", "http://127.0.0.1/healthz")
    with pytest.raises(UndescribedAnswer, match="Additional properties are not allowed"):
        Description(document).check(httpx2.Response(200, json={"status": "ok", "new": 1}, request=request))
    with pytest.raises(UndescribedAnswer, match="answered 418, which is not described"):
        Description(document).check(httpx2.Response(418, json={}, request=request))
