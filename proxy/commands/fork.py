"""`playhead fork RUN --from K -- CMD` and `playhead resume RUN -- CMD`: replay the first steps, then go on live as another run.

The child holds all that its agent was answered, also what came from the record, so that it can be shown, compared and
replayed like any other run, when its parent is long gone.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

import click

from calls.effects import effects
from proxy.capture.command import (
    NO_WISH,
    CommandResult,
    IsolationWish,
    Work,
    isolation_lines,
    run_command,
    store_escapes,
)
from proxy.commands.record import checked, new_run
from proxy.commands.replay import fetched, verdict, writable
from proxy.errors import Failure
from proxy.processes.command_processes import LOOPBACK, CommandProcesses
from proxy.processes.ports import free
from proxy.processes.store_client import Api, NotFound, lacks, meant, segment
from proxy.processes.user_command import present
from proxy.run_names import file_of
from proxy.settings import Settings
from proxy.terminal.text import counted, printable, typed
from proxy.trust.client_environment import user_proxy
from replay.report import escaped, idle

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkCommand:
    """Which fork."""

    recording: str
    at: int | None
    """The last step from the record; None: the last that there is."""

    run: str | None
    """What the child is to be called."""

    labels: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    allow_unused: bool = False
    report: Path | None = None
    wish: IsolationWish = NO_WISH

    @property
    def of_file(self) -> bool:
        """Whether the recording is a file, which alone says whose run it holds."""
        return file_of(self.recording) is not None


async def fork(settings: Settings, command: Sequence[str], wanted: ForkCommand) -> int:
    """The command's exit code; where it is 0 and the prefix was not followed, or an override not met, 1."""
    present(command)
    if wanted.report:
        writable(wanted.report)
    child = checked(wanted.run) if wanted.run else new_run(time.time())
    async with CommandProcesses(settings) as house:
        port = free(LOOPBACK, 0)
        api = await house.api(port)
        house.agreed(own_worker=True)
        if not wanted.of_file:
            # Its child will be the last.
            wanted = replace(wanted, recording=meant(api, wanted.recording))
        _unused(api, child)
        name = f"fork-{house.started}"
        bundle = await fetched(house, wanted.recording, house.data.replays / f"{name}.jsonl")
        report_file = house.data.replays / f"{name}.json"
        try:
            worker = await house.worker(**_worker(house, wanted, child, bundle, report_file, port))
            api.put(f"/runs/{segment(child)}", _parentage(wanted))
            place = {"proxy": f"http://{LOOPBACK}:{worker.ready['port']}", **worker.ready}
            # Its first steps have had their effects already: what cannot be answered from the recording is not done again.
            ran = await run_command(
                Work(
                    command=command,
                    place=place,
                    run=child,
                    token=house.claimed(child),
                    api=api.url,
                    api_token_file=house.data.api_token_file,
                    passes_other_traffic=False,
                    wish=wanted.wish,
                )
            )
        finally:
            await house.close_workers()
            if bundle.parent == house.data.replays:
                bundle.unlink()
        report = _taken(report_file)
        if report is not None:
            report = escaped(report | {"isolation": ran.isolation, "connections": list(ran.connections)})
        ended, lacking = await _ended(house, child, report, wanted, ran)
    if wanted.report and report is not None:
        wanted.report.write_text(json.dumps(report, indent=2) + "\n")
    words = [*summary(ended, report, wanted.recording, lacking)]
    words += [f"          {line}" for line in isolation_lines(ran, is_replay=True)]
    click.echo("\n".join(map(printable, words)), err=True)
    return ran.code or verdict(report)


def _unused(api: Api, child: str) -> None:
    """Raise Failure where there is such a run: two stories under one name would be none."""
    try:
        api.get(f"/runs/{segment(child)}")
    except NotFound:
        return
    raise Failure(f"there is a run {child} already; name the fork otherwise with --run, or let it have a name of ours")


def _worker(
    house: CommandProcesses, wanted: ForkCommand, child: str, bundle: Path, report_file: Path, api_port: int
) -> Mapping[str, Any]:
    """What the worker is told beside its settings."""
    fork = {"at": wanted.at, "effects": list(wanted.effects), "allow": list(wanted.allow)}
    options = {
        **wanted.overrides,
        "id": child,
        "allow_unused": wanted.allow_unused,
        "report": str(report_file),
        "called": wanted.recording,
        "fork": fork,
    }
    settings, rules = house.settings, effects(wanted.effects, wanted.allow)
    return {
        "mode": "auto",
        # Otherwise what changes something could go past the policy: unseen, or to a host that is always recorded anew.
        "tunnel": [host for host in settings.tunnel.hosts if rules.allows(host)],
        "modes": {host: "auto" if mode == "record" else mode for host, mode in settings.host_modes.items()},
        "own_addresses": [(LOOPBACK, api_port)],
        "upstream_proxy": settings.upstream_proxy or user_proxy(os.environ),
        "replay": [str(bundle)],
        "replay_options": options,
    }


def _parentage(wanted: ForkCommand) -> Mapping[str, Any]:
    """What is known of the child before it begins: a file tells whose run it is only to the worker."""
    said: dict[str, Any] = {"labels": dict(wanted.labels)}
    if not wanted.of_file:
        said["parent"] = wanted.recording
    if wanted.at is not None:
        said["forked_at"] = wanted.at
    return said


def _taken(path: Path) -> dict[str, Any] | None:
    """The report that the worker has left."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    path.unlink()
    return report


async def _ended(
    house: CommandProcesses, child: str, report: Mapping[str, Any] | None, wanted: ForkCommand, ran: CommandResult
) -> tuple[Mapping[str, Any], str | None]:
    """The child as the store has it, and why that may not be all of it."""
    api = await house.api()
    if report is not None:
        fork = report["fork"]
        of_file = {"parent": fork["parent"]} if wanted.of_file else {}
        api.put(f"/runs/{segment(child)}", {**of_file, "forked_at": fork["forked_at"]})
    store_escapes(api, child, ran)
    lacking = lacks(api, child)
    ended: Mapping[str, Any] = api.patch(f"/runs/{segment(child)}", {"ended": True, "isolation": ran.isolation})
    return ended, lacking


def summary(
    run: Mapping[str, Any], report: Mapping[str, Any] | None, recording: str, lacking: str | None = None
) -> Iterator[str]:
    """What became of it, for a person, with what to do next. `lacking` says why the store may not have all of it."""
    if report is None:
        yield f"playhead: the fork {printable(run['id'])} left no report; nothing can be said about it"
        return
    fork = report["fork"]
    name, at = printable(run["id"]), fork["forked_at"]
    steps = "nothing" if at == 0 else "step 1" if at == 1 else f"steps 1 to {at}"
    yield f"playhead: forked {name} from {fork['parent']}: {steps} from the record, then live"
    yield f"          {_counts(run, report, lacking)}"
    if lacking is not None:
        yield f"          what was recorded waits in the spool, it is not all stored yet: {printable(lacking)}"
    yield from idle(report)
    if fork.get("from_checkpoint"):
        steps = "step 1 was" if report["unused"] == 1 else f"steps 1 to {report['unused']} were"
        yield f"          {steps} not asked for again: the command went on from a checkpoint of its own"
    elif report["unused"]:
        left = ", ".join(f"step {one['step']} ({one['asked']})" for one in report["left_over"][:SHOWN])
        yield f"          not asked for: {left}{' and more' if report['unused'] > SHOWN else ''}"
    for one in report["misses"][:SHOWN]:
        yield f"          missed: {one['detail']}"
    yield from _blocked(fork["blocked_calls"])
    yield f"          look: {typed(f'show {name}')}    compare: {typed(f'diff {quote(recording)} {name}')}"
    yield f"          replay: {typed(f'replay {name}', '-- COMMAND')}"


def _blocked(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was not let out, each once, and what would let it out."""
    often = Counter(str(one["asked"]) for one in calls)
    for asked, times in list(often.items())[:SHOWN]:
        method, _, url = asked.partition(" ")
        out = quote(f"{method} {urlsplit(url).hostname}")
        yield f"          blocked{f' {times} times' if times > 1 else ''}: {asked}: it may change something there; --allow {out}"
    if len(often) > SHOWN:
        yield f"          blocked: and {counted(len(often) - SHOWN, 'other request')}"


def _counts(run: Mapping[str, Any], report: Mapping[str, Any], lacking: str | None) -> str:
    """What was free, and what was paid for, as far as that is known."""
    free = report["served"] + report["edited"]
    edited = f", {report['edited']} of them edited" if report["edited"] else ""
    cost = f"${run['known_cost_usd'] or 0:.6f}"
    if lacking is not None:
        cost = "at a cost that is not known yet"
    elif run["unpriced"]:
        cost += f", and {counted(run['unpriced'], 'call')} whose price is not known"
    facts = [f"{counted(free, 'call')} answered free of charge{edited}", f"{report['live']} live ({cost})"]
    if report["fork"]["blocked"]:
        facts.append(f"{report['fork']['blocked']} blocked")
    if report["missed"]:
        facts.append(f"{report['missed']} missed")
    if report.get("allowed"):
        facts.append(f"{report['allowed']} to hosts that may always be asked, unrecorded")
    return ", ".join(facts)
