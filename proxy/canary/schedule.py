"""Shots at their times, while `up` runs: each is a `playhead canary` of its own."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from proxy.canary.canary_settings import CanarySettings
from proxy.errors import FAILURE_EXIT_CODE
from proxy.settings import Settings
from store.retention.rules import parse_duration

type Sleep = Callable[[float], Awaitable[None]]

type RunCommand = Callable[[Sequence[str]], Awaitable[tuple[int, str]]]
"""Runs a command, and returns its exit status and what it printed."""


async def run_canaries(settings: Settings, say: Callable[[str], None]) -> None:
    """Ask every canary that has an interval, until the task is cancelled."""
    await repeat_canaries(settings.canary, lambda name: shot_command(settings, name), say, asyncio.sleep, _run_command)


async def repeat_canaries(
    canaries: Sequence[CanarySettings],
    command: Callable[[str], Sequence[str]],
    say: Callable[[str], None],
    sleep: Sleep,
    run: RunCommand,
) -> None:
    """Run the command of each canary at its interval, and say what a person has to know."""

    async def repeat(canary: CanarySettings, seconds: int) -> None:
        while True:
            await sleep(seconds)
            code, words = await run(command(canary.name))
            if code == 1 or code == FAILURE_EXIT_CODE or "webhook" in words:
                say(f"canary {canary.name}: {words}")

    async with asyncio.TaskGroup() as group:
        for canary in canaries:
            if canary.every is not None and (seconds := parse_duration(canary.every)):
                group.create_task(repeat(canary, seconds))


def shot_command(settings: Settings, name: str) -> list[str]:
    """The command of one shot, with the settings of this process."""
    config = ["--config", str(settings.config)] if settings.config else []
    return [
        sys.executable,
        "-c",
        "from proxy.cli import main; main()",
        "canary",
        "--data",
        str(settings.data),
        *config,
        name,
    ]


async def _run_command(command: Sequence[str]) -> tuple[int, str]:
    """Run a command; it ends if this task does. Return its exit status, and the first lines that it printed."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or os.EX_OK, " ".join(output.decode("utf-8", "replace").split())[:1000]
