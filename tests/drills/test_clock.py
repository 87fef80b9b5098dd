"""A clock that jumps, forward and back, while an agent works: the order holds, no duration is negative, nothing is lost."""

import itertools
import os
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import bundle, compare_when_sound, up
from tests.drills.upstream import upstream

HOUR = 3600

# Python runs this in every process that finds it on its path.
CLOCK = """
import os, time

def jumping(told, unit):
    def now():
        with open(os.environ["DRILL_CLOCK"]) as file:
            return told() + int(file.read() or 0) * unit
    return now

time.time, time.time_ns = jumping(time.time, 1), jumping(time.time_ns, 10**9)
"""


@pytest.mark.slow
async def test_a_jumping_clock_harms_no_order_and_no_duration(data: Path, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    clock = tmp_path / "clock"
    clock.write_text("0")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "DRILL_CLOCK": str(clock)}
    async with (
        upstream() as source,
        up(data, "--database-url", database_url, config=source.config, env=env) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        agent = agent_group.agent("agent")
        for hours in (0, 1, -1, 0):
            clock.write_text(str(hours * HOUR))
            for _ in range(4):
                await agent.ask("/stream?pieces=3")
        comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
        exchanges = (await bundle(processes.api, "agent")).exchanges
    assert comparison.sound, str(comparison)
    assert all(one.id < two.id for one, two in itertools.pairwise(exchanges))
    spans = [(each.first_byte_at or 0, each.ended_at or 0) for each in exchanges]
    # Each jump was undone: no exchange has a time that never was.
    began = [each.started_at for each in exchanges]
    assert max(began) - min(began) < 10 * 60 * 10**9
    assert all(0 < first <= end < 60 * 10**9 for first, end in spans), spans
