"""A run in mode `auto` keeps its good recording, whatever becomes of what it lacks: failed, cut, or killed in the middle."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import pytest_asyncio

from store.generations.build import FLAWED
from store.generations.names import GENERATION_LABEL, GENERATION_OF
from tests.drills.up_processes import RunningUp, bundle, environment, get, kill_process, until, up
from tests.support import wire
from tests.support.api import authorization
from tests.support.service import command
from tests.support.wire import read_request, serving

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

HOST = "tools.takes.example"


@dataclass
class Tool(wire.Upstream):
    """An upstream that counts, and answers as it is told to."""

    asked: list[str] = field(default_factory=list)
    status: int = 200
    cuts: bool = False

    @property
    def config(self) -> str:
        return f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{self.port}"\n'

    async def serve(self, reader: Any, writer: Any) -> None:
        while True:
            head, _ = await read_request(reader)
            path = head.split(b" ", 2)[1].decode()
            self.asked.append(path)
            body = f"{path} {len(self.asked)}".encode()
            writer.write(f"HTTP/1.1 {self.status} So\r\nContent-Length: {len(body) + 100 * self.cuts}\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
            if self.cuts:
                return


@asynccontextmanager
async def tool() -> AsyncIterator[Tool]:
    made = Tool()
    async with serving(made.serve, upstream=made):
        yield made


async def send_requests(processes: RunningUp, run: str, *paths: str) -> list[str]:
    """What an agent is told that asks for these, one after the other."""
    found = []
    async with httpx.AsyncClient(
        timeout=60, proxy=f"http://{run}:@127.0.0.1:{processes.port}", trust_env=False, verify=False
    ) as agent:
        for path in paths:
            try:
                answer = await agent.get(f"http://{HOST}{path}")
            except httpx.TransportError:
                found.append("cut")
            else:
                standing = answer.headers.get("playhead", "unmarked").partition(";")[0]
                found.append(f"{standing} {answer.text if answer.status_code == 200 else answer.status_code}")
    return found


async def send(processes: RunningUp, method: str, path: str, result: Any) -> dict[str, Any]:
    async with httpx2.AsyncClient(
        base_url=f"{processes.api}/v1", headers=authorization(processes.api), trust_env=False, verify=False, timeout=30
    ) as http:
        answer = await http.request(method, path, json=result)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def end_run(processes: RunningUp, run: str, **options: Any) -> dict[str, Any]:
    """The run, after its wrapper has said that it ended."""
    return await send(processes, "PATCH", f"/runs/{run}", {"ended": True, **options})


async def runs(processes: RunningUp, run: str = "") -> set[str]:
    """All runs but those of other tests."""
    found = {run["id"] for run in (await get(processes.api, "/runs"))["items"]}
    return {one for one in found if not re.match(r"r\d\d\b", one) or one.startswith(run)}


@asynccontextmanager
async def start_auto(data: Path, database_url: str, source: Tool) -> AsyncIterator[RunningUp]:
    """An `up` in mode auto with a good recording of run `r`."""
    async with up(data, "--mode", "auto", "--database-url", database_url, config=source.config) as processes:
        assert await send_requests(processes, "r", "/a", "/b") == ["live /a 1", "live /b 2"]
        await end_run(processes, "r")
        yield processes


@dataclass(frozen=True)
class Auto:
    """An `up` in mode auto for many tests, each with a good recording of a run of its own, and with names that begin like it."""

    processes: RunningUp
    source: Tool
    numbers: Iterator[int] = field(default_factory=lambda: count(10))

    async def record(self) -> str:
        """Record, and return the name of the run."""
        self.source.asked.clear()
        self.source.status, self.source.cuts = 200, False
        run = f"r{next(self.numbers)}"
        assert await send_requests(self.processes, run, "/a", "/b") == ["live /a 1", "live /b 2"]
        await end_run(self.processes, run)
        return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def auto(module_data: Path, module_database_url: str) -> AsyncIterator[Auto]:
    words = ("--mode", "auto", "--database-url", module_database_url)
    async with tool() as source, up(module_data, *words, config=source.config) as processes:
        yield Auto(processes, source)
        # It judges what all tests left open.
        await processes.stop()


async def test_what_was_recorded_answers_and_what_was_not_makes_the_next_generation(auto: Auto) -> None:
    processes, r = auto.processes, await auto.record()
    assert await send_requests(processes, r, "/a", "/b", "/c") == ["replayed /a 1", "replayed /b 2", "live /c 3"]
    shape = await end_run(processes, r, succeeded=True)
    assert (shape["labels"], shape["exchanges"]) == ({GENERATION_LABEL: f"{r}:g2"}, 2)
    assert await runs(processes, r) == {r, f"{r}:g2"}
    assert (await get(processes.api, f"/runs/{r}:g2"))["labels"] == {GENERATION_OF: r}
    assert (await get(processes.api, f"/replays/{r}"))["generation"] == {"run": f"{r}:g2", "why": None}
    assert [one.response and one.response.body.data for one in (await bundle(processes.api, f"{r}:g2")).exchanges] == [
        *(b"/a 1", b"/b 2", b"/c 3")
    ]
    assert await send_requests(processes, r, "/c", "/b", "/a") == ["replayed /c 3", "replayed /b 2", "replayed /a 1"]
    assert (await end_run(processes, r, succeeded=True))["labels"] == {GENERATION_LABEL: f"{r}:g2"}
    assert await runs(processes, r) == {r, f"{r}:g2"}


async def test_a_run_that_an_up_was_started_with_has_generations_too(data: Path, database_url: str) -> None:
    async with tool() as source:
        async with start_auto(data, database_url, source):
            pass
        words = ("--mode", "auto", "--replay", "r", "--database-url", database_url)
        async with up(data, *words, config=source.config) as processes:
            assert await send_requests(processes, "whoever", "/a", "/b", "/c") == [
                "replayed /a 1",
                "replayed /b 2",
                "live /c 3",
            ]
            assert (await end_run(processes, "r", succeeded=True))["labels"] == {GENERATION_LABEL: "r:g2"}
            assert await send_requests(processes, "whoever", "/c", "/a") == ["replayed /c 3", "replayed /a 1"]
            assert await runs(processes) == {"r", "r:g2"}


async def test_a_run_that_is_given_a_mode_has_it_from_its_next_request_on(auto: Auto) -> None:
    processes, r = auto.processes, await auto.record()

    async def switch_mode(mode: str | None) -> None:
        assert (await send(processes, "PUT", f"/runs/{r}", {"mode": mode}))["mode"] == mode

    await switch_mode("replay")
    assert await send_requests(processes, r, "/c", "/a") == ["miss 424", "replayed /a 1"]
    await switch_mode("record")
    assert await send_requests(processes, r, "/a") == ["unmarked /a 3"]
    await switch_mode("passthrough")
    assert await send_requests(processes, r, "/b") == ["unmarked /b 4"]
    assert await send_requests(processes, f"{r}-other", "/b") == ["live /b 5"], "other runs go on as they did"
    assert (await send(processes, "GET", f"/runs/{r}/calls?settled=true", None))["settled"]
    assert (await get(processes.api, f"/runs/{r}"))["exchanges"] == 3, (
        "two of the first time, and the one that was recorded"
    )
    await switch_mode(None)
    assert await send_requests(processes, r, "/a", "/d") == ["replayed /a 1", "live /d 6"]


async def test_calls_that_were_not_asked_for_stay_unless_the_agent_is_known_to_have_done_all_it_does(
    auto: Auto,
) -> None:
    processes, r = auto.processes, await auto.record()
    await send_requests(processes, r, "/a", "/c")
    assert (await end_run(processes, r))["labels"] == {GENERATION_LABEL: f"{r}:g2"}
    assert (await get(processes.api, f"/runs/{r}:g2"))["exchanges"] == 3
    await send_requests(processes, r, "/a", "/d")
    assert (await end_run(processes, r, succeeded=True))["labels"] == {GENERATION_LABEL: f"{r}:g3"}
    assert await send_requests(processes, r, "/a", "/d", "/b") == ["replayed /a 1", "replayed /d 4", "live /b 5"]
    shape = await end_run(processes, r, succeeded=False)
    assert shape["labels"] == {GENERATION_LABEL: f"{r}:g3"}
    assert (await get(processes.api, f"/replays/{r}"))["generation"]["why"] == "the agent did not succeed"


@pytest.mark.parametrize(("wrong", "why"), [({"status": 503}, "status 503"), ({"cuts": True}, "is incomplete")])
async def test_a_recording_that_failed_or_was_cut_replaces_nothing_and_is_kept_as_evidence(
    auto: Auto, wrong: dict[str, Any], why: str
) -> None:
    processes, source, r = auto.processes, auto.source, await auto.record()
    for name, value in wrong.items():
        setattr(source, name, value)
    assert (await send_requests(processes, r, "/a", "/b", "/c"))[:2] == ["replayed /a 1", "replayed /b 2"]
    shape = await end_run(processes, r, succeeded=True)
    assert (shape["labels"], shape["exchanges"]) == ({}, 2)
    generation = (await get(processes.api, f"/replays/{r}"))["generation"]
    assert generation["run"] is None
    assert why in generation["why"]
    (candidate,) = await runs(processes, r) - {r}
    assert (await get(processes.api, f"/runs/{candidate}"))["labels"] == {GENERATION_OF: r, FLAWED: generation["why"]}
    source.status, source.cuts = 200, False
    assert await send_requests(processes, r, "/a", "/b", "/c") == ["replayed /a 1", "replayed /b 2", "live /c 4"]
    assert (await end_run(processes, r))["labels"] == {GENERATION_LABEL: f"{r}:g2"}


async def test_a_first_recording_that_failed_does_not_answer_for_ever(auto: Auto) -> None:
    processes, source, r = auto.processes, auto.source, await auto.record()
    source.status = 500
    assert await send_requests(processes, f"{r}-new", "/x") == ["live 500"]
    assert "status 500" in (await end_run(processes, f"{r}-new"))["labels"][FLAWED]
    source.status = 200
    assert await send_requests(processes, f"{r}-new", "/x") == ["live /x 4"]
    assert (await end_run(processes, f"{r}-new"))["labels"] == {GENERATION_LABEL: f"{r}-new:g2"}
    assert await send_requests(processes, f"{r}-new", "/x") == ["replayed /x 4"]


async def test_a_recorded_command_says_what_became_of_what_it_lacked(auto: Auto) -> None:
    processes, source, r = auto.processes, auto.source, await auto.record()
    first = await record_requests(processes, f"{r}-mine", "/x")
    assert f"recorded {r}-mine: 1 call" in first
    assert "nothing was missing" in await record_requests(processes, f"{r}-mine", "/x")
    assert f"generation {r}-mine:g2 is replayed from now on" in await record_requests(
        processes, f"{r}-mine", "/x", "/y"
    )
    source.status = 500
    said = await record_requests(processes, f"{r}-mine", "/x", "/z")
    assert f"the agent did not succeed; what went out is kept as run {r}-mine:live-" in said


async def record_requests(processes: RunningUp, run: str, *paths: str) -> str:
    """What `playhead record` says of an agent that asks for these."""
    agent = "import sys, urllib.request\nfor url in sys.argv[1:]: urllib.request.urlopen(url).read()"
    line = command("record", "--data", str(processes.data), "--run", run, "--", sys.executable, "-c", agent)
    process = await asyncio.create_subprocess_exec(
        *(*line, *(f"http://{HOST}{path}" for path in paths)), stderr=asyncio.subprocess.PIPE, env=environment()
    )
    _, err = await process.communicate()
    return err.decode()


async def test_equal_calls_of_a_first_recording_all_go_out(auto: Auto) -> None:
    processes, r = auto.processes, await auto.record()
    assert await send_requests(processes, f"{r}-new", "/x", "/x", "/x") == ["live /x 3", "live /x 4", "live /x 5"]
    await end_run(processes, f"{r}-new")
    assert await send_requests(processes, f"{r}-new", "/x", "/x", "/x") == [
        "replayed /x 3",
        "replayed /x 4",
        "replayed /x 5",
    ]


async def test_a_worker_killed_in_the_middle_leaves_the_run_as_it_was(data: Path, database_url: str) -> None:
    async with tool() as source, start_auto(data, database_url, source) as processes:
        assert await send_requests(processes, "r", "/a", "/c") == ["replayed /a 1", "live /c 3"]
        await kill_process(processes.workers[0])

        async def again() -> list[str] | None:
            found = await send_requests(processes, "r", "/b")
            return None if found == ["cut"] else found

        # Nobody knows any more what was answered.
        assert await until(again) == ["miss 424"]
        assert (await end_run(processes, "r", succeeded=True))["labels"] == {}
        assert "died before the session ended" in (await get(processes.api, "/replays/r"))["generation"]["why"]
        assert await send_requests(processes, "r", "/a", "/b", "/c") == ["replayed /a 1", "replayed /b 2", "live /c 4"]
        assert (await end_run(processes, "r"))["labels"] == {GENERATION_LABEL: "r:g2"}


async def test_an_up_that_is_stopped_lets_count_what_was_whole(data: Path, database_url: str) -> None:
    flags = ("--mode", "auto", "--database-url", database_url)
    async with tool() as source:
        async with start_auto(data, database_url, source) as processes:
            assert await send_requests(processes, "r", "/a", "/c") == ["replayed /a 1", "live /c 3"]
        async with up(data, *flags, config=source.config) as processes:
            assert (await get(processes.api, "/runs/r"))["labels"] == {GENERATION_LABEL: "r:g2"}
            assert await send_requests(processes, "r", "/c", "/b") == ["replayed /c 3", "replayed /b 2"]


async def test_a_replay_over_rest_is_strict_where_runs_are_recorded(auto: Auto) -> None:
    processes, r = auto.processes, await auto.record()
    await send(processes, "POST", "/replays", {"run": r, "id": f"{r}-strict"})
    assert await send_requests(processes, f"{r}-strict", "/a", "/c") == ["replayed /a 1", "miss 424"]
    assert await send_requests(processes, f"{r}-other", "/c") == ["live /c 3"]
    wanted = {"on_miss": "live", "after_last": "cycle", "allow_unused": True}
    await send(processes, "POST", "/replays", {"run": r, "id": f"{r}-open", **wanted})
    assert await send_requests(processes, f"{r}-open", "/a", "/a", "/c") == [
        "replayed /a 1",
        "replayed /a 1",
        "live /c 4",
    ]
    await send(processes, "POST", "/replays", {"run": r, "id": f"{r}-host", "allowed_hosts": ["*.takes.example"]})
    assert await send_requests(processes, f"{r}-host", "/a") == ["live /a 5"]

    async def fetch_report() -> dict[str, Any] | None:
        found: dict[str, Any] = await get(processes.api, f"/replays/{r}-host")
        return found if found.get("allowed") else None

    assert (await until(fetch_report))["missed"] == 0
    assert (await get(processes.api, f"/runs/{r}"))["labels"] == {}


async def test_a_replay_over_rest_records_misses_on_request(auto: Auto) -> None:
    processes, r = auto.processes, await auto.record()
    await send(processes, "POST", "/replays", {"run": r, "id": f"{r}-mine", "on_miss": "record"})
    assert await send_requests(processes, f"{r}-mine", "/a", "/c") == ["replayed /a 1", "live /c 3"]
    report = await send(processes, "POST", f"/replays/{r}-mine/end", {"succeeded": True})
    assert report["generation"] == {"run": f"{r}:g2", "why": None}
    assert [one.request.url[-2:] for one in (await bundle(processes.api, f"{r}:g2")).exchanges] == ["/a", "/c"]
    assert await runs(processes, r) == {r, f"{r}:g2"}
