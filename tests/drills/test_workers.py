"""Several workers on one port: a run that went through all of them is one run, also when one of them is killed."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import bundle, compare_when_sound, kill_process, until_true, up
from tests.drills.upstream import upstream


@pytest.mark.slow
async def test_a_run_spread_over_two_workers_of_which_one_is_killed_is_one_run(data: Path, database_url: str) -> None:
    flags = ("--database-url", database_url, "--workers", "2")
    async with (
        upstream() as source,
        up(data, *flags, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        first, _ = processes.workers
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            # The kernel spreads connections over the workers: so many that each of them gets some.
            for n in range(16):
                agent = agent_group.agent(f"agent-{n}", run="shared")
                group.create_task(agent.ask_repeatedly(stop, "/whole?size=500", "/stream?pieces=5"))
            await source.wait_for_requests(60)
            # One that a busy machine lets wait begins later than the other.
            used: set[str] = set()
            await until_true(lambda: len(_note_used_spools(data, used)) == 2)
            await kill_process(first)
            await source.wait_for_requests(60)
            stop.set()
        await until_true(lambda: len(processes.workers) == 2)
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        shared = await bundle(processes.api, "shared")
    assert comparison.sound, str(comparison)
    assert comparison.counts["whole"] >= 100, str(comparison)
    assert comparison.counts["cut"] < 16, str(comparison)
    order = [(exchange.started_at, exchange.id) for exchange in shared.exchanges]
    assert order == sorted(order)


def _note_used_spools(data: Path, used: set[str]) -> set[str]:
    """Add the spools of the workers that have served something."""
    for path in (data / "spool").glob("*/*.seg"):
        with suppress(FileNotFoundError):  # the store server has just removed it
            if path.stat().st_size > 1000:
                used.add(path.parent.name)
    return used
