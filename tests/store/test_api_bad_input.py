"""Bad input: one problem document each, which says what is wrong, and nothing of what is stored is lost."""

import base64
from pathlib import Path
from typing import Any

import pytest

from store.database.connection import Database
from tests.store.running_store import RUN, RunningStore, import_bundle, is_problem, open_store

TOKEN = "correct-horse-battery-staple"

REFUSED = {
    # An unknown filter is named, with those that there are.
    "/v1/runs?modle=gpt-5": (400, "unknown_parameter", "modle"),
    "/v1/calls?colour=red": (400, "unknown_parameter", "colour"),
    "/v1/stats?group_by=model&colour=red": (400, "unknown_parameter", "colour"),
    f"/v1/runs/{RUN}?colour=red": (400, "unknown_parameter", "colour"),
    "/v1/runs?q=a&q=b": (400, "repeated_parameter", "q"),
    # Cursors that no list returned, and those of another list.
    "/v1/runs?cursor=nonsense": (422, "bad_cursor", "nonsense"),
    "/v1/calls?cursor=": (422, None, "cursor"),
    "/v1/calls?cursor=%F0%9F%92%A9": (422, "bad_cursor", "cursor"),
    "/v1/calls?cursor={runs}": (422, "bad_cursor", "cursor"),
    "/v1/runs?cursor={calls}": (422, "bad_cursor", "cursor"),
    f"/v1/runs/{RUN}/calls?cursor={{runs}}": (422, "bad_cursor", "cursor"),
    # Limits.
    "/v1/runs?limit=0": (422, "invalid_request", "limit"),
    "/v1/runs?limit=-1": (422, "invalid_request", "limit"),
    "/v1/calls?limit=501": (422, "invalid_request", "limit"),
    f"/v1/calls?limit={'9' * 400}": (422, "invalid_request", "limit"),
    # Wrong types.
    "/v1/runs?limit=many": (422, "invalid_request", "limit"),
    "/v1/runs?since=yesterday": (422, "invalid_request", "since"),
    "/v1/runs?incomplete=perhaps": (422, "invalid_request", "incomplete"),
    "/v1/calls?min_cost=cheap": (422, "invalid_request", "min_cost"),
    "/v1/calls?min_duration=nan": (422, "invalid_request", "min_duration"),
    "/v1/calls?kind=robot": (422, "invalid_request", "kind"),
    "/v1/calls?status=99999": (422, "invalid_request", "status"),
    # What nothing can fit.
    "/v1/calls?status=9xx": (422, "invalid_request", "status from 100 to 599"),
    "/v1/runs?status=200&status=600": (422, "invalid_request", "status"),
    "/v1/stats?group_by=model&status=0xx": (422, "invalid_request", "status"),
    "/v1/events?status=6xx": (422, "invalid_request", "status"),
    "/v1/calls?min_cost=-1": (422, "invalid_request", "min_cost"),
    "/v1/runs?min_duration=-0.5": (422, "invalid_request", "min_duration"),
    "/v1/runs?model=": (422, "invalid_request", "model"),
    "/v1/calls?q=": (422, "invalid_request", "q"),
    "/v1/calls?label=": (422, "invalid_request", "label"),
    "/v1/calls?label==support": (422, "invalid_request", "label"),
    "/v1/runs?sort=colour": (422, "invalid_request", "sort"),
    "/v1/calls?order=up": (422, "invalid_request", "order"),
    "/v1/runs?min_cost=1&min_cost=2": (400, "repeated_parameter", "min_cost"),
    "/v1/runs?fields=": (422, "unknown_field", "fields"),
    **{
        f"{path}since=2026-11-22T00:00:00Z&until=2026-11-21T23:59:59Z": (422, "invalid_request", "since")
        for path in (
            "/v1/runs?",
            "/v1/calls?",
            "/v1/stats?group_by=day&",
            "/v1/search?q=a&",
            "/v1/drift?",
            "/v1/audit?",
        )
    },
    "/v1/calls?fields=colour": (422, "unknown_field", "colour"),
    "/v1/stats?group_by=colour": (422, "unknown_group", "colour"),
    "/v1/stats": (422, "invalid_request", "group_by"),
    "/v1/events?last_event_id=nonsense": (422, "bad_event_id", "nonsense"),
    "/v1/events?colour=red": (400, "unknown_parameter", "colour"),
    # What is not there.
    "/v1/runs/never": (404, "unknown_run", "never"),
    "/v1/calls/never": (404, "unknown_call", "never"),
    "/v1/exchanges/never/chunks": (404, "unknown_exchange", "never"),
    "/v1/replays/never": (404, "unknown_replay", "never"),
    "/v1/nothing": (404, "not_found", "/v1/nothing"),
}
"""By request: the status, the kind of problem, and what its detail names."""


async def _cursors(running_store: RunningStore) -> dict[str, str]:
    """A cursor of each list."""
    return {what: (await running_store.api.get(f"/v1/{what}?limit=1")).json()["next"] for what in ("runs", "calls")}


async def _list_items(running_store: RunningStore) -> Any:
    """What is stored."""
    return [(await running_store.api.get(f"/v1/{what}?limit=500")).json()["items"] for what in ("runs", "calls")]


async def test_bad_input_is_one_problem_each_and_changes_nothing(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await import_bundle(running_store)
        await running_store.api.put("/v1/runs/second")
        before, cursors = await _list_items(running_store), await _cursors(running_store)
        for path, (status, name, named) in REFUSED.items():
            asked = path.replace("{runs}", cursors["runs"]).replace("{calls}", cursors["calls"])
            problem = is_problem(await running_store.api.get(asked), status, name)
            assert named in problem["detail"], (path, problem["detail"])
            assert len(problem["detail"]) < 1500, path
        assert await _list_items(running_store) == before


TOKENS = {
    "none": None,
    "another": "Bearer wrong",
    "empty": "Bearer",
    "basic": f"Basic {base64.b64encode(f'x:{TOKEN}'.encode()).decode()}",
    "without scheme": TOKEN,
    "longer": f"Bearer {TOKEN}x",
    "huge": "Bearer " + "x" * 8000,
    "not ASCII": b"Bearer \xff\xfe",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
async def test_a_bad_token_is_one_problem_whatever_is_asked(
    token: str | bytes | None, tmp_path: Path, database: Database
) -> None:
    headers = {} if token is None else {b"authorization": token if isinstance(token, bytes) else token.encode()}
    async with open_store(tmp_path / "spool", database, tokens=(TOKEN,), follows=False) as running_store:
        for path in ("/v1/runs", "/v1/runs/never", "/v1/nothing", "/openapi.json", "/v1/calls?limit=x"):
            answer = await running_store.api.get(path, headers=headers)
            is_problem(answer, 401, "token_required")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_run_that_is_deleted_while_it_is_paged_is_a_404_and_the_other_lists_go_on(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await import_bundle(running_store)
        content = (await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content
        assert (await running_store.api.post("/v1/import?as=other", content=content)).status_code == 201
        first = (await running_store.api.get(f"/v1/runs/{RUN}/calls?limit=1")).json()
        all_calls = (await running_store.api.get("/v1/calls?limit=1")).json()
        everything = (await running_store.api.get("/v1/calls?limit=500")).json()["items"]
        await running_store.api.delete(f"/v1/runs/{RUN}")

        following = await running_store.api.get(f"/v1/runs/{RUN}/calls", params={"limit": 1, "cursor": first["next"]})
        assert RUN in is_problem(following, 404, "unknown_run")["detail"]
        rest = (await running_store.api.get("/v1/calls", params={"limit": 500, "cursor": all_calls["next"]})).json()
        seen = {call["id"] for call in (*all_calls["items"], *rest["items"])}
        kept = {call["id"] for call in everything if call["run"] == "other"}
        assert kept <= seen, "every call of the other run is listed"
        assert {call["run"] for call in rest["items"]} == {"other"}
