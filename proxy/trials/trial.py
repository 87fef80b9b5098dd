"""Run one trial: a command, answered from a recording, in a process and a scratch directory of its own, for a limited time."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from calls.model import Exchange
from proxy.capture.command import DEFAULT_ISOLATION, IsolationOptions
from proxy.settings import Settings
from proxy.trials.process import TrialConfig
from proxy.trials.spool_follower import SpoolFollower

GRACE: Final = 3.0
"""Seconds that a command which is stopped may take to end."""

MAX_OUTPUT: Final = 32 << 10
"""Bytes of the command's output that are remembered: the last ones."""

WATCH_INTERVAL: Final = 0.2
"""Seconds between two looks at what a running trial has recorded."""

SCRATCH_VARIABLE: Final = "PLAYHEAD_SCRATCH"
"""The environment variable with a directory of the trial's own, which is removed after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRunner:
    """What the trials of one command line share."""

    settings: Settings
    flags: Mapping[str, Any]
    """The settings that were given on the command line."""

    config: Path | None
    command: Sequence[str]
    limit_s: float
    scratch: Path
    allow_unused: bool = False
    isolation: IsolationOptions = DEFAULT_ISOLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """One replay of the command."""

    name: str
    recording: Path
    called: str
    fork: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    upstreams: Mapping[str, str] = field(default_factory=dict)
    should_stop: Callable[[Mapping[str, Exchange]], bool] | None = None
    """Called with the exchanges that have ended so far; if it returns True, the command is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What came of a trial."""

    code: int | None
    """The exit code of the command; None if there is none."""

    is_timed_out: bool
    was_stopped: bool
    failure: str | None
    """Why the command could not be run."""

    report: Mapping[str, Any] | None
    isolation: str | None
    connections: Sequence[Mapping[str, Any]]
    exchanges: Sequence[Exchange]
    """What the command did, if that was recorded."""

    output: str
    """The end of what it printed."""

    seconds: float


async def run_trial(runner: TrialRunner, trial: TrialPlan) -> TrialResult:
    """Run the trial to its end, or to its time limit."""
    directory = runner.scratch / trial.name
    scratch = directory / "tmp"
    await asyncio.to_thread(scratch.mkdir, parents=True)
    begin = time.monotonic()
    config = _trial_config(runner, trial, directory)
    environment = os.environ | {"TMPDIR": str(scratch), SCRATCH_VARIABLE: str(scratch)}
    # The command inherits the environment, so the option -P takes the place of PYTHONSAFEPATH.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy.trials.process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    follower = SpoolFollower(directory / "spool")
    async with _ended_at_exit(process), asyncio.TaskGroup() as group:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            # It stays open: the process ends with this one, even if this one is killed.
            await process.stdin.drain()
        output = group.create_task(_read_tail(process.stdout))
        stopped = asyncio.Event()
        stopping = group.create_task(_stop_when(process, trial, follower, stopped))
        is_timed_out = not await _wait_for_end(process, runner.limit_s)
        stopping.cancel()
    await asyncio.to_thread(follower.read_more)
    result = _read_json(directory / "result.json") or {}
    return TrialResult(
        code=result.get("code"),
        is_timed_out=is_timed_out,
        was_stopped=stopped.is_set(),
        failure=result.get("failed"),
        report=_read_json(directory / "report.json"),
        isolation=result.get("isolation"),
        connections=result.get("connections", ()),
        exchanges=follower.exchanges(),
        output=output.result(),
        seconds=time.monotonic() - begin,
    )


def _trial_config(runner: TrialRunner, trial: TrialPlan, directory: Path) -> TrialConfig:
    flags = {name: None if value is None else str(value) for name, value in runner.flags.items()}
    return TrialConfig(
        flags=flags,
        config=str(runner.config) if runner.config else None,
        name=trial.name,
        command=list(runner.command),
        recording=str(trial.recording),
        called=trial.called,
        directory=str(directory),
        fork=None if trial.fork is None else dict(trial.fork),
        allow_unused=runner.allow_unused,
        overrides=dict(trial.overrides),
        upstreams=dict(trial.upstreams),
        isolation=runner.isolation.mode,
        watch=runner.isolation.watch,
        allow_local=list(runner.isolation.allow_local),
    )


@asynccontextmanager
async def _ended_at_exit(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """End the process, and what is left of its session, when the block is left for whatever reason."""
    try:
        yield
    finally:
        if process.returncode is None:
            await _stop(process)
        _kill_session(process.pid)
        if process.stdin is not None:
            process.stdin.close()


async def _wait_for_end(process: asyncio.subprocess.Process, limit_s: float) -> bool:
    """Wait until the process ends; stop it after the time limit, and return False."""
    try:
        async with asyncio.timeout(limit_s):
            await process.wait()
    except TimeoutError:
        await _stop(process)
        _kill_session(process.pid)
        return False
    # What the command left in the background would keep its output open.
    _kill_session(process.pid)
    return True


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Have the command end: the process passes the signal on, and then writes what came of it."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        _kill_session(process.pid)
        await process.wait()


def _kill_session(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _stop_when(
    process: asyncio.subprocess.Process, trial: TrialPlan, follower: SpoolFollower, stopped: asyncio.Event
) -> None:
    """Stop the command when its trial says so, and set `stopped`. Never returns otherwise."""
    while True:
        await asyncio.sleep(WATCH_INTERVAL)
        if trial.should_stop is not None:
            follower.read_more()
            if trial.should_stop(follower.ended_exchanges()):
                break
    stopped.set()
    await _stop(process)


async def _read_tail(stream: asyncio.StreamReader) -> str:
    """Read to the end, and return the last of it as text."""
    tail = b""
    while piece := await stream.read(1 << 16):
        tail = (tail + piece)[-MAX_OUTPUT:]
    return tail.decode("utf-8", "replace")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value
