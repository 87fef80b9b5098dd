"""kill -9 of the store server under load: agents notice nothing, nothing is lost, nothing is there twice."""

import asyncio
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import bundle, compare_when_sound, get, kill_process, until, up
from tests.drills.upstream import upstream


@pytest.mark.slow
async def test_a_store_server_killed_again_and_again_loses_nothing_and_doubles_nothing(
    data: Path, database_url: str
) -> None:
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for n in range(5):
                group.create_task(
                    agent_group.agent(f"agent-{n}").ask_repeatedly(
                        stop, "/whole?size=3000", "/stream?pieces=10", pause=0.02
                    )
                )
            for _ in range(2):
                await source.wait_for_requests(30)
                await kill_process(processes.store_server)
                await until(lambda: get(processes.api, "/runs/agent-0"))
            stop.set()
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        gaps = [gap for run in agent_group.runs for gap in (await bundle(processes.api, run)).gaps]
    assert comparison.sound, str(comparison)
    assert set(comparison.counts) == {"whole"}, str(comparison)
    assert not gaps
