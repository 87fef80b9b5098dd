"""Commands that share a data directory with nobody's `up` running: at once, one in the other's way, one after the other."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from calls.model import Request
from proxy.errors import FAILURE_EXIT_CODE
from store.bundle.bundle import load_bundle
from store.datadir import open_data_dir
from tests.drills.ledger import NAME, Ledger, SeenRequest
from tests.drills.test_replay_trust import write_bundle
from tests.drills.up_processes import bundle, environment, get, until_true, up
from tests.drills.upstream import HOST, expected_body, upstream
from tests.replay.strategies import exchange, ok
from tests.support.service import command

TARGET = "/whole?size=2000"

NO_POSTGRES = {"PLAYHEAD_PG_BINDIR": "/nowhere"}

ASKER = """
import sys, time, urllib.request
host, target, header, name, first, last, pause = sys.argv[1:]
for n in range(int(first), int(last)):
    asked = urllib.request.Request(f"http://{host}{target}", headers={header: f"{name}.{n}"})
    assert len(urllib.request.urlopen(asked).read()) == 2000
    time.sleep(float(pause))
"""


EARLY = """
import http.client, os, sys, urllib.parse
api = urllib.parse.urlsplit(os.environ["PLAYHEAD_API"])
connection = http.client.HTTPConnection(api.hostname, api.port)
connection.request("GET", "/healthz")
sys.exit(connection.getresponse().status != 200)
"""
"""Asks the API at once, when its store server may still be starting."""


async def playhead(*arguments: str | Path, **variables: str) -> tuple[int, str, str]:
    """Exit status, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *command(*map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment() | variables,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def recording(data: Path, run: str, first: int, last: int, pause: float = 0, *, more: Sequence[str] = ()) -> list[str]:
    """The command line that records requests `first` to `last` of a run; the asker names them so, whatever the run's name."""
    asker = (sys.executable, "-c", ASKER, HOST, TARGET, NAME, run)
    line = ["record", "--data", str(data), "--config", str(data.with_suffix(".toml")), *more, "--", *asker]
    return [*line, *map(str, (first, last, pause))]


def answered_requests(run: str, count: int) -> Ledger:
    """What an asker saw that ended well."""
    names = [f"{run}.{n}" for n in range(count)]
    whole = [expected_body(TARGET, name) for name in names]
    return Ledger(
        [
            SeenRequest(name=name, run=run, expected=body, status=200, body=body, end="whole")
            for name, body in zip(names, whole, strict=True)
        ]
    )


@pytest.mark.slow
async def test_two_recordings_at_once_and_one_that_goes_on_are_all_there(data: Path, database_url: str) -> None:
    store = ("--database-url", database_url)
    async with upstream() as source:
        data.with_suffix(".toml").write_text(source.config)
        # Without a run's name nobody has to ask the store before the command begins.
        unstored = await playhead(*recording(data, "unstored", 0, 3), **NO_POSTGRES)
        early = await playhead("record", "--data", data, *store, "--", sys.executable, "-c", EARLY)
        both = await asyncio.gather(
            playhead(*recording(data, "long", 0, 30, pause=0.1, more=("--run", "long", *store))),
            playhead(*recording(data, "short", 0, 5, more=("--run", "short", *store))),
        )
        later = await playhead(*recording(data, "short", 5, 9, more=("--run", "short", "--append", *store)))
    assert unstored[0] == FAILURE_EXIT_CODE
    assert "the store server could not be started: /nowhere has no postgres" in unstored[2]
    assert "waits in the spool" in unstored[2]
    assert [done[0] for done in (early, *both, later)] == [0, 0, 0, 0], (early, both, later)
    assert not list((data / "log").glob("worker-*.log")), "workers that had nothing to say left an empty file each"
    async with up(data, *store) as processes:
        listed = (await get(processes.api, "/runs"))["items"]
        found = {run: await bundle(processes.api, run) for run in ("long", "short")}
    wanted = {"long": (30, True), "short": (9, True)}
    exchanges = {run["id"]: (run["exchanges"], run["complete"]) for run in listed}
    assert {run: exchanges.pop(run) for run in wanted} == wanted
    assert sorted(exchanges.values()) == [(0, True), (3, True)]
    for run, (count, _) in wanted.items():
        asked = [name for name in source.asked if name.startswith(run)]
        comparison = answered_requests(run, count).compare(found[run].exchanges, asked)
        assert comparison.sound, str(comparison)
        assert not found[run].gaps


WAITING = f"""
import sys, urllib.request
for path in sys.argv[1:]:
    print(len(urllib.request.urlopen("http://{HOST}" + path).read()), flush=True)
    input()
"""


@asynccontextmanager
async def replaying(file: Path, flags: Sequence[str], *paths: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replay of this file that records what it lacks, whose command waits for a line after each of its calls."""
    process = await asyncio.create_subprocess_exec(
        *command("replay", *flags, "--on-miss", "record", str(file), "--", sys.executable, "-c", WAITING, *paths),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def finish_command(process: asyncio.subprocess.Process, lines: bytes = b"") -> tuple[int, str]:
    """Its exit status and errors, once its command was given these lines."""
    async with asyncio.timeout(60):
        _, said = await process.communicate(lines)
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize("how", ["ends", "is killed"])
async def test_a_replay_outlives_the_command_whose_store_server_it_uses(
    data: Path, database_url: str, how: str
) -> None:
    """Nobody's `up` runs: the first one starts a store server, which goes on for the second one."""
    first, second = data.with_suffix(".first.jsonl"), data.with_suffix(".second.jsonl")
    config = data.with_suffix(".toml")
    flags = ("--data", str(data), "--database-url", database_url, "--config", str(config))
    for file in (first, second):
        write_bundle(
            file, exchange(Request(method="GET", url=f"http://{HOST}/whole?size=10"), ok(b"recorded!!"), number=1)
        )
    before = first.read_bytes()
    async with upstream() as source:
        config.write_text(source.config)
        async with (
            replaying(first, flags, "/whole?size=10", "/whole?size=30") as owner,
            replaying(second, flags, "/whole?size=10", "/whole?size=40", "/whole?size=50") as guest,
        ):
            for process in (owner, guest):
                assert process.stdout
                assert process.stdin
                assert await process.stdout.readline() == b"10\n"
                process.stdin.write(b"\n")
                assert await process.stdout.readline() in (b"30\n", b"40\n")
            async with replaying(first, flags, "/whole?size=10") as refused:
                code, said = await finish_command(refused)
                assert (code, "another command is writing the recording" in said) == (125, True), said
            if how == "ends":
                code, said = await finish_command(owner, b"\n")
                assert (code, "now holds 1 new call beside 1 that answered" in said) == (0, True), said
            else:
                owner.kill()
                await owner.communicate()
                assert first.read_bytes() == before
            code, said = await finish_command(guest, b"\n\n")
            assert (code, "now holds 2 new calls beside 1 that answered" in said) == (0, True), said
    made = await asyncio.to_thread(load_bundle, second)
    assert [each.request.url.partition("=")[2] for each in made.exchanges] == ["10", "40", "50"]
    server = open_data_dir(data).store_lock
    await until_true(lambda: not server.is_held())
    assert len((await asyncio.to_thread(load_bundle, first)).exchanges) == (2 if how == "ends" else 1)
