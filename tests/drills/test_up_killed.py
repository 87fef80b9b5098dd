"""kill -9 of `playhead up` itself: nothing is left running, and the next start finds all that was acknowledged."""

import asyncio
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import Process, bundle, compare_when_sound, descendants, kill_process, until_true, up
from tests.drills.upstream import upstream


@pytest.mark.slow
async def test_a_killed_up_leaves_nothing_running_and_nothing_lost(data_with_postgres: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    async with upstream() as source:
        env = {"TMPDIR": str(elsewhere)}
        async with (
            up(data_with_postgres, config=source.config, env=env) as processes,
            AgentGroup(processes.port) as agent_group,
        ):
            started = [*descendants(processes.process.pid), *_postgres(processes.postmaster)]
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(
                        agent_group.agent(f"agent-{n}").ask_until_cut("/whole?size=3000", "/stream?pieces=5")
                    )
                streaming = group.create_task(agent_group.agent("stream").ask("/hold?pieces=10"))
                await source.wait_until_holding(1)
                await source.wait_for_requests(40)
                itself = Process.of(processes.process.pid)
                assert itself
                await kill_process(itself)
            await processes.process.wait()
            assert streaming.result().end == "cut"
            await until_true(lambda: not any(process.alive for process in started))
            assert not list(elsewhere.iterdir()), "something was left outside of the data directory"
        async with up(data_with_postgres, config=source.config) as processes:
            comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
            stream = (await bundle(processes.api, "stream")).exchanges[0]
    assert comparison.sound, str(comparison)
    assert not comparison.shorter, str(comparison)
    assert (stream.outcome, stream.error) == ("refused", "the worker stopped before the exchange was over")


def _postgres(postmaster: Process) -> list[Process]:
    """The server and who watches over it, neither of them a child of ours."""
    parent = int(Path(f"/proc/{postmaster.pid}/stat").read_text().rpartition(")")[2].split()[1])
    supervisor = Process.of(parent)
    assert supervisor
    return [supervisor, postmaster, *descendants(postmaster.pid)]
