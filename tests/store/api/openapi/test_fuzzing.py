"""Requests that schemathesis makes up: no failure of the server, and no answer that the document does not describe.

It runs in an environment of its own (`tests/frameworks/environments.py`): its plugin for pytest would be loaded into every test
process, and its requirements are those of no other test. `--fuzz-seconds` makes it look for longer.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from store.database.connection import Database
from tests.frameworks.environments import python
from tests.store.running_store import RUN, RunningStore, import_bundle, open_store

SCHEMATHESIS = "schemathesis==4.32.5"
WITHOUT_COLLECTOR = (
    "import gc; gc.set_threshold(500_000, 20, 100); from schemathesis.cli import schemathesis; schemathesis()"
)
"""Python's collector takes a sixth of the time of a short run."""

TOKEN = "correct-horse-battery-staple"

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,ignored_auth"
)


EVENTS = "/v1/events"
"""It does not end; tests/store/test_api_bad_input.py has what it refuses."""

HEADERS = [{"in": "header", "name": name, "schema": {"type": "string"}} for name in ("Last-Event-ID", "If-None-Match")]
"""Headers that no route describes, and that clients send."""


async def _known_ids(running_store: RunningStore) -> dict[str, list[str]]:
    """What there is, by the name of its parameter: without it every made-up request would end at a 404."""
    items = (await running_store.api.get(f"/v1/runs/{RUN}/calls")).json()["items"]
    calls, exchanges = [one["id"] for one in items], [name for one in items for name in one["exchanges"]]
    cursors = [(await running_store.api.get(f"/v1/{what}?limit=1")).json()["next"] for what in ("runs", "calls")]
    runs = {name: [RUN, "second"] for name in ("run", "a", "b")}
    return runs | {"call": calls, "exchange": exchanges, "replay": ["again"], "cursor": cursors}


def _with_known_ids(document: dict[str, Any], known: Mapping[str, list[str]]) -> dict[str, Any]:
    for methods in document["paths"].values():
        for method, operation in methods.items():
            operation.setdefault("parameters", []).extend(HEADERS)
            for parameter in operation.get("parameters", ()):
                names = known.get(parameter["name"])
                if names and method != "delete":
                    parameter["schema"] = {"anyOf": [{"type": "string", "enum": names}, parameter["schema"]]}
    return document


async def _fuzz(running_store: RunningStore, directory: Path, *options: str) -> str:
    """Run schemathesis and return what it found; nothing where it found nothing."""
    interpreter = await asyncio.to_thread(python, SCHEMATHESIS)
    document = (await running_store.api.get("/openapi.json")).json()
    file = directory / "openapi.json"
    file.write_text(json.dumps(_with_known_ids(document, await _known_ids(running_store))))
    line = [
        str(interpreter),
        "-c",
        WITHOUT_COLLECTOR,
        "run",
        str(file),
        "--url",
        str(running_store.api.base_url),
        "--checks",
        CHECKS,
    ]
    line += ["--header", f"Authorization: Bearer {TOKEN}", "--seed", "15", "--no-color", "--continue-on-failure"]
    line += ["--suppress-health-check", "all", "--warnings", "off", "--no-shrink", "--exclude-path", EVENTS, *options]
    running = await asyncio.create_subprocess_exec(
        *line, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await running.communicate()
    return "" if running.returncode == 0 else output.decode()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_request_makes_the_server_fail_or_answer_what_is_not_described(
    tmp_path: Path, database: Database, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("fuzz_seconds")
    limit = ["--max-examples", "5", "--phases", "examples,fuzzing"]
    if seconds:
        limit = ["--max-time", str(seconds), "--phases", "examples,coverage,fuzzing,stateful"]
    async with open_store(tmp_path / "spool", database, mode="auto", tokens=(TOKEN,)) as running_store:
        running_store.api.headers["authorization"] = f"Bearer {TOKEN}"
        await import_bundle(running_store)
        await running_store.api.post("/v1/replays", json={"run": RUN, "id": "again"})
        await running_store.api.post(
            "/v1/import?as=second", content=(await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content
        )
        if found := await _fuzz(running_store, tmp_path, *limit):
            pytest.fail(found, pytrace=False)
