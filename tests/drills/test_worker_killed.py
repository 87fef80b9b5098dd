"""kill -9 of a worker while it streams: what its agents saw end is kept, what was cut is kept as cut, and it comes back."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import (
    RunningUp,
    bundle,
    compare_when_sound,
    get,
    kill_process,
    read_spools,
    save_bundle,
    until_true,
    up,
)
from tests.drills.upstream import pieces, upstream

STREAMS = 20
TARGET = "/hold?pieces=12"
SENT = 6
"""Events of it that come before it is held."""


@pytest.mark.slow
async def test_a_worker_killed_in_mid_stream_loses_nothing_that_was_acknowledged(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        busy = agent_group.agent("busy", run="night")
        async with asyncio.TaskGroup() as group:
            for n in range(STREAMS):
                group.create_task(agent_group.agent(f"stream-{n}", run="night").ask(TARGET))
            await source.wait_until_holding(STREAMS)
            for _ in range(5):
                await busy.ask("/whole?size=2000")
            await until_true(lambda: _all_spooled(processes))
            await kill_process(processes.workers[0])
        busy.leave()
        assert (await busy.ask_until_reachable("/whole?size=100")).end == "whole", "the worker is not back on its port"
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        night = await bundle(processes.api, "night")
        run = await get(processes.api, "/runs/night")
        recording = await save_bundle(processes.api, "night", data.with_suffix(".jsonl"))
    assert comparison.sound, str(comparison)
    assert not comparison.shorter, str(comparison)
    assert comparison.counts == {"whole": 6, "cut": STREAMS}, str(comparison)
    cut = [exchange for exchange in night.exchanges if exchange.ended_at is None]
    assert len(cut) == STREAMS, str(comparison)
    assert sorted(gap.exchange or "" for gap in night.gaps) == sorted(exchange.id for exchange in cut)
    assert (run["complete"], run["gaps"], run["exchanges"]) == (False, STREAMS, STREAMS + 6)

    flags = ("--part", "proxy", "--mode", "replay", "--replay", str(recording))
    async with up(data, *flags) as processes, AgentGroup(processes.port) as again:
        missed = await again.agent("stream").ask(TARGET)
    assert missed.status == 424
    assert json.loads(missed.body)["playhead"]["reason"] == "incomplete"


@pytest.mark.slow
async def test_workers_killed_again_and_again_under_load_keep_every_promise(data: Path, database_url: str) -> None:
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        source.pause = 0.002
        agents = [agent_group.agent(f"agent-{n}") for n in range(6)]
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                for agent in agents:
                    group.create_task(agent.ask_until_cut("/whole?size=500", "/stream?pieces=20"))
                await source.wait_for_requests(30)
                await kill_process(processes.workers[0])
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
    assert comparison.sound, str(comparison)
    assert comparison.counts["cut"] >= 3, str(comparison)
    assert comparison.counts["whole"] >= 60, str(comparison)


def _all_spooled(processes: RunningUp) -> bool:
    found = read_spools(processes.data)
    return all(piece in found for n in range(STREAMS) for piece in pieces(TARGET, f"stream-{n}.0")[:SENT])
