"""A spool that is full or cannot be written: by policy the agent goes on and the run says so, or nothing unrecorded happens."""

import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.drills.agent import AgentGroup
from tests.drills.up_processes import RunningUp, bundle, compare_when_sound, environment, get, load_exchanges, until, up
from tests.drills.upstream import upstream
from tests.support.service import command

type Trouble = Callable[[RunningUp], AbstractContextManager[None]]

DISK = "2m"
LARGE = "/whole?size=100000"
ASKED = 30
"""So many of them are more than the disk holds."""


@contextmanager
def small_disk(place: Path, options: str = "rw") -> Iterator[None]:
    """A disk of its own, that is soon full."""
    place.mkdir(parents=True)
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", f"size={DISK},{options}", "tmpfs", place]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@contextmanager
def fill_disk(processes: RunningUp) -> Iterator[None]:
    """Something else takes all the room there is."""
    ballast = processes.data / "spool" / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield
    ballast.unlink()


@contextmanager
def unwritable(processes: RunningUp) -> Iterator[None]:
    """No file of its workers may grow: every write to a spool fails, as on a disk that refuses."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    workers = processes.workers
    for worker in workers:
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield
    for worker in workers:
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, unlimited)


@contextmanager
def slow_store_server(processes: RunningUp) -> Iterator[None]:
    """Nobody empties the spool."""
    store_server = processes.store_server
    store_server.kill(signal.SIGSTOP)
    yield
    store_server.kill(signal.SIGCONT)


TROUBLES: dict[str, tuple[Trouble, str]] = {
    "slow-store-server": (slow_store_server, "is full"),
    "filled": (fill_disk, "No space left on device"),
    "unwritable": (unwritable, "File too large"),
}
"""By the run that meets it: the trouble, and the reason that its gaps give."""


@pytest.mark.slow
async def test_agents_go_on_and_their_runs_say_what_is_missing(data: Path, database_url: str) -> None:
    with small_disk(data / "spool"):
        async with (
            upstream() as source,
            up(data, "--database-url", database_url, config=source.config) as processes,
            AgentGroup(processes.port) as agent_group,
        ):
            await _in_trouble(processes, agent_group)
            comparison = agent_group.ledger.compare(await load_exchanges(processes.api, *agent_group.runs))
            runs = {run: await get(processes.api, f"/runs/{run}") for run in TROUBLES}
            gaps = {run: (await bundle(processes.api, run)).gaps for run in TROUBLES}
    assert set(comparison.counts) == {"whole"}, str(comparison)
    assert not {*comparison.overstated, *comparison.invented, *comparison.doubled, *comparison.disordered}
    missing = [*comparison.lost, *comparison.changed]
    for run, (_, reason) in TROUBLES.items():
        assert ASKED // 4 < sum(name.startswith(run) for name in missing) <= ASKED, str(comparison)
        assert not runs[run]["complete"]
        assert any(reason in gap.reason for gap in gaps[run]), gaps[run]


@pytest.mark.slow
async def test_nothing_unrecorded_happens_where_that_is_the_policy(data: Path, database_url: str) -> None:
    flags = ("--database-url", database_url, "--on-record-failure", "refuse")
    with small_disk(data / "spool"):
        async with (
            upstream() as source,
            up(data, *flags, config=source.config) as processes,
            AgentGroup(processes.port) as agent_group,
        ):
            await _in_trouble(processes, agent_group)
            comparison = await compare_when_sound(processes, agent_group.ledger, source, agent_group.runs)
    refused = [seen for seen in agent_group.ledger.seen if seen.refused]
    assert comparison.sound, str(comparison)
    assert {seen.status for seen in refused} == {503}
    assert not {seen.name for seen in refused} & set(source.asked)
    for run in TROUBLES:
        assert sum(seen.run == run for seen in refused) > ASKED // 4, str(comparison)


async def _in_trouble(processes: RunningUp, agent_group: AgentGroup) -> None:
    """Ask well, then in trouble; and go on when all is well again."""
    for run, (trouble, _) in TROUBLES.items():
        agent = agent_group.agent(run)
        await agent.ask(LARGE)
        with trouble(processes):
            for _ in range(ASKED):
                await agent.ask(LARGE)
        await until(lambda: _kept_again(processes, agent_group))


def test_a_spool_that_cannot_be_written_is_said_in_one_sentence(data: Path) -> None:
    with small_disk(data / "spool", "ro"):
        line = command("up", "--data", str(data), "--proxy-port", "0", "--api-port", "0")
        done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout) == (125, "")
    (said,) = done.stderr.splitlines()
    assert "Read-only file system" in said
    assert str(data / "spool") in said
    assert "--data DIR" in said


async def _kept_again(processes: RunningUp, agent_group: AgentGroup) -> bool:
    """Ask once more, in a new run: whether it is in the record, whole."""
    seen = await agent_group.agent(f"later-{len(agent_group.runs)}").ask("/whole?size=10")
    if seen.end != "whole" or seen.refused:
        return False
    run = await get(processes.api, f"/runs/{seen.run}", settled="true")
    return bool(run and run["complete"] and run["exchanges"])
