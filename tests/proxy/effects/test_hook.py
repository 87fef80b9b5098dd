"""The hook in real interpreters: what it observes, and that a replay gets the same, from the worker's own channel."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from calls.effects.items import encode_items, read_items
from calls.events import EffectBatch
from calls.overrides.overrides import read_overrides
from calls.redaction.redactor import Redactor
from proxy.capture.control_path import effects_path
from proxy.effects.channel import EffectsChannel
from proxy.effects.launch import HOOK, EffectsOptions, effects_environment
from proxy.recording.recorder import Recorder
from proxy.wire.access import Access
from replay.effects import EffectsReplay
from replay.replays import Replays

REDACTOR = Redactor(key=b"k" * 32)

ALL_KINDS = """
import configparser, datetime, getpass, glob, json, os, pathlib, random, secrets, subprocess, sys, time, uuid
print(time.time(), time.time_ns(), time.monotonic(), time.perf_counter(), time.strftime("%X"), time.localtime())
print(datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), datetime.datetime.today(), datetime.date.today())
print(random.random(), random.choice(range(99)), random.sample(range(99), 5), random.gauss(0, 1), random.Random().random())
print(secrets.token_hex(8), secrets.randbelow(10**9), secrets.choice(range(99)), os.urandom(8), random.SystemRandom().random())
print(uuid.uuid1(), uuid.uuid4())
print(os.environ.get("REGION"), "REGION" in os.environ, os.getenv("NOWHERE", "none"), hash("text"))
print(open("notes.txt").read(), pathlib.Path("notes.txt").read_bytes(), [*open("notes.txt")], os.listdir("."))
try:
    open("missing.txt")
except FileNotFoundError as error:
    print(error, error.errno, error.filename)
print(subprocess.run(["date", "+%N"], capture_output=True).stdout, subprocess.check_output("echo $$", shell=True))
print(input("name? "), sys.stdin.readline())
print(*pathlib.Path("d").iterdir(), *glob.glob("d/*"), *pathlib.Path("d").rglob("*.txt"), *os.walk("d"))
print([(one.name, one.path, one.is_dir(), one.is_file(), one.is_symlink()) for one in os.scandir("d")], next(sys.stdin))
parser = configparser.ConfigParser()
print(parser.read("d/settings.ini"), parser["a"]["b"], json.load(sys.stdin))
"""


class Worker:
    """The channel of a worker that records into memory, or replays what it recorded."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.batches: list[EffectBatch] = []
        self.gaps: list[str] = []
        self.replay: EffectsReplay | None = None
        self.redactor = REDACTOR

    def record_effects(self, run: str, process: str, number: int, count: int, items: bytes) -> None:
        self.batches.append(EffectBatch(run, f"{len(self.batches)}", 0, process, number, count, items))

    def record_gap(self, run: str, reason: str) -> None:
        self.gaps.append(f"{run}: {reason}")

    async def effects_of(self, run: str) -> EffectsReplay | None:
        assert run == "night"
        return self.replay

    @property
    def items(self) -> list[dict[str, Any]]:
        return [item for batch in self.batches for item in read_items(batch.items)]

    def kinds(self) -> set[str]:
        return {item["kind"] for item in self.items}

    @asynccontextmanager
    async def serving(self) -> Any:
        recorder, replays = cast("Recorder", self), cast("Replays", self)
        async with EffectsChannel(Access(), recorder, replays).serve(effects_path(self.place / "w.sock")):
            yield

    async def run(
        self, code: str, *words: str, typed: str = "Ada\nmore\nand more\n{}", changes: Sequence[tuple[str, str]] = ()
    ) -> tuple[str, str]:
        """Run a program with the hook and return what it wrote."""
        (self.place / "program.py").write_text(code)
        base = {"PATH": os.environ["PATH"], "HOME": "/root", "REGION": "eu"} | dict(changes)
        pinned = EffectsOptions(pinned={"PYTHONHASHSEED": "0"})
        environment = effects_environment(base, base, str(self.place / "w.sock"), "night", None, pinned)
        async with self.serving():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *words, "program.py"),
                cwd=self.place,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate(typed.encode())
        return out.decode(), err.decode()

    def begin_replay(self, *overrides: dict[str, Any], is_fork: bool = False) -> EffectsReplay:
        self.replay = EffectsReplay(
            batches=sorted(self.batches, key=lambda one: (one.process, one.number)),
            overrides=read_overrides(overrides),
            goes_live=is_fork,
            is_recorded=is_fork,
        )
        return self.replay


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    (tmp_path / "notes.txt").write_text("the notes\nof today\n")
    return Worker(tmp_path)


async def test_files_in_shared_memory_are_effects_and_devices_are_not(worker: Worker) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:
        shared.write(b"shared")
        shared.flush()
        _, err = await worker.run(
            f"open('/dev/null').read(); open('/proc/self/stat').read(); print(open({shared.name!r}).read())"
        )
        assert err == ""
    recorded = b"".join(batch.items for batch in worker.batches)
    assert shared.name.encode() in recorded
    assert b"/dev/null" not in recorded
    assert b"/proc/self" not in recorded


async def test_every_kind_is_recorded_and_replayed(worker: Worker) -> None:
    directory = worker.place / "d"
    directory.mkdir()
    (directory / "settings.ini").write_text("[a]\nb = 1")
    (directory / "e.txt").symlink_to("settings.ini")
    recorded, err = await worker.run(ALL_KINDS)
    assert err == ""
    assert {"time.time", "datetime.now", "random.random", "os.environ", "open", "input", "os.listdir"} <= worker.kinds()
    assert {"uuid.uuid4", "secrets.token_bytes", "os.urandom", "subprocess.run", "content"} <= worker.kinds()
    replay = worker.begin_replay()
    (worker.place / "notes.txt").unlink()
    directory.rename(worker.place / "other")
    replayed, err = await worker.run(ALL_KINDS, typed="", changes=[("REGION", "us")])
    assert (replayed, err) == (recorded, "")
    report = replay.report()
    assert (report["missed"], report["unused"], report["output_differs"]) == (0, 0, []), report
    assert report["served"] == report["recorded"]


CLIENT = """
import os, sys
sys.path.insert(0, "clients")
import playhead
playhead.read("notes.txt")
print(open(os.environ["PLAYHEAD_API_TOKEN_FILE"]).read(), open("other.txt").read())
"""


async def test_no_recording_has_keys_of_playhead_or_what_its_client_reads(worker: Worker) -> None:
    """The client reads the token of the API, also where it is not installed."""
    keys, client = worker.place / "keys", worker.place / "clients" / "playhead"
    keys.mkdir()
    client.mkdir(parents=True)
    (keys / "api.token").write_text("a-token-of-the-api")
    (worker.place / "other.txt").write_text("other")
    (client / "__init__.py").write_text(
        "def read(file):\n    with open(file) as opened:\n        return opened.read()\n"
    )
    changes = [("PLAYHEAD_API_TOKEN_FILE", str(keys / "api.token"))]
    assert await worker.run(CLIENT, changes=changes) == ("a-token-of-the-api other\n", "")
    items = b"".join(batch.items for batch in worker.batches)
    assert b"other.txt" in items
    for secret in (b"a-token", b"api.token", b"the notes"):
        assert secret not in items, secret


WHAT_IF = """
import datetime, os, random, subprocess, sys, time, uuid
last = time.time()
print(datetime.datetime.now(datetime.timezone.utc).isoformat()[:16], time.time() - last < 60, time.monotonic() < 99)
print(open("notes.txt").read(), os.listdir("."), [one.name for one in os.scandir(".")], os.environ.get("REGION"), os.environ.get("ZONE"), os.getenv("ZONE"))
print(subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout, input("sure? "), sys.stdin.readline())
print(random.random() == random.random(), uuid.uuid4(), random.Random().random(), os.urandom(4), random.getrandbits(8))
"""

OTHER: list[dict[str, Any]] = [
    {"effect": "clock", "value": "2028-02-29T12:00:00Z"},
    {"effect": "monotonic", "value": "12.5"},
    {"effect": "file:./notes.txt", "value": "other notes"},
    {"effect": "listing:.", "value": "b,a"},
    {"effect": "env:REGION", "value": "us"},
    {"effect": "env:TZ", "value": "UTC"},
    {"effect": "env:ZONE", "nth": 2, "value": "z"},
    {"effect": "input", "value": "no"},
    {"effect": "run:sh -c echo $$", "value": "done"},
    {"effect": "random", "value": 0.5},
    {"effect": "uuid", "value": "01932f4e-0000-7000-8000-000000000001"},
    {"effect": "bytes", "value": "00ff"},
]


async def test_every_kind_has_an_override_and_a_fork_records_what_the_program_got(worker: Worker) -> None:
    await worker.run(WHAT_IF)
    recorded = list(worker.batches)
    replay = worker.begin_replay(*OTHER)
    changed, err = await worker.run(WHAT_IF, typed="")
    assert err == ""
    lines = changed.splitlines()
    assert lines[:3] == [
        "2028-02-29T12:00 True True",
        "other notes ['b', 'a'] ['b', 'a'] us None z",
        "sure? done no no",
    ]
    assert lines[4].startswith("True 01932f4e-0000-7000-8000-000000000001 ")
    assert r"b'\x00\xff\x00\xff'" in lines[4]
    report = replay.report_with_overrides({"verdict": "right", **replay.report()})
    assert [one["answered"] > 0 for one in cast("list[Any]", report["overrides"])] == [True] * len(OTHER)
    assert (report["missed"], report["overrides_idle"], worker.batches) == (0, 0, recorded)

    worker.begin_replay(*OTHER, {"effect": "env:NOBODY", "value": "x"}, is_fork=True)
    worker.batches = []
    forked, err = await worker.run(WHAT_IF + "print(os.environ.get('NEW'))\n", typed="", changes=[("NEW", "n")])
    assert (forked, err) == (changed + "n\n", "")
    idle = worker.replay.report_with_overrides({"verdict": "right"}) if worker.replay else {}
    assert (idle["overrides_idle"], idle["verdict"]) == (1, "diverged")
    worker.begin_replay()
    assert (await worker.run(WHAT_IF + "print(os.environ.get('NEW'))\n", typed=""))[0] == forked


async def test_a_seed_decides_what_is_drawn_in_each_task(worker: Worker) -> None:
    await worker.run(WHAT_IF)
    drawn = []
    for seed in (7, 7, 8):
        worker.begin_replay({"effect": "seed", "value": seed})
        drawn.append((await worker.run(WHAT_IF, typed=""))[0].splitlines()[-1])
    assert (drawn[0] == drawn[1], drawn[0] == drawn[2]) == (True, False)


async def test_what_was_not_recorded_is_a_miss_with_its_line_and_the_nearest(worker: Worker) -> None:
    await worker.run('import os\nos.environ.get("REGION")\n')
    replay = worker.begin_replay()
    await worker.run('import os\n\nos.environ.get("REGION")\nos.environ.get("ZONE")\nprint(1)\n')
    (miss,) = cast("list[dict[str, str]]", replay.report()["misses"])
    assert (miss["kind"], miss["at"]) == ('os.environ {"name": "ZONE"}', "program.py:4")
    assert "program.py:2" in miss["nearest"]
    assert "REGION" in miss["nearest"]
    assert replay.report()["output_differs"] == ["0"]


async def test_many_readings_of_a_clock_are_a_few_batches(worker: Worker) -> None:
    """More than a batch may have, and than the worker takes at once."""
    code = "import time\nlast = [time.time() for _ in range(250_000)]\nprint(sum(last))\n"
    recorded, _ = await worker.run(code)
    assert sum(batch.count for batch in worker.batches) == 250_000
    assert sum(len(batch.items) for batch in worker.batches) < 2_000_000
    worker.begin_replay()
    assert (await worker.run(code))[0] == recorded


BRANCHES = """
import asyncio, random, time, uuid
async def branch(n):
    found = []
    for turn in range(3):
        await asyncio.sleep(random.SystemRandom().random() * SPREAD)
        found.append((uuid.uuid4(), time.time(), random.random(), await asyncio.to_thread(uuid.uuid4)))
    return found
async def main():
    for found in await asyncio.gather(*[branch(n) for n in range(20)]):
        print(found)
SPREAD = 0.01
asyncio.run(main())
"""


async def test_tasks_get_their_own_effects_in_whatever_order_they_run(worker: Worker) -> None:
    recorded, _ = await worker.run(BRANCHES)
    replay = worker.begin_replay()
    assert len({item["task"] for item in worker.items if item["kind"] == "time.time"}) == 20
    for spread in ("0.02", "0.001", "0.0"):
        replayed, _ = await worker.run(BRANCHES.replace("SPREAD = 0.01", f"SPREAD = {spread}"))
        assert replayed == recorded
        assert (replay.report()["missed"], replay.report()["unused"]) == (0, 0)


RACES = """
import asyncio, concurrent.futures, os, threading, uuid

def pause():
    return os.getrandom(1)[0] / 255 * SPREAD

async def branch(n):
    await asyncio.sleep(pause())
    return n

def work(n):
    threading.Event().wait(pause())
    return n

async def race(n):
    racers = {asyncio.create_task(branch(f"{n}{letter}")) for letter in "abc"}
    done, others = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for one in others:
        one.cancel()
    # uuid4 is asked for by what came first.
    return [str(one.result()) for one in done], await asyncio.gather(*others, return_exceptions=True), uuid.uuid4()

async def wait_twice():
    slow = [asyncio.create_task(asyncio.sleep(0.05, n)) for n in range(3)]
    try:
        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        return [one.result() for one in (await asyncio.wait(slow, timeout=9))[0]]

async def main():
    for found in asyncio.as_completed([race(n) for n in range(20)]):
        print(*await found)
    try:
        for found in asyncio.as_completed([branch(n) for n in range(20)], timeout=0.01):
            print(await found)
    except asyncio.TimeoutError:
        print("late")
    found = asyncio.as_completed([branch(n) for n in range(20)])
    print([await one async for one in found] if hasattr(found, "__aiter__") else [await one for one in found])
    for found in asyncio.as_completed([asyncio.get_running_loop().run_in_executor(None, work, n) for n in range(5)]):
        print(await found)
    waiting = asyncio.create_task(wait_twice())
    await asyncio.sleep(0.001)
    waiting.cancel()
    print(await waiting)
    if hasattr(asyncio, "TaskGroup"):
        await fail_together()

async def fail_together():
    async def fail():
        await asyncio.sleep(SPREAD)
        raise ValueError

    async def go_on():
        await asyncio.sleep(0.01)
        print(uuid.uuid4())
        await asyncio.sleep(9)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(go_on())
            group.create_task(fail())
    except Exception as error:
        print(error)

SPREAD = 0.02
asyncio.run(main())
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    numbers = {pool.submit(work, n): n for n in range(20)}
    print([numbers[one] for one in concurrent.futures.as_completed(numbers)])
    others = {*numbers, *(pool.submit(work, n) for n in range(20))}
    while others:
        done, others = concurrent.futures.wait(others, return_when="FIRST_COMPLETED")
        print([one.result() for one in done])
    done, others = concurrent.futures.wait([pool.submit(work, n) for n in range(20)], timeout=0.005)
    print([one.result() for one in done], len(others))
"""


async def test_what_was_done_first_is_first_in_a_replay_and_in_a_fork(worker: Worker) -> None:
    recorded, err = await worker.run(RACES)
    assert err == ""
    assert {"asyncio.wait", "asyncio.as_completed", "futures.wait", "futures.as_completed"} <= worker.kinds()
    for spread, is_fork in (("0.0", True), ("0.04", False)):
        replay = worker.begin_replay(is_fork=is_fork)
        worker.batches = worker.batches if not is_fork else []
        replayed, err = await worker.run(RACES.replace("SPREAD = 0.02", f"SPREAD = {spread}"))
        assert (replayed, err) == (recorded, "")
        assert (replay.report()["missed"], replay.report()["unused"]) == (0, 0), replay.report()


async def test_another_first_than_there_is_here_is_a_miss_with_its_line(worker: Worker) -> None:
    code = """
import asyncio
async def one(): pass
async def other(): pass
async def main():
    print(len((await asyncio.wait([asyncio.create_task(one())], return_when="FIRST_COMPLETED"))[0]))
asyncio.run(main())
"""
    await worker.run(code)
    replay = worker.begin_replay()
    assert await worker.run(code.replace("(one())", "(other())")) == ("1\n", "")
    (miss,) = cast("list[dict[str, str]]", replay.report()["misses"])
    assert (miss["kind"], miss["at"]) == ('asyncio.wait {"of": 1}', "program.py:6")
    assert miss["nearest"] == "one was done in the recording, and is not waited for here"


async def test_secrets_are_not_recorded_and_a_replay_takes_the_present_ones(worker: Worker) -> None:
    code = 'import os\nprint(os.environ["DB_PASSWORD"], open("secret.env").read())\n'
    (worker.place / "secret.env").write_text("DB_PASSWORD=hunter2hunter2hunter2\n")
    await worker.run(code, changes=[("DB_PASSWORD", "correct-horse-battery")])
    stored = b"".join(batch.items for batch in worker.batches)
    assert b"hunter2" not in stored
    assert b"battery" not in stored
    worker.begin_replay()
    replayed, _ = await worker.run(code, changes=[("DB_PASSWORD", "another-horse")])
    assert replayed == "another-horse DB_PASSWORD=hunter2hunter2hunter2\n\n"


async def test_processes_that_the_program_starts_have_effects_of_their_own(worker: Worker) -> None:
    code = """
import os, random, subprocess, sys, uuid
child = "import uuid; print(uuid.uuid4())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout, uuid.uuid4())
if (pid := os.fork()) == 0:
    print("forked", uuid.uuid4(), flush=True)
    sys.exit()
os.waitpid(pid, 0)
"""
    recorded, err = await worker.run(code)
    assert err == ""
    assert {batch.process for batch in worker.batches} == {"0", "0.0", "0.1"}
    replay = worker.begin_replay()
    assert (await worker.run(code))[0] == recorded
    assert replay.report()["missed"] == 0


@pytest.mark.parametrize(
    "end",
    [
        "process = multiprocessing.get_context('fork').Process(target=work); process.start(); process.join()",
        "os.waitpid(os.fork() or [work(), os._exit(0)], 0)",
    ],
)
async def test_a_forked_child_that_ends_at_once_has_its_effects(worker: Worker, end: str) -> None:
    """It ends without `atexit`, as all of `multiprocessing` do."""
    code = f"""
import multiprocessing, os, uuid
def work():
    print("forked", uuid.uuid4(), uuid.uuid4(), flush=True)
{end}
print(uuid.uuid4())
"""
    recorded, err = await worker.run(code)
    assert err == ""
    assert {batch.process for batch in worker.batches} == {"0", "0.0"}
    replay = worker.begin_replay()
    assert (await worker.run(code))[0] == recorded
    report = replay.report()
    assert (report["missed"], report["unused"]) == (0, 0)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
async def test_processes_of_every_start_method_have_effects_of_their_own(worker: Worker, method: str) -> None:
    code = f"""
import multiprocessing, uuid
def work(queue):
    queue.put([uuid.uuid4(), uuid.uuid4()])
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    queue = context.Queue()
    for _ in range(2):
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(queue.get(), uuid.uuid4())
        process.join()
"""
    recorded, err = await worker.run(code)
    assert err == ""
    processes = [
        item.process for item in worker.batches for one in read_items(item.items) if one["kind"] == "uuid.uuid4"
    ]
    assert len({*processes} - {"0"}) == 2
    replay = worker.begin_replay()
    assert (await worker.run(code))[0] == recorded
    report = replay.report()
    assert (report["missed"], report["unused"]) == (0, 0)


async def test_a_program_that_ends_at_once_has_its_effects(worker: Worker) -> None:
    code = "import os, uuid; print(uuid.uuid4(), flush=True); os._exit(3)"
    recorded, err = await worker.run(code)
    assert err == ""
    worker.begin_replay()
    assert (await worker.run(code))[0] == recorded


async def test_an_existing_sitecustomize_is_loaded_as_well(worker: Worker) -> None:
    (worker.place / "own").mkdir()
    (worker.place / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 7\n")
    out, _ = await worker.run("print(mine)\n", changes=[("PYTHONPATH", str(worker.place / "own"))])
    assert out == "7\n"


async def test_a_hook_without_a_worker_lets_the_program_run(worker: Worker) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(HOOK),
        "PLAYHEAD_EFFECTS": "/nowhere",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "print(1)"), env=environment, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert (out, process.returncode) == (b"1\n", 0)
    assert b"effects are neither recorded nor replayed" in err


def test_results_survive_json() -> None:
    item = {"kind": "x", "results": [{"$float": "0.1"}, {"$int": str(1 << 70)}, [None, True, "é"]]}
    assert read_items(encode_items([item])) == [item]
    assert json.loads(encode_items([item])) == [item]
