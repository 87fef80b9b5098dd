"""Postgres dead, hung and killed: an agent notices nothing, and what waited in the spools is stored afterwards."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text

from store.database.connection import Database
from store.database.schema_version import SCHEMA
from store.embedded.postgres import EmbeddedServer
from tests.drills.agent import AgentGroup
from tests.drills.relay import Relay, relay
from tests.drills.up_processes import (
    RunningUp,
    compare_when_sound,
    descendants,
    kill_process,
    load_exchanges,
    until,
    until_true,
    up,
)
from tests.drills.upstream import Upstream, upstream
from tests.support.api import authorization
from tests.support.postgres import TEMPLATE, create, run, url
from tests.support.service import command


async def _away(source: Upstream, database: Relay, processes: RunningUp) -> None:
    """Gone for a while, and the store server dies meanwhile."""
    database.disconnect()
    await source.wait_for_requests(20)
    await kill_process(processes.store_server)
    before = database.refused
    await until_true(lambda: database.refused > before)
    database.reconnect()


async def _hang_database(source: Upstream, database: Relay) -> None:
    """There, and silent."""
    database.passes_data.clear()
    await source.wait_for_requests(40)
    await asyncio.sleep(2)
    database.reconnect()


async def test_a_start_that_lacks_nothing_logs_no_failure(data: Path, database_url: str) -> None:
    async with up(data, "--database-url", database_url, env={"PLAYHEAD_LOG_FORMAT": "json"}):
        pass
    lines = [json.loads(line) for line in (data / "log/store.log").read_text().splitlines()]
    assert lines
    assert [line["event"] for line in lines if line["level"] != "info"] == []


async def test_up_serves_and_records_until_a_postgres_comes_that_it_can_use(
    data: Path, postgres_server: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """At start: away, then without our database, then with tables of a newer Playhead, and at last as it should be."""

    async def reason(words: str) -> None:
        async def is_database_named() -> bool:
            answer = await client.get("/readyz")
            return answer.status_code == 503 and words in answer.json()["troubles"]["database"]

        await until(is_database_named)

    async def ready() -> bool:
        return (await client.get("/readyz")).status_code == 200

    printed: list[str] = []

    async def is_ready_said() -> bool:
        printed.append(capfd.readouterr().err)
        return "is ready, after" in "".join(printed)

    async with (
        upstream() as source,
        relay(url(postgres_server, "late")) as database,
        httpx2.AsyncClient(trust_env=False, verify=False, timeout=60) as client,
    ):
        database.disconnect()
        async with (
            up(data, "--database-url", database.url, config=source.config) as processes,
            AgentGroup(processes.port) as agent_group,
        ):
            client.base_url = processes.api
            await reason("Postgres is not available")
            await agent_group.agent("early").ask("/whole?size=3000")
            assert (await client.get("/v1/runs", headers=authorization(processes.api))).status_code == 503
            assert (await client.get("/healthz")).status_code == 200
            database.reconnect()
            await reason('database "late" does not exist')
            create(postgres_server, "future", template=TEMPLATE)
            await _set_version(url(postgres_server, "future"), "9999")
            create(postgres_server, "late", template="future")
            await reason("The tables have version 9999")
            await _set_version(url(postgres_server, "late"), SCHEMA)
            await until(ready)
            assert [exchange.run for exchange in await load_exchanges(processes.api, "early")] == ["early"]
            # It answers before the partitions of the next days are there, and says so after that.
            await until(is_ready_said)
    for name in ("late", "future"):
        run(postgres_server, "dropdb", "--force", name)
    said = "".join([*printed, capfd.readouterr().err])
    assert "password" not in said
    for words in ("is not available", 'database "late" does not exist', "version 9999", "is ready, after"):
        assert said.count(words) == 1, said


async def _set_version(address: str, version: str) -> None:
    """Have the tables say that they are of this version."""
    database = Database(address)
    await database.connect()
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    await database.close()


@pytest.mark.slow
async def test_a_postgres_that_does_not_answer_is_waited_for(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        relay(database_url) as database,
        up(data, "--database-url", database.url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(
                    agent_group.agent(f"agent-{n}").ask_repeatedly(
                        stop, "/whole?size=3000", "/stream?pieces=5", pause=0.02
                    )
                )
            await source.wait_for_requests(20)
            await _hang_database(source, database)
            await source.wait_for_requests(20)
            await _away(source, database, processes)
            await source.wait_for_requests(20)
            stop.set()
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
    assert comparison.sound, str(comparison)
    assert set(comparison.counts) == {"whole"}, str(comparison)


@pytest.mark.slow
async def test_our_own_postgres_may_be_stopped_and_killed(data_with_postgres: Path) -> None:
    async with (
        upstream() as source,
        up(data_with_postgres, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(agent_group.agent(f"agent-{n}").ask_repeatedly(stop, "/whole?size=3000", pause=0.02))
            await source.wait_for_requests(20)
            postmaster = processes.postmaster
            server = [postmaster, *descendants(postmaster.pid)]
            for process in server:
                process.kill(signal.SIGSTOP)
            await source.wait_for_requests(60)
            async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=60) as client:
                assert (await client.get(f"{processes.api}/readyz")).status_code == 503
            # The postmaster last: it removes backends that were ending when they were stopped.
            for process in reversed(server):
                process.kill(signal.SIGCONT)
            await source.wait_for_requests(20)
            await kill_process(postmaster)
            await source.wait_for_requests(20)
            stop.set()
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
    assert comparison.sound, str(comparison)
    assert set(comparison.counts) == {"whole"}, str(comparison)
    await until_true(lambda: not postmaster.alive)


@pytest.mark.slow
async def test_a_command_runs_and_is_recorded_while_postgres_is_away(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        relay(database_url) as database,
        up(data, "--database-url", database.url, config=source.config) as processes,
    ):
        database.disconnect()
        program = "import urllib.request; print(len(urllib.request.urlopen('http://api.drill.example/whole?size=3000').read()))"
        line = command("record", "--data", str(data), "--run", "while-away", "--", sys.executable, "-c", program)
        ran = await asyncio.create_subprocess_exec(
            *line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(90):
            out, said = await ran.communicate()
        assert (ran.returncode, out.strip()) == (0, b"3000"), said.decode()
        assert b"is recorded into the spool" in said
        assert b"waits in the spool and cannot be shown yet" in said
        database.reconnect()
        async with httpx2.AsyncClient(
            base_url=processes.api, headers=authorization(processes.api), timeout=30, trust_env=False, verify=False
        ) as client:

            async def is_there() -> bool:
                answer = await client.get("/v1/runs/while-away/calls", params={"settled": "true", "fields": "*"})
                return answer.status_code == 200 and len(answer.json()["items"]) == 1

            async with asyncio.timeout(60):
                while not await is_there():
                    pass  # each asking waits until all is in, or says at once that the store is away
