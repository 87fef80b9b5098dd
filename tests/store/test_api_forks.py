"""Forks and edited replays over REST: what the store server checks and stores."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Body, Exchange
from replay.requested_options import rejection_reason
from store.database.connection import Database
from store.generations.fork_point import last_complete_step
from tests.store.exchanges import conversation
from tests.store.running_store import PROFILES, RUN, import_bundle, is_problem, open_store


async def test_a_fork_is_a_run_with_a_parent_and_a_report(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, mode="auto", follows=False) as running_store:
        await import_bundle(running_store)
        wanted = {"from": 1, "id": "what-if", "labels": {"a": "b"}, "allow": ["POST tools.example.com"]}
        answer = await running_store.api.post(f"/v1/runs/{RUN}/forks", json=wanted)
        assert answer.status_code == 201, answer.text
        report = answer.json()
        assert (report["id"], report["run"], report["fork"]["forked_at"]) == ("what-if", RUN, 1)
        assert (await running_store.api.get(answer.headers["location"])).json() == report
        run = (await running_store.api.get("/v1/runs/what-if")).json()
        assert (run["parent"], run["forked_at"], run["labels"], run["calls"]) == (RUN, 1, {"a": "b"}, 0)
        is_problem(await running_store.api.post(f"/v1/runs/{RUN}/forks", json=wanted), 409, "run_exists")


REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"from": 99}, "no_such_step", "cannot be forked at step 99"),
    ({"from": 1, "effects": ["nothing"]}, "bad_effects", "use serve-recorded, block, allow"),
    ({"from": 1, "allow": ["a b c"]}, "bad_effects", "write HOST or"),
    ({"from": 1, "overrides": [{"step": 2, "text": "x"}]}, "bad_override", "there is no step 2: 1 steps"),
    ({"from": 1, "overrides": [{"step": 1, "tex": "x"}]}, "bad_override", "use step, match, answer, text"),
    ({"from": -1}, "invalid_request", ""),
)


async def test_what_cannot_be_is_refused(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, mode="auto", follows=False) as running_store:
        await import_bundle(running_store)
        for wanted, name, words in REFUSED:
            problem = is_problem(
                await running_store.api.post(f"/v1/runs/{RUN}/forks", json={**wanted, "id": "alone"}), 422, name
            )
            assert words in problem["detail"], wanted
        nowhere = {"from": 1, "id": "alone", "start": True}
        is_problem(await running_store.api.post(f"/v1/runs/{RUN}/forks", json=nowhere), 409, "no_fork_agent")
        assert (await running_store.api.get("/v1/runs/alone")).status_code == 404


async def test_forks_are_made_only_where_workers_may_go_live(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, mode="replay", follows=False) as running_store:
        await import_bundle(running_store)
        answer = await running_store.api.post(f"/v1/runs/{RUN}/forks", json={"from": 1})
        is_problem(answer, 409, "not_forking")
        is_problem(await running_store.api.post("/v1/runs/nobody/forks", json={"from": 1}), 404, "unknown_run")


async def test_a_replay_may_be_made_with_overrides(tmp_path: Path, database: Database) -> None:
    async with open_store(
        tmp_path / "spool", database, mode="auto", unfit=rejection_reason, follows=False
    ) as running_store:
        await import_bundle(running_store)
        overrides = [{"step": 1, "text": "another"}]
        answer = await running_store.api.post("/v1/replays", json={"run": RUN, "overrides": overrides})
        assert answer.status_code == 201
        assert answer.json()["requested"]["overrides"] == overrides
        wrong = await running_store.api.post("/v1/replays", json={"run": RUN, "overrides": [{"step": 99, "text": "x"}]})
        is_problem(wrong, 422, "bad_override")
        for where, wanted in (("replays", {"run": RUN}), (f"runs/{RUN}/forks", {"from": 2})):
            nowhere = {**wanted, "id": "edited", "overrides": [{"match": {"model": "nobody", "nth": 1}, "text": "x"}]}
            problem = is_problem(await running_store.api.post(f"/v1/{where}", json=nowhere), 422, "bad_override")
            assert "0 recorded calls fit" in problem["detail"], "it is told before anybody waits for an answer"
        assert (await running_store.api.get("/v1/replays/edited")).status_code == 404


def test_a_run_is_left_after_the_last_answer_that_is_whole() -> None:
    def steps(*run: Exchange) -> int:
        return last_complete_step(run, partial(derive_call, profiles=PROFILES))

    whole = conversation(3)
    gone = replace(whole[2], outcome="client_closed")
    assert gone.response is not None
    cut = replace(gone, response=replace(gone.response, body=Body(data=b"{", size=1)))
    assert steps(*whole) == 3
    assert steps(*whole[:2], gone) == 2, "nobody has an answer of JSON before HTTP says that it is whole"
    assert steps(*whole[:2], cut) == 2
    assert steps(*whole[:2], replace(cut, response=None)) == 2
    assert steps(cut, whole[0]) == 2
    assert steps() == 0


async def test_a_configured_agent_runs_a_fork(tmp_path: Path, database: Database) -> None:
    """The URL is that of the configuration, whatever the request says; a redirect is an answer, and not followed."""
    asked: list[bytes] = []

    async def answer_agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        asked.append(head + await reader.readexactly(size))
        status = b"202 Accepted" if len(asked) == 1 else b"302 Found\r\nlocation: http://127.0.0.1:9/"
        writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_agent, "127.0.0.1", 0) as agent:
        url = f"http://127.0.0.1:{agent.sockets[0].getsockname()[1]}/start"
        async with open_store(
            tmp_path / "spool", database, mode="auto", fork_agent=url, follows=False
        ) as running_store:
            await import_bundle(running_store)
            for name, status, problem in (
                ("first", 202, None),
                ("second", 302, "the agent refused with status 302"),
            ):
                made = await running_store.api.post(
                    f"/v1/runs/{RUN}/forks", json={"from": 1, "id": name, "start": True}
                )
                assert (made.status_code, made.json()["agent"]) == (201, {"status": status, "problem": problem})
            other = await running_store.api.post(
                f"/v1/runs/{RUN}/forks", json={"from": 1, "start": True, "agent": "http://x"}
            )
            is_problem(other, 422, "invalid_request")
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /start ")
    assert b"authorization" not in head.lower()
    assert json.loads(body) == {"fork": "first", "parent": RUN, "from": 1, "project": "default"}
    assert len(asked) == 2
