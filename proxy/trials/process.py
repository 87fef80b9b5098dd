"""The process of one trial: `python -m proxy.trials.process`. It reads its configuration from stdin.

It runs the command as `playhead replay` does, in a session of its own, so that a trial that takes too long can be ended with all the
processes that it started. What the command did is left in a spool in the trial's directory.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from proxy.capture.command import CommandPlan, CommandResult, IsolationOptions, run_command
from proxy.errors import Failure, first_exception
from proxy.processes.command_processes import LOOPBACK, CommandProcesses
from proxy.settings import Settings, load_settings
from proxy.trust.client_environment import replay_ca_file, user_proxy
from store.datadir import DataDir


class TrialConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration, sent as one JSON line."""

    flags: dict[str, str | None]
    """The settings that were given on the command line."""

    config: str | None
    name: str
    command: list[str]
    recording: str
    """The path of a file with the recording."""

    called: str
    """The recording's name in suggested commands."""

    directory: str
    """A directory of this trial alone. It gets `report.json`, `result.json` and `spool`."""

    fork: dict[str, Any] | None
    """How the replay leaves the record (`replay.requested_options`); None: it does not, and what it does is not recorded."""

    allow_unused: bool
    overrides: dict[str, Any]
    upstreams: dict[str, str]
    """Origins to connect to in place of hosts, beside those of the settings."""

    isolation: str
    watch: str
    allow_local: list[tuple[str, int]]

    @property
    def is_live(self) -> bool:
        """Whether requests may go out."""
        return self.fork is not None and not self.fork.get("offline")


async def run(trial: TrialConfig) -> CommandResult:
    """Run the command behind a worker of its own."""
    async with CommandProcesses(load_settings(trial.flags, Path(trial.config) if trial.config else None)) as processes:
        worker = await processes.start_worker(**_worker_changes(trial, processes.settings, processes.data))
        worker_info = {"proxy": f"http://{LOOPBACK}:{worker.ready['port']}", **worker.ready}
        if not trial.is_live:
            worker_info["roots"] = replay_ca_file(worker.ready, processes.settings.tunnel.hosts, os.environ)
        plan = CommandPlan(
            command=trial.command,
            worker_info=worker_info,
            run=trial.name,
            token=processes.run_token(trial.name),
            passes_other_traffic=False,
            isolation=IsolationOptions(
                mode=trial.isolation,  # type: ignore[arg-type] # one of its words
                allow_local=tuple(trial.allow_local),
                watch=trial.watch,  # type: ignore[arg-type] # one of its words
            ),
        )
        try:
            return await run_command(plan)
        finally:
            await processes.close_workers()


def _worker_changes(trial: TrialConfig, settings: Settings, data: DataDir) -> dict[str, Any]:
    """Return how the worker's configuration differs from that of a worker that records."""
    directory = Path(trial.directory)
    options = {
        **trial.overrides,
        "id": trial.name,
        "report": str(directory / "report.json"),
        "called": trial.called,
        "allow_unused": trial.allow_unused,
        "listed": True,
    }
    # A host whose own mode lets requests out would escape the policy; passthrough is the user's exception in every replay.
    modes = {host: mode for host, mode in settings.host_modes.items() if mode == "passthrough"}
    changes: dict[str, Any] = {"replay": [trial.recording], "modes": modes, "tunnel": ()}
    if trial.fork is None:
        return changes | {"mode": "replay", "spooled": False, "replay_options": options}
    note = data.read_notice("store")
    port = urlsplit(note["api"]).port if note else None
    return changes | {
        "mode": "auto",
        # A command whose requests go out must not reach Playhead's own API through its worker.
        "own_addresses": [(LOOPBACK, port)] if port else [],
        "spool": str(directory / "spool"),
        "upstreams": {**settings.upstreams, **trial.upstreams},
        "upstream_proxy": settings.upstream_proxy or user_proxy(os.environ),
        "replay_options": {**options, "fork": trial.fork},
    }


def _end_with_parent(parent: int) -> None:
    """Wait until the parent's end of the pipe is closed. It is so only if the parent was killed: then end this whole session."""
    os.read(parent, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Run the trial, and write its result."""
    trial = msgspec.json.decode(sys.stdin.buffer.readline(), type=TrialConfig)
    # The command gets an empty stdin, and the parent keeps the other end of this one open.
    threading.Thread(target=_end_with_parent, args=(os.dup(0),), daemon=True).start()
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    result: dict[str, Any]
    try:
        outcome = asyncio.run(run(trial))
        result = {
            "code": outcome.code,
            "isolation": outcome.isolation,
            "connections": list(outcome.connections),
            "not_captive_reason": outcome.not_captive_reason,
        }
    except* Failure as failures:
        result = {"failed": str(first_exception(failures))}
    (Path(trial.directory) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
