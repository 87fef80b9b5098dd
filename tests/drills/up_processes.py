"""Run `playhead up` as a process that may be killed; find its processes, and read what it has recorded."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from calls.model import Exchange
from store.bundle.bundle import Bundle, read_bundle
from tests.drills.ledger import Comparison, Ledger
from tests.drills.upstream import Upstream
from tests.support.api import authorization, ready_words
from tests.support.service import command, surroundings

STARTED, STOPPED = 60, 10
"""The seconds that a start may take in a test, and that a stop may take by contract."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by its id and its start time, because ids are used again."""

    pid: int
    started: str
    command: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Return the running process with an id."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return None
        # A leader that has ended is a zombie while its threads, and so its sockets, still live.
        return None if stat[0] == "Z" and int(stat[17]) <= 1 else cls(pid, stat[19], command)

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        now = Process.of(self.pid)
        return now is not None and now.started == self.started

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)


def descendants(pid: int) -> list[Process]:
    """Return all running descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        waiting += children
        found += [process for child in children if (process := Process.of(child))]
    return found


def find_processes(data: Path) -> list[Process]:
    """Return all running processes with a data directory on their command line: Postgres, and what creates it."""
    found = (Process.of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in found if process and str(data) in process.command]


@dataclass
class RunningUp:
    """A running `playhead up`."""

    data: Path
    process: asyncio.subprocess.Process
    ready: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """The worker's port."""
        return urlsplit(self.ready["proxy"]).port or 0

    @property
    def api(self) -> str:
        """The address of the API."""
        return self.ready["api"]

    @property
    def workers(self) -> list[Process]:
        """Return its worker processes."""
        return [one for one in descendants(self.process.pid) if "proxy.worker.process" in one.command]

    @property
    def store_server(self) -> Process:
        """Return its store server, or None while it is restarted."""
        return next(one for one in descendants(self.process.pid) if "proxy.processes.store_server" in one.command)

    @property
    def postmaster(self) -> Process:
        """Return the embedded Postgres."""
        found = Process.of(int((self.data / "pg/data/postmaster.pid").read_text().split()[0]))
        assert found
        return found

    async def stop(self, patience: float = 60) -> float:
        """Stop it as a service manager does; return the seconds. It must exit cleanly within the time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(patience):
            code = await self.process.wait()
        assert code == 0, f"playhead up ended with {code}"
        return loop.time() - began


@asynccontextmanager
async def up(
    data: Path, *flags: str, config: str = "", env: Mapping[str, str] | None = None
) -> AsyncIterator[RunningUp]:
    """Start it on free ports, unless `flags` give them; stop it at the end of the block if it is still running."""
    file = data.with_suffix(".toml")
    file.write_text(config)
    process = await asyncio.create_subprocess_exec(
        *command("up", "--proxy-port", "0", "--api-port", "0", "--data", str(data), "--config", str(file), *flags),
        stdout=asyncio.subprocess.PIPE,
        env=environment(env),
    )
    running = RunningUp(data, process)
    try:
        running.ready = await _ready(process)
        yield running
    finally:
        if process.returncode is None:
            await running.stop()


async def _ready(process: asyncio.subprocess.Process) -> dict[str, str]:
    assert process.stdout
    async with asyncio.timeout(STARTED):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready "), f"not ready: {line!r}, exit status {process.returncode}"
    return ready_words(line)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without variables that affect Playhead or a client."""
    ours = surroundings()
    return {name: value for name, value in ours.items() if not name.lower().endswith("_proxy")} | dict(more or {})


async def until[T](question: Callable[[], Awaitable[T | None]], patience: float = 60) -> T:
    """Call a function repeatedly until it returns a result. It polls another process, which sends no events."""
    async with asyncio.timeout(patience):
        while not (answer := await question()):  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.05)
    return answer


async def until_true(condition: Callable[[], bool], patience: float = 60) -> None:
    """Call a function repeatedly until it returns true."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.05)


async def get(api: str, path: str, **query: str) -> Any:
    """Return JSON from the REST API; None if it is not found or the API is not reachable."""
    async with httpx2.AsyncClient(
        base_url=f"{api}/v1", headers=authorization(api), trust_env=False, verify=False, timeout=30
    ) as http:
        try:
            answer = await http.get(path, params=query)
        except httpx2.TransportError:
            return None
    return answer.json() if answer.status_code == 200 else None


async def bundle(api: str, run: str) -> Bundle:
    """Return everything that is recorded of a run, once all acknowledged records are stored."""

    async def is_settled() -> bool:
        calls = await get(api, f"/runs/{run}/calls", settled="true", limit="1")
        return bool(calls and calls["settled"])

    await until(is_settled)
    async with httpx2.AsyncClient(
        base_url=f"{api}/v1", headers=authorization(api), trust_env=False, verify=False, timeout=30
    ) as http:
        answer = await http.get(f"/runs/{run}/bundle")
    return read_bundle(answer.raise_for_status().content.splitlines(keepends=True))


async def load_exchanges(api: str, *runs: str) -> list[Exchange]:
    """Return the exchanges of runs in the order of their steps."""
    return [exchange for run in runs for exchange in (await bundle(api, run)).exchanges]


def read_spools(data: Path) -> bytes:
    """Return the content of all spools."""
    found = []
    for path in (data / "spool").rglob("*"):
        try:
            found.append(path.read_bytes() if path.is_file() else b"")
        except FileNotFoundError:
            continue  # the store server has just forgotten it
    return b"".join(found)


async def kill_process(process: Process) -> None:
    """Kill a process with SIGKILL, and wait until it has ended."""
    process.kill()
    await until_true(lambda: not process.alive)


async def compare_when_sound(processes: RunningUp, ledger: Ledger, source: Upstream, runs: Sequence[str]) -> Comparison:
    """Compare the ledger with the record until it is sound: exchanges that a killed worker left open are closed a
    moment later.
    """
    last = ledger.compare([])

    async def sound() -> bool:
        nonlocal last
        last = ledger.compare(await load_exchanges(processes.api, *runs), source.asked)
        return last.sound

    try:
        # On a busy machine it takes seconds to ask for the bundles of thirty runs once.
        await until(sound, patience=60)
    except TimeoutError:
        pass  # the caller sees in the comparison what is wrong
    return last


async def save_bundle(api: str, run: str, path: Path) -> Path:
    """Save the bundle of a run as a file."""
    async with httpx2.AsyncClient(
        base_url=f"{api}/v1", headers=authorization(api), trust_env=False, verify=False, timeout=30
    ) as http:
        answer = await http.get(f"/runs/{run}/bundle")
    path.write_bytes(answer.raise_for_status().content)  # noqa: ASYNC240 - nobody else waits
    return path
