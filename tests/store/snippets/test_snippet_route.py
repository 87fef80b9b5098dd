"""`GET /v1/calls/{call}/snippet`."""

import subprocess
from pathlib import Path

from store.api.gate import match_route
from store.database.connection import Database
from store.snippets.snippet import FORMS
from tests.store.running_store import import_bundle, open_store


async def test_every_form_of_every_call_is_copied(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        run = (await import_bundle(running_store))["id"]
        calls = (await running_store.api.get(f"/v1/runs/{run}/calls")).json()["items"]
        for call in calls:
            for form in FORMS:
                answer = await running_store.api.get(f"/v1/calls/{call['id']}/snippet", params={"as": form})
                assert answer.status_code == 200, answer.text
                snippet = answer.json()
                assert snippet["as"] == form
                assert "PLAYHEAD_" not in snippet["text"]
                assert snippet["file"].startswith(f"test_{run}".replace("-", "_") if form == "pytest" else run[:3])
                if form == "curl":
                    subprocess.run(["sh", "-n", "-c", snippet["text"]], check=True)  # noqa: ASYNC221 - it reads a script only


def test_a_copy_needs_bodies_read_and_is_noted_as_an_export() -> None:
    matched = match_route("GET", "/v1/calls/x/snippet")
    assert matched is not None
    assert (matched.rule.scopes, matched.rule.action) == (("bodies:read",), "export")
