"""SIGTERM: an end in order and in time, whatever is under way, and nothing lost by it."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.relay import relay
from tests.drills.up_processes import STOPPED, bundle, compare_when_sound, environment, find_processes, until_true, up
from tests.drills.upstream import upstream
from tests.support.service import command


@pytest.mark.slow
async def test_stopped_under_load_it_ends_in_time_and_loses_nothing(data: Path, database_url: str) -> None:
    async with upstream() as source:
        flags = ("--database-url", database_url)
        async with (
            up(data, *flags, config=source.config) as processes,
            AgentGroup(processes.port) as agent_group,
            asyncio.TaskGroup() as group,
        ):
            for n in range(5):
                targets = ("/whole?size=3000", "/stream?pieces=5")
                group.create_task(agent_group.agent(f"agent-{n}").ask_until_refused(*targets))
            endless = group.create_task(agent_group.agent("endless").ask("/hold?pieces=10"))
            await source.wait_until_holding(1)
            await source.wait_for_requests(50)
            await processes.stop(STOPPED)
        assert endless.result().end == "cut"
        async with up(data, *flags, config=source.config) as processes:
            comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
            gaps = [gap for run in agent_group.runs for gap in (await bundle(processes.api, run)).gaps]
    assert comparison.sound, str(comparison)
    assert not comparison.shorter, str(comparison)
    assert comparison.counts["whole"] >= 50, str(comparison)
    assert {gap.reason for gap in gaps} == {"the worker stopped before the exchange was over"}, "of the endless one"


@pytest.mark.slow
async def test_stopped_while_its_database_is_silent_it_ends_in_time_and_loses_nothing(
    data: Path, database_url: str
) -> None:
    async with upstream() as source, relay(database_url) as database:
        async with (
            up(data, "--database-url", database.url, config=source.config) as processes,
            AgentGroup(processes.port) as agent_group,
        ):
            database.passes_data.clear()
            agent = agent_group.agent("agent")
            for _ in range(20):
                await agent.ask("/whole?size=3000")
            await processes.stop(STOPPED)
        async with up(data, "--database-url", database_url, config=source.config) as processes:
            comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
    assert comparison.sound, str(comparison)
    assert comparison.counts == {"whole": 20}, str(comparison)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stage"),
    [(signal.SIGTERM, "playhead up"), pytest.param(signal.SIGINT, "initdb", marks=pytest.mark.own_interpreter)],
)
async def test_stopped_while_it_starts_it_ends_in_time(data: Path, number: int, stage: str) -> None:
    ports = ("--proxy-port", "0", "--api-port", "0")
    process = await asyncio.create_subprocess_exec(
        *command("up", "--data", str(data), *ports),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr
    assert b"starting" in await process.stderr.readline()
    await until_true(lambda: any(stage in one.command for one in find_processes(data)))
    process.send_signal(number)
    async with asyncio.timeout(STOPPED):
        said, _ = await process.communicate()
    assert (process.returncode, said) == (0, b"")
    await until_true(lambda: not find_processes(data))
