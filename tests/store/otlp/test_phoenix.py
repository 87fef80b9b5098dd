"""A real Phoenix, started from PyPI, takes our spans and gives back trees, messages, tool calls, tokens and costs.

It is 150 packages (600 MB), so it runs only on request: PLAYHEAD_PHOENIX=make installs it into a temporary directory once;
PLAYHEAD_PHOENIX=DIR uses the environment in DIR; PLAYHEAD_PHOENIX=http://… one that runs.
"""

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.processes.ports import free_port
from store.database.connection import Database
from store.otlp.sender import OtlpSender
from store.otlp.target import ExportTarget
from tests.frameworks.environments import python
from tests.store.otlp.recorded import agent, claude, decode_spans, export_run, from_corpus, store_run
from tests.support.corpus import Cassette, cassettes

VERSION = "20.26.1"
STARTS_WITHIN = 300.0
"""Seconds: it takes 50 on two cores that do nothing else."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def interpreter() -> Path | None:
    where = os.environ.get("PLAYHEAD_PHOENIX")
    if not where:
        pytest.skip(
            "PLAYHEAD_PHOENIX is not set: `make` installs Phoenix (600 MB), a directory names an environment that has it"
        )
    if where.startswith("http"):
        return None
    return python(f"arize-phoenix=={VERSION}", limit=600) if where == "make" else Path(where) / "bin" / "python"


@pytest.fixture(scope="module")
def phoenix(interpreter: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Phoenix."""
    if interpreter is None:
        yield os.environ["PLAYHEAD_PHOENIX"]
        return
    directory, port = tmp_path_factory.mktemp("phoenix"), free_port("127.0.0.1", 0)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PHOENIX_WORKING_DIR": str(directory),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port("127.0.0.1", 0)),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    # Not the script `phoenix`: it names the interpreter of the directory in which the environment was made.
    command = [str(interpreter), "-m", "phoenix.server.main", "serve"]
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def project() -> str:
    """The name of a project that Phoenix does not have yet."""
    return f"test-{uuid.uuid4()}"


@asynccontextmanager
async def client_of(phoenix: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of Phoenix, once it answers."""
    async with httpx2.AsyncClient(base_url=phoenix, trust_env=False, verify=False, timeout=30) as client:
        async with asyncio.timeout(STARTS_WITHIN):
            while not await _is_healthy(client):  # noqa: ASYNC110 - another process starts
                await asyncio.sleep(0.5)
        yield client


async def _is_healthy(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx2.HTTPError:
        return False


async def spans_of(client: httpx2.AsyncClient, project: str, count: int) -> list[Mapping[str, Any]]:
    """The spans of a project, once there are so many: Phoenix stores them in the background."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.get(f"/v1/projects/{project}/spans", params={"limit": 1000})
            found: list[Mapping[str, Any]] = answer.json()["data"] if answer.status_code == 200 else []
            if len(found) >= count:
                return sorted(found, key=lambda span: (span["start_time"], span["span_kind"] != "AGENT"))
            await asyncio.sleep(0.2)


async def send(phoenix: str, requests: list[bytes]) -> None:
    sender = OtlpSender(ExportTarget(endpoint=phoenix))
    for request in requests:
        await sender.send(request, 3)
    await sender.close()


async def totals_of(client: httpx2.AsyncClient, project: str) -> Mapping[str, Any]:
    """What Phoenix sums up of a project."""
    members = "name traceCount recordCount tokenCountTotal costSummary{total{cost tokens}}"
    found = await query(client, f"{{projects(first: 1000){{edges{{node{{{members}}}}}}}}}")
    (ours,) = [edge["node"] for edge in found["projects"]["edges"] if edge["node"]["name"] == project]
    return dict(ours)


async def query(client: httpx2.AsyncClient, text: str) -> Any:
    answer = await client.post("/graphql", json={"query": text})
    assert "errors" not in answer.json(), answer.text
    return answer.json()["data"]


async def test_the_tree_messages_tools_tokens_and_costs_come_back(
    phoenix: str, database: Database, project: str
) -> None:
    async with client_of(phoenix) as client:
        requests = await export_run(database, await store_run(database, agent()), content=True, project=project)
        await send(phoenix, requests)
        root, first, tool, found, embedded, failed, last = await spans_of(client, project, 7)
        kinds = [one["span_kind"] for one in (root, first, tool, found, embedded, failed, last)]
        assert kinds == ["AGENT", "LLM", "TOOL", "RETRIEVER", "EMBEDDING", "LLM", "LLM"]
        assert root["parent_id"] is None
        assert tool["parent_id"] == first["context"]["span_id"]
        assert {one["parent_id"] for one in (first, found, embedded, failed, last)} == {root["context"]["span_id"]}
        said = first["attributes"]
        assert said["llm.input_messages.1.message.content"] == "Where is zanzibar?"
        call = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
        assert (said[f"{call}.name"], json.loads(said[f"{call}.arguments"])) == ("look_up", {"place": "zanzibar"})
        assert (said["llm.token_count.prompt"], said["llm.token_count.completion"]) == (120, 30)
        assert said["llm.token_count.prompt_details.cache_read"] == 20
        assert said["llm.cost.total"] == pytest.approx(0.000575)
        assert said["session.id"] == "night"
        assert found["attributes"]["retrieval.documents.0.document.content"] == "zanzibar again"
        assert (failed["status_code"], failed["status_message"]) == ("ERROR", "too much zanzibar")
        assert last["attributes"]["output.value"] == "zanzibar!"

        # Sent again, nothing is doubled.
        await send(phoenix, requests)
        other = await export_run(database, await store_run(database, claude()), content=True, project=project)
        await send(phoenix, other)
        spans = await spans_of(client, project, 10)
        assert len(spans) == 10
        totals = await totals_of(client, project)
        assert (totals["traceCount"], totals["recordCount"]) == (2, 10)
        assert totals["tokenCountTotal"] == 2 * 150 + 2 * 370, "of spans of the kind LLM"
        claudes = [one["attributes"] for one in spans if one["name"].startswith("chat claude")]
        # 10 tokens at $3, 300 read from the cache at $0.30, 40 written to it at $3.75, and 20 at $15 a million.
        assert [one["llm.cost.total"] for one in claudes] == pytest.approx([0.00057, 0.00057])
        # Phoenix sums up costs that it computes itself, in the background, for models that it knows: of these only gpt-4o.
        async with asyncio.timeout(60):
            while (cost := (await totals_of(client, project))["costSummary"]["total"]["cost"]) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        assert cost == pytest.approx(2 * 0.000575)
        print(f"\nPhoenix {VERSION}: {totals}, cost {cost}")


async def test_without_content_phoenix_has_only_counts(phoenix: str, database: Database, project: str) -> None:
    async with client_of(phoenix) as client:
        await send(phoenix, await export_run(database, await store_run(database, agent()), project=project))
        spans = await spans_of(client, project, 7)
        assert "zanzibar" not in json.dumps(spans)
        assert spans[1]["attributes"]["llm.token_count.total"] == 150


async def test_runs_of_the_corpus_come_back(phoenix: str, database: Database, project: str) -> None:
    """Real traffic of other projects: one cassette for each service that it has."""
    chosen: dict[str, Cassette] = {}
    for tape in cassettes():
        chosen.setdefault(tape.exchanges[0].host, tape)
    async with client_of(phoenix) as client:
        wanted = 0
        for number, tape in enumerate(chosen.values()):
            run = await store_run(database, from_corpus(tape, f"tape-{number}"))
            requests = await export_run(database, run, content=True, project=project)
            await send(phoenix, requests)
            wanted += sum(map(_count, requests))
        spans = await spans_of(client, project, wanted)
        assert len(spans) == wanted
        models = [span for span in spans if span["span_kind"] == "LLM" and span["status_code"] != "ERROR"]
        talking = [span for span in models if "llm.input_messages.0.message.role" in span["attributes"]]
        answered = [span for span in models if "output.value" in span["attributes"]]
        print(
            f"\n{len(chosen)} services, {len(spans)} spans, {len(models)} of models: {len(talking)} with messages, {len(answered)} answers"
        )
        print(sorted({span["name"] for span in models} - {span["name"] for span in talking}))
        assert len(talking) >= 0.8 * len(models)
        assert len(answered) >= 0.8 * len(models)


def _count(request: bytes) -> int:
    return len(decode_spans([request]))
