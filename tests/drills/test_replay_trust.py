"""A report that says right means it: killed workers, replays at once, impatient clients, clients that ask twice."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from calls.model import Body, Chunk, Exchange, Request, Response
from store.bundle.bundle import Bundle, bundle_lines, load_bundle
from tests.drills.up_processes import RunningUp, environment, get, kill_process, until, up
from tests.drills.upstream import HOST, upstream
from tests.replay.strategies import SECOND, exchange, ok, run_of
from tests.support.api import authorization
from tests.support.service import command

URL = "http://tools.example"


def step(path: str, answer: bytes, number: int, status: int = 200) -> Exchange:
    """A recorded GET."""
    head = (("Content-Type", "text/plain"), ("Content-Length", str(len(answer))))
    return exchange(Request(method="GET", url=f"{URL}{path}"), ok(answer, headers=head, status=status), number=number)


def write_bundle(path: Path, *steps: Exchange) -> Path:
    """A bundle of these."""
    path.write_bytes(b"".join(bundle_lines(run_of(*steps))))
    return path


def client(processes: RunningUp, run: str = "run-1") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=60, proxy=f"http://{run}:@127.0.0.1:{processes.port}", trust_env=False, verify=False
    )


async def report(processes: RunningUp, replay: str, **wanted: Any) -> dict[str, Any]:
    """The report of a replay, as soon as the store server has one that says so."""

    async def fetch_report() -> dict[str, Any] | None:
        found = await get(processes.api, f"/replays/{replay}")
        return found if found and all(found.get(name) == value for name, value in wanted.items()) else None

    return await until(fetch_report)


async def run_replay(
    data: Path, recording: Path, *line: str, flags: Sequence[str] = ()
) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was said, and the report of a `playhead replay`."""
    place = data.with_suffix(".report")
    process = await asyncio.create_subprocess_exec(
        *command("replay", "--data", str(data), "--report", str(place), *flags, str(recording), "--", *line),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    out, err = await process.communicate()
    answer = json.loads(place.read_bytes() or b"{}") if place.exists() else {}
    return process.returncode or 0, (out + err).decode(), answer


@pytest.mark.slow
async def test_a_worker_killed_in_the_middle_answers_nothing_more_and_the_report_is_not_right(
    data: Path, database_url: str
) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1), step("/b", b"B", 2), step("/b", b"B2", 3))
    flags = ("--database-url", database_url, "--mode", "replay", "--replay", str(recording))
    async with up(data, *flags) as processes:
        async with client(processes) as agent:
            assert (await agent.get(f"{URL}/a")).text == "A"
            assert (await agent.get(f"{URL}/b")).text == "B"
        await kill_process(processes.workers[0])

        async def again() -> httpx.Response | None:
            try:
                async with client(processes) as agent:
                    return await agent.get(f"{URL}/b")
            except httpx.TransportError:
                return None

        # It would be the first answer to /b again: nobody knows any more that it was given.
        refused = await until(again)
        assert (refused.status_code, refused.json()["playhead"]["reason"]) == (424, "interrupted")
        found = await report(processes, "run-1", interrupted=True, missed=1)
        assert found["verdict"] == "diverged"


@pytest.mark.slow
async def test_a_worker_killed_after_its_last_answer_leaves_no_right_report(data: Path, database_url: str) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1))
    flags = ("--database-url", database_url, "--mode", "replay", "--replay", str(recording))
    async with up(data, *flags) as processes:
        async with client(processes) as agent:
            await agent.get(f"{URL}/a")
        assert (await report(processes, "run-1", served=1))["verdict"] == "right"
        await kill_process(processes.workers[0])
        assert (await report(processes, "run-1", interrupted=True))["verdict"] == "unknown"
    async with up(data, *flags) as processes:
        async with client(processes) as agent:
            assert (await agent.get(f"{URL}/a")).text == "A"
        assert (await report(processes, "run-1", interrupted=False, served=1))["verdict"] == "right"


KILLER = """
import os, signal, urllib.request
assert urllib.request.urlopen("http://tools.example/a").read() == b"A"
parent = os.getppid()
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        name, _, stat = open(f"/proc/{pid}/stat").read().rpartition(")")
    except OSError:
        continue
    if int(stat.split()[1]) == parent and int(pid) != os.getpid() and name.endswith("(playhead-worker"):
        os.kill(int(pid), signal.SIGKILL)
try:
    urllib.request.urlopen("http://tools.example/not-recorded")
except OSError:
    pass
"""


REPORT_WRITTEN = """
import pathlib, sys, time
while not any(b'"served": 1' in file.read_bytes() for file in pathlib.Path(sys.argv[1]).glob("*.json")):
    time.sleep(0.05)
"""


async def test_a_command_whose_proxy_died_has_not_been_replayed(data: Path) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1))
    # The report has to be written once before the worker dies, else there is none.
    patient = KILLER.replace("parent =", REPORT_WRITTEN + "parent =")
    code, said, report = await run_replay(data, recording, sys.executable, "-c", patient, str(data / "replays"))
    assert code == 3
    assert "was interrupted" in said
    assert (report["verdict"], report["interrupted"], report["served"]) == ("unknown", True, 1)


ASKER = """
import concurrent.futures, sys, urllib.request
def ask(path):
    try:
        return urllib.request.urlopen("http://tools.example" + path).read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sorted(pool.map(ask, sys.argv[1:])))
"""


async def test_one_call_asked_twice_at_once_is_answered_as_often_as_it_was_recorded(data: Path) -> None:
    once = write_bundle(data.with_suffix(".once"), step("/a", b"A", 1))
    twice = write_bundle(data.with_suffix(".twice"), step("/a", b"A1", 1), step("/a", b"A2", 2))
    code, said, report = await run_replay(data, once, sys.executable, "-c", ASKER, "/a", "/a")
    assert (code, report["served"], report["missed"]) == (1, 1, 1)
    assert "['424', 'A']" in said
    code, said, report = await run_replay(data, twice, sys.executable, "-c", ASKER, "/a", "/a")
    assert (code, report["verdict"]) == (0, "right")
    assert "['A1', 'A2']" in said


async def test_a_thousand_calls_by_eight_at_once_are_each_answered_once(data: Path) -> None:
    steps = [step(f"/{number % 100}", str(number).encode(), number) for number in range(1, 1001)]
    recording = write_bundle(data.with_suffix(".jsonl"), *steps)
    paths = [f"/{number % 100}" for number in range(1, 1001)]
    code, said, report = await run_replay(data, recording, sys.executable, "-c", ASKER, *paths)
    assert (code, report["served"], report["strict"], report["unused"], report["verdict"]) == (
        0,
        1000,
        1000,
        0,
        "right",
    )
    assert set(said.partition("[")[2].partition("]")[0].split(", ")) == {f"'{number}'" for number in range(1, 1001)}


async def test_thirty_calls_of_an_agent_take_less_than_a_second_in_replay(data: Path) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), *(step(f"/{n}", b"x" * 2000, n) for n in range(1, 31)))
    timed = f"""
import time, urllib.request
urllib.request.urlopen("{URL}/1").read()
spans = []
for n in range(2, 31):
    began = time.perf_counter()
    urllib.request.urlopen(f"{URL}/{{n}}").read()
    spans.append(time.perf_counter() - began)
# A pause of the proxy's would be in each of them; those of a busy machine are in some.
print("took", 30 * sorted(spans)[7])
"""
    code, said, _ = await run_replay(data, recording, sys.executable, "-c", timed)
    assert code == 0, said
    assert float(said.partition("took ")[2].split()[0]) < 1


@pytest.mark.slow
async def test_two_replays_of_one_run_at_once_do_not_share_a_position(data: Path, database_url: str) -> None:
    run = run_of(step("/a", b"A1", 1), step("/a", b"A2", 2))
    async with up(data, "--database-url", database_url, "--mode", "replay") as processes:
        async with httpx2.AsyncClient(
            base_url=f"{processes.api}/v1", headers=authorization(processes.api), trust_env=False, verify=False
        ) as api:
            (await api.post("/import", content=b"".join(bundle_lines(run)))).raise_for_status()
            ids = [(await api.post("/replays", json={"run": "run-1"})).json()["id"] for _ in range(2)]
        async with client(processes, ids[0]) as one, client(processes, ids[1]) as other:
            answer = [(await agent.get(f"{URL}/a")).text for agent in (one, other, one, other)]
        assert answer == ["A1", "A1", "A2", "A2"]
        for replay in ids:
            assert (await report(processes, replay, served=2))["verdict"] == "right"


async def test_two_commands_that_replay_one_bundle_at_once_are_both_right(data: Path) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A1", 1), step("/a", b"A2", 2))
    line = command("replay", "--data", str(data), str(recording), "--", sys.executable, "-c", ASKER, "/a", "/a")
    processes = [
        await asyncio.create_subprocess_exec(*line, env=environment(), stderr=asyncio.subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [await process.wait() for process in processes] == [0, 0]


IMPATIENT = f"""
import urllib.request
assert urllib.request.urlopen("{URL}/slow").read1() == b"first"
"""


async def test_a_client_that_leaves_before_the_end_makes_no_right_replay(data: Path) -> None:
    asked = Request(method="GET", url=f"{URL}/slow")
    chunks = (Chunk(SECOND // 1000, 0, 5), Chunk(40 * SECOND, 5, 6))
    answer = Response(status=200, body=Body(data=b"first-later", chunks=chunks, size=11))
    recording = write_bundle(data.with_suffix(".jsonl"), exchange(asked, answer, ended_at=60 * SECOND))
    code, said, found = await run_replay(data, recording, sys.executable, "-c", IMPATIENT, flags=("--pace", "recorded"))
    assert (code, found["served"], found["first_divergence"]["reason"]) == (1, 0, "client_left"), said


RETRYING = f"""
import urllib.request, urllib.error
for attempt in range(3):
    try:
        print(urllib.request.urlopen("{URL}/a").read())
        break
    except urllib.error.HTTPError as error:
        assert error.code == 429
"""


async def test_a_client_that_tries_again_gets_what_its_second_try_got(data: Path) -> None:
    busy = step("/a", b"busy", 1, status=429)
    code, _, report = await run_replay(
        data, write_bundle(data.with_suffix(".ok"), busy, step("/a", b"A", 2)), sys.executable, "-c", RETRYING
    )
    assert (code, report["served"]) == (0, 2)
    code, _, report = await run_replay(
        data, write_bundle(data.with_suffix(".one"), busy), sys.executable, "-c", RETRYING
    )
    assert (code, report["served"], report["missed"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("line", "code"),
    [(["true"], 1), (["false"], 1), (["sh", "-c", "exit 7"], 7), (["no-such-command-at-all"], 125)],
)
async def test_the_command_has_the_first_word_in_the_exit_code(data: Path, line: list[str], code: int) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1))
    assert (await run_replay(data, recording, *line))[0] == code


async def test_no_verdict_without_requests_and_recorded_answers(data: Path) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1))
    assert (await run_replay(data, recording, "true", flags=("--allow-unused",)))[0] == 3


RECORDER = f"""
import sys, urllib.request
for path in sys.argv[1:]:
    print(urllib.request.urlopen("http://{HOST}" + path).read()[:8])
"""


@pytest.mark.slow
async def test_what_a_bundle_lacks_is_recorded_and_then_replayed(data: Path, database_url: str) -> None:
    recording = data.with_suffix(".jsonl")
    async with upstream() as source:
        data.with_suffix(".toml").write_text(source.config)
        config = ("--config", str(data.with_suffix(".toml")), "--database-url", database_url)
        agent = (sys.executable, "-c", RECORDER)
        old = exchange(Request(method="GET", url=f"http://{HOST}/whole?size=10"), ok(b"recorded!!"), number=1)
        write_bundle(recording, old, step("/gone", b"G", 2))
        before = recording.read_bytes()
        code, said, _ = await run_replay(
            data, recording, *agent, "/whole?size=10", "/short?size=20", flags=(*config, "--on-miss", "record")
        )
        assert code != 0, said
        assert "nothing was replaced" in said
        assert recording.read_bytes() == before
        line = (*agent, "/whole?size=10", "/whole?size=30")
        code, said, report = await run_replay(data, recording, *line, flags=(*config, "--on-miss", "record"))
        assert (code, report["live"], report["served"]) == (0, 1, 1), said
        assert "1 new call beside 1 that answered, without 1 call that the command did not make" in said
    made: Bundle = await asyncio.to_thread(load_bundle, recording)
    assert [each.request.url.partition("?")[2] for each in made.exchanges] == ["size=10", "size=30"]
    code, said, report = await run_replay(data, recording, *line)
    assert (code, report["verdict"], report["live"]) == (0, "right", 0), said


async def test_a_replay_that_is_killed_says_so_in_its_report(data: Path) -> None:
    recording = write_bundle(data.with_suffix(".jsonl"), step("/a", b"A", 1), step("/b", b"B", 2))
    line = "import urllib.request; print(urllib.request.urlopen('http://tools.example/a').read(), flush=True); input()"
    process = await asyncio.create_subprocess_exec(
        *command("replay", "--data", str(data), str(recording), "--", sys.executable, "-c", line),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"b'A'\n"
    process.kill()
    await process.communicate()

    async def read_report() -> dict[str, Any] | None:
        found = [json.loads(path.read_bytes()) for path in (data / "replays").glob("replay-*.json")]
        return found[0] if found and found[0]["interrupted"] else None

    report = await until(read_report)
    assert (report["verdict"], report["served"]) == ("unknown", 1)
