"""A backup that is made under load has every call that was acknowledged before it began, once, wherever it is restored."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.ledger import Ledger, name_of
from tests.drills.up_processes import bundle, environment, load_exchanges, up
from tests.drills.upstream import upstream
from tests.support.service import command

RUNS = tuple(f"agent-{n}" for n in range(4))


async def playhead(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command(*arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    out, err = await asyncio.wait_for(process.communicate(), 100)
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.slow
async def test_a_backup_under_load_is_restored_with_every_acknowledged_call(data: Path, database_url: str) -> None:
    file, other = data.with_name("night.tar"), data.with_name("restored")
    database = ("--database-url", database_url)
    async with (
        upstream() as source,
        up(data, *database, config=source.config) as processes,
        AgentGroup(processes.port) as agent_group,
    ):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for run in RUNS:
                group.create_task(
                    agent_group.agent(run).ask_repeatedly(stop, "/whole?size=3000", "/stream?pieces=10", pause=0.02)
                )
            await source.wait_for_requests(200)
            acknowledged = Ledger(list(agent_group.ledger.whole))
            code, out, err = await playhead("backup", str(file), "--data", str(data), *database, "--json")
            assert code == 0, err
            await source.wait_for_requests(20)  # recording went on
            stop.set()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(out)["rows"]["exchanges"] > 0
    code, out, err = await playhead("restore", str(file), "--data", str(other))
    assert code == 0, err
    assert out.startswith("restored the backup of 20")
    async with up(other) as processes:
        exchanges = await _when_drained(processes.api, acknowledged)
        names = {seen.name for seen in acknowledged.seen}
        comparison = acknowledged.compare([one for one in exchanges if name_of(one) in names])
        assert comparison.sound, str(comparison)
        found = [name_of(one) for one in exchanges]
        assert len(found) == len(set(found)), "nothing is there twice"
        # A call that was under way when the backup was made has no end in it.
        gaps = [gap.reason for run in RUNS for gap in (await bundle(processes.api, run)).gaps]
        assert len(gaps) <= len(RUNS)
        assert all(reason.startswith("the worker died before the exchange ended") for reason in gaps), gaps
    code, out, err = await playhead("verify", "--all", "--data", str(other))
    assert code == 0, out + err
    code, out, err = await playhead("restore", str(file), "--data", str(other))
    assert (code, out) == (125, "")
    assert f"{other} is not empty; nothing was changed" in err


async def _when_drained(api: str, ledger: Ledger) -> list[Any]:
    """The exchanges of all runs, as soon as the restored spools are drained."""
    names = {seen.name for seen in ledger.seen}
    async with asyncio.timeout(60):
        while True:
            exchanges = await load_exchanges(api, *RUNS)
            if names <= {name_of(one) for one in exchanges}:
                return exchanges
            await asyncio.sleep(0.2)
