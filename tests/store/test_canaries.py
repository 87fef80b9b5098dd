"""The state of canaries is kept between their shots, per project, and read back by the REST interface."""

from pathlib import Path
from typing import Any

import httpx2

from store.database.connection import Database
from tests.store.running_store import is_problem, open_store

RULES = {"references": 1, "baseline": 40}


def shot(*exact: str, **more: Any) -> dict[str, Any]:
    answers = [{"pin": "call", "answer": {"exact": one, "structure": "s", "model": "m"}} for one in exact]
    return {"rules": RULES, "run": "canary-1", "answers": answers, **more}


async def test_a_canary_is_kept_between_its_shots_and_begins_anew_if_it_is_removed(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        api = running_store.api
        name = "/v1/canaries/kept/shots"
        answer = await api.post(name, json=shot(*["a"] * 41))
        assert answer.status_code == 201
        assert (answer.json()["verdict"], answer.json()["is_news"]) == ("cannot tell", False)
        for _ in range(2):
            await api.post(name, json=shot(*["a"] * 30))
        state = (await api.post(name, json=shot(*["a"] * 30))).json()
        assert (state["verdict"], state["calls"], state["shots"], state["models"]) == ("unchanged", 131, 4, ["m"])
        state = (await api.post(name, json=shot(*["b"] * 30, failed=2, problem="one did not answer"))).json()
        assert (state["verdict"], state["stage"], state["is_news"]) == ("changed", "answers", True)
        assert state["effect"] > 0.9
        state = (await api.post(name, json=shot(*["a"] * 30))).json()
        assert (state["verdict"], state["is_news"], state["failed"]) == ("changed", False, 2)
        items = (await api.get("/v1/canaries")).json()["items"]
        assert {"kept", "changed"} <= {value for item in items for value in (item["name"], item["verdict"])}
        lines = (await api.get("/metrics")).text
        assert 'playhead_canaries{project="default",verdict="changed"}' in lines
        assert (await api.get("/v1/canaries?project=other")).json()["items"] == []
        assert (await api.delete("/v1/canaries/kept")).status_code == 204
        is_problem(await api.delete("/v1/canaries/kept"), 404, "unknown_canary")
        assert (await api.post(name, json=shot("c"))).json()["calls"] == 1


async def test_a_change_in_ordinary_traffic_is_a_change(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        traffic = {"reason": "m-2 answers m", "example": None}
        answer = (await running_store.api.post("/v1/canaries/traffic/shots", json=shot("a", traffic=traffic))).json()
        assert (answer["verdict"], answer["stage"], answer["reason"]) == ("changed", "traffic", "m-2 answers m")
        # Other rules begin it anew.
        other = shot("a") | {"rules": {"references": 2, "baseline": 40}}
        answer = (await running_store.api.post("/v1/canaries/traffic/shots", json=other)).json()
        assert (answer["verdict"], answer["calls"]) == ("cannot tell", 1)


async def test_what_is_no_shot_is_refused(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        for body in (b"", b"[]", b'{"rules": {}, "what": 1}', b'{"rules": {"effect": "much"}}'):
            is_problem(await running_store.api.post("/v1/canaries/x/shots", content=body), 422, "invalid_request")
        answer: httpx2.Response = await running_store.api.post("/v1/canaries/a%20b/shots", json=shot())
        assert answer.status_code == 422
