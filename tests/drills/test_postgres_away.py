"""Postgres dead, hung and killed: an agent notices nothing, and what waited in the spools is stored afterwards."""

import asyncio
import signal
import sys
from pathlib import Path

import httpx2
import pytest

from tests.drills.agent import Crew
from tests.drills.house import Up, compared, descendants, killed, until_true, up
from tests.drills.relay import Relay, relay
from tests.drills.upstream import Upstream, upstream
from tests.support.service import command


async def _away(source: Upstream, database: Relay, house: Up) -> None:
    """Gone for a while, and the keeper dies meanwhile."""
    database.go_away()
    await source.served(20)
    await killed(house.keeper)
    before = database.refused
    await until_true(lambda: database.refused > before)
    database.come_back()


async def _hung(source: Upstream, database: Relay) -> None:
    """There, and silent."""
    database.goes_on.clear()
    await source.served(40)
    await asyncio.sleep(2)
    database.come_back()


@pytest.mark.slow
async def test_a_postgres_that_does_not_answer_is_waited_for(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        relay(database_url) as database,
        up(data, "--database-url", database.url, config=source.config) as house,
        Crew(house.port) as crew,
    ):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(crew.agent(f"agent-{n}").ask_on(stop, "/whole?size=3000", "/stream?pieces=5"))
            await source.served(20)
            await _hung(source, database)
            await source.served(20)
            await _away(source, database, house)
            await source.served(20)
            stop.set()
        comparison = await compared(house, crew.ledger, source, crew.runs)
    assert comparison.sound, str(comparison)
    assert set(comparison.counts) == {"whole"}, str(comparison)


@pytest.mark.slow
async def test_our_own_postgres_may_be_stopped_and_killed(embedded: Path) -> None:
    async with upstream() as source, up(embedded, config=source.config) as house, Crew(house.port) as crew:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(crew.agent(f"agent-{n}").ask_on(stop, "/whole?size=3000"))
            await source.served(20)
            postmaster = house.postmaster
            server = [postmaster, *descendants(postmaster.pid)]
            for process in server:
                process.kill(signal.SIGSTOP)
            await source.served(60)
            async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
                assert (await client.get(f"{house.api}/readyz")).status_code == 503
            for process in server:
                process.kill(signal.SIGCONT)
            await source.served(20)
            await killed(postmaster)
            await source.served(20)
            stop.set()
        comparison = await compared(house, crew.ledger, source, crew.runs)
    assert comparison.sound, str(comparison)
    assert set(comparison.counts) == {"whole"}, str(comparison)
    await until_true(lambda: not postmaster.alive)


@pytest.mark.slow
async def test_a_command_runs_and_is_recorded_while_postgres_is_away(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        relay(database_url) as database,
        up(data, "--database-url", database.url, config=source.config) as house,
    ):
        database.go_away()
        program = "import urllib.request; print(len(urllib.request.urlopen('http://api.drill.example/whole?size=3000').read()))"
        line = command("record", "--data", str(data), "--run", "while-away", "--", sys.executable, "-c", program)
        ran = await asyncio.create_subprocess_exec(
            *line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(90):
            out, said = await ran.communicate()
        assert (ran.returncode, out.strip()) == (0, b"3000"), said.decode()
        assert b"is recorded into the spool" in said
        assert b"waits in the spool, and cannot be shown yet" in said
        database.come_back()
        async with httpx2.AsyncClient(base_url=house.api, timeout=30, trust_env=False) as client:

            async def is_there() -> bool:
                answer = await client.get("/v1/runs/while-away/calls", params={"settled": "true"})
                return answer.status_code == 200 and len(answer.json()["items"]) == 1

            async with asyncio.timeout(60):
                while not await is_there():
                    pass  # each asking waits until all is in, or says at once that the store is away
