"""Programs that mix what no proxy sees with calls of a model: recorded once, and replayed alike while everything else has changed.

`PLAYHEAD_TEST_REPLAYS=100` replays each a hundred times.
"""

import asyncio
import json
import os
import re
import sys
from dataclasses import replace
from glob import glob
from pathlib import Path

import pytest

from proxy.capture.faketime import LIBRARIES
from proxy.demo.demo import CONFIG, prepare_directory
from proxy.demo.service import Shell
from store.bundle.bundle import bundle_lines, load_bundle
from tests.support.service import keeping

REPLAYS = int(os.environ.get("PLAYHEAD_TEST_REPLAYS", "2"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(max(300, 10 * REPLAYS))]

ASKING = """
import json, os

MODEL = "https://api.model.example/v1/chat/completions"

def request(text):
    return {"model": "example-large", "messages": [{"role": "user", "content": text}]}

def text_of(answer):
    return json.dumps(answer["choices"][0]["message"], sort_keys=True)
"""

MIXED = (
    ASKING
    + """
import datetime, random, secrets, subprocess, time, urllib.request, uuid
from pathlib import Path

def ask(text):
    body = json.dumps(request(text)).encode()
    message = urllib.request.Request(MODEL, body, {"content-type": "application/json"})
    with urllib.request.urlopen(message, timeout=60) as answer:
        return text_of(json.load(answer))

print(ask(f"It is {datetime.datetime.now()}, case {uuid.uuid4()}."))
policy = Path("policy.txt").read_text()
print(ask(f"{policy} in {os.environ['REGION']}, sample {random.random()}, {random.sample(range(1000), 5)}"))
person = input("Approve? ")
print(ask(f"{person} said so at {time.time_ns()}; files {os.listdir('.')}; {secrets.token_hex(8)}"))
print(subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout)
print(random.getrandbits(64), time.monotonic(), os.urandom(4).hex(), uuid.uuid1())
"""
)

BRANCHES = (
    ASKING
    + """
import asyncio, random, time, uuid
import httpx2

async def branch(client, number):
    # os.getrandom is no effect that is recorded, so the branches run in another order each time.
    await asyncio.sleep(os.getrandom(1)[0] / 2000)
    first, second = uuid.uuid4(), random.random()
    answer = await client.post(MODEL, json=request(f"branch {number} at {time.time_ns()}: {first} {second}"))
    await asyncio.sleep(os.getrandom(1)[0] / 2000)
    return number, str(first), random.randrange(10**9), time.perf_counter_ns(), text_of(answer.json())

async def main():
    async with httpx2.AsyncClient(timeout=60) as client:
        for found in await asyncio.gather(*(branch(client, number) for number in range(20))):
            print(*found)

asyncio.run(main())
"""
)


@pytest.mark.parametrize(("program", "calls"), [(MIXED, 3), (BRANCHES, 20)], ids=["mixed", "branches"])
async def test_replays_write_the_same_bytes_and_nothing_goes_out(
    program: str, calls: int, data: Path, database_url: str, forking_playhead: Path
) -> None:
    shell = prepare_directory(data)
    (data / "program.py").write_text(program)
    (data / "policy.txt").write_text("Refund within 30 days")
    servers = shell.background_command([sys.executable, "-m", "proxy.demo.servers"], "servers.log")
    async with servers as line, keeping(data / "data", database_url):
        (data / "playhead.toml").write_text(CONFIG.format(**json.loads(line)))
        recorded, error = await run(shell, b"yes, by Ann\n", "EU", "record", "--effects", "--run", "first")
        assert recorded.count(b"\n") >= calls, error
        (data / "policy.txt").write_text("No refunds")
        (data / "another.txt").touch()
        for number in range(REPLAYS):
            replayed, error = await run(shell, b"", f"region {number}", "replay", "first")
            assert replayed == recorded, error
            assert f"{calls} served, 0 missed, 0 live, 0 unused" in error
            assert re.search(r"effects: (\d+) of \1 served\n", error), error
        if program == MIXED:
            changes = ("clock=2028-02-29T12:00:00Z", "input=no, by Bob")
            words = [word for change in changes for word in ("--override", change)]
            await run(shell, b"", "US", "fork", "first", "--after-step", "0", "--run", "leap", *words)
            compared = await shell.run(["playhead", "diff", "first", "leap"])
            assert re.search(
                r"datetime.now at program.py:\d+ gave 20\S+ in A, 2028-02-29T12:00:00.000000Z in B", compared.out
            )
            shown = await shell.run(["playhead", "show", "leap", "3"])
            assert "no, by Bob said so at 18354" in shown.out
            await require_pinned_surroundings(shell, str(forking_playhead))


ANY_PROGRAM = """
date +%Y-%m-%d
date +%Z
perl -e '%h = map { $_ => 1 } (a..z); print join("", keys %h), "\\n"'
python3 -c 'print(hash("text"))'
"""


async def require_pinned_surroundings(shell: Shell, playhead: str) -> None:
    """Require that programs of any language have the hash seeds, the time zone and the clock of their recording.

    This `playhead` may be a fork. It cannot have another hash seed than the process that forks.
    """
    (shell.directory / "any.sh").write_text(ANY_PROGRAM)
    recorded = await shell.run(["env", "TZ=Asia/Tokyo", playhead, "record", "--run", "any", "--", "sh", "any.sh"])
    assert (await shell.run(["playhead", "export", "any", "-o", "any.jsonl"])).code == 0
    bundle = load_bundle(shell.directory / "any.jsonl")
    old = replace(bundle, run={**bundle.run, "started_at": "2024-02-29T20:00:00Z"})
    (shell.directory / "old.jsonl").write_bytes(b"".join(bundle_lines(old)))
    replay = ["env", "TZ=Europe/Paris", "PYTHONHASHSEED=7", "playhead", "replay", "old.jsonl", "--", "sh", "any.sh"]
    replayed = await shell.run(replay)
    _, zone, *hashes = recorded.out.splitlines()
    day, *others = replayed.out.splitlines()
    assert (zone, others) == ("JST", ["JST", *hashes])
    clock = ("--clock", "recorded")
    if any(glob(pattern) for pattern in LIBRARIES):
        assert day == "2024-03-01", replayed.error
    else:
        unmoved = await shell.run([playhead, "replay", "old.jsonl", *clock, "--", "date", "+%Y"])
        assert "the clock was not that of the recording: libfaketime is not installed" in unmoved.error
    clocked = await shell.run([playhead, "replay", "old.jsonl", *clock, "--on-miss", "live", "--", "date", "+%Y"])
    assert "the clock was not that of the recording: requests may go out" in clocked.error
    assert int(clocked.out) > 2024


async def run(shell: Shell, typed: bytes, region: str, *words: str) -> tuple[bytes, str]:
    """Run the program under a command, which has to end well; return what it wrote, and what Playhead said."""
    process = await asyncio.create_subprocess_exec(
        *("playhead", *words, "--", "python", "program.py"),
        cwd=shell.directory,
        env={**shell.environment, "REGION": region},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate(typed)
    assert process.returncode == 0, error.decode()
    return out, error.decode()
