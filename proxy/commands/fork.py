"""`playhead fork RUN --after-step K -- CMD` and `playhead resume RUN -- CMD`: replay the first steps, then go on live as another run.

The child stores all answers that its agent got, including those from the recording, so that it can be shown, compared and
replayed after its parent was deleted.
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

from calls.side_effects import parse_side_effects
from proxy.capture.command import (
    DEFAULT_ISOLATION,
    CommandPlan,
    CommandResult,
    IsolationOptions,
    isolation_lines,
    run_command,
    store_escapes,
    with_worker_ends,
)
from proxy.capture.pinned import proxy_label, unresolved_label
from proxy.commands.record import check_run_id, new_run_id
from proxy.commands.replay import fetch_recording, require_recording, require_writable, verdict_exit_code
from proxy.effects.launch import EffectsOptions, note_exit
from proxy.errors import Failure
from proxy.processes.command_processes import LOOPBACK, CommandProcesses
from proxy.processes.ports import reserve_port
from proxy.processes.store_client import Api, NotFound, incomplete_reason, path_segment, resolve_run_name
from proxy.processes.user_command import require_command
from proxy.run_names import recording_path
from proxy.settings import Settings
from proxy.terminal.text import count_text, money, next_command, printable
from proxy.trust.client_environment import user_proxy
from replay.report import idle_override_lines, report_with_escapes

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkCommand:
    """What to fork, and how."""

    recording: str
    after_step: int | None
    """The last step answered from the recording; None means the last step that was answered completely."""

    run: str | None
    """The id of the child; None has one generated."""

    labels: Mapping[str, str] = field(default_factory=dict)
    effects: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    allow_unused: bool = False
    report: Path | None = None
    isolation: IsolationOptions = DEFAULT_ISOLATION

    @property
    def is_from_file(self) -> bool:
        """Whether the recording is a file and not a run of the store."""
        return recording_path(self.recording) is not None


async def fork(settings: Settings, command: Sequence[str], fork_command: ForkCommand) -> int:
    """Run the command. Return its exit code, or 1 if that is 0 and recorded steps or overrides were left unused."""
    require_command(command)
    if fork_command.report:
        require_writable(fork_command.report)
    child = check_run_id(fork_command.run) if fork_command.run else new_run_id(time.time())
    async with CommandProcesses(settings) as processes:
        require_recording(processes, fork_command.recording)
        with reserve_port(LOOPBACK, 0) as port:
            api = await processes.connect_store_server(port, may_create=True)
        processes.require_same_profiles(own_worker=True)
        if not fork_command.is_from_file:
            # Once the child exists, `last` would name the child.
            fork_command = replace(fork_command, recording=resolve_run_name(api, fork_command.recording))
        _require_unused_name(api, child)
        name = f"fork-{processes.started}"
        bundle = await fetch_recording(processes, fork_command.recording, processes.data.replays / f"{name}.jsonl")
        report_file = processes.data.replays / f"{name}.json"
        try:
            worker = await processes.start_own_worker(
                **_worker_changes(processes, fork_command, child, bundle, report_file, port)
            )
            api.put(f"/runs/{path_segment(child)}", _parentage_fields(fork_command))
            worker_info = {"proxy": f"http://{LOOPBACK}:{worker.ready['port']}", **worker.ready}
            # The recorded steps had their effects when they were recorded; traffic past the proxy could repeat them.
            result = await run_command(
                CommandPlan(
                    command=command,
                    worker_info=worker_info,
                    run=child,
                    token=processes.claim_run(child),
                    api=api.url,
                    api_token_file=processes.data.api_token_file,
                    project=settings.project,
                    passes_other_traffic=False,
                    isolation=fork_command.isolation,
                    effects=EffectsOptions(pinned=pinned) if (pinned := worker_info.get("pinned")) else None,
                )
            )
            if pinned and worker_info.get("control"):
                note_exit(worker_info["control"], child, processes.run_token(child), result.code)
        finally:
            ends = await processes.close_workers()
            if bundle.parent == processes.data.replays:
                # An erasure of the run deletes it, too.
                bundle.unlink(missing_ok=True)
        result = with_worker_ends(result, ends)
        report = _take_report(report_file)
        if report is not None:
            report = report_with_escapes(
                report | {"isolation": result.isolation, "connections": list(result.connections)}
            )
        child_run, missing = await _finish_run(processes, child, report, fork_command, result)
    if fork_command.report and report is not None:
        fork_command.report.write_text(json.dumps(report, indent=2) + "\n")
    words = [*summary_lines(child_run, report, fork_command.recording, missing)]
    words += [f"          {line}" for line in isolation_lines(result, is_replay=True)]
    click.echo("\n".join(map(printable, words)), err=True)
    return result.code or verdict_exit_code(report)


def _require_unused_name(api: Api, child: str) -> None:
    """Raise Failure if a run of this name exists."""
    try:
        api.get(f"/runs/{path_segment(child)}")
    except NotFound:
        return
    raise Failure(f"run {child} already exists: choose another --run ID, or omit --run to have one generated")


def _worker_changes(
    processes: CommandProcesses, fork_command: ForkCommand, child: str, bundle: Path, report_file: Path, api_port: int
) -> Mapping[str, Any]:
    """Return how the worker's configuration differs from that of a worker that records."""
    fork = {"at": fork_command.after_step, "effects": list(fork_command.effects)}
    options = {
        **fork_command.overrides,
        "id": child,
        "allow_unused": fork_command.allow_unused,
        "report": str(report_file),
        "called": fork_command.recording,
        "fork": fork,
    }
    settings, rules = processes.settings, parse_side_effects(fork_command.effects, ())
    return {
        "mode": "auto",
        # A tunnelled host, or one whose own mode is record, would bypass the effects policy.
        "tunnel": [host for host in settings.tunnel.hosts if rules.is_host_allowed(host)],
        "modes": {host: "auto" if mode == "record" else mode for host, mode in settings.host_modes.items()},
        "own_addresses": [(LOOPBACK, api_port)],
        "upstream_proxy": settings.upstream_proxy or user_proxy(os.environ),
        "replay": [str(bundle)],
        "replay_options": options,
    }


def _parentage_fields(fork_command: ForkCommand) -> Mapping[str, Any]:
    """Return what is known of the child's origin before it starts: the parent of a file is known only to the worker."""
    fields: dict[str, Any] = {"labels": dict(fork_command.labels)}
    if not fork_command.is_from_file:
        fields["parent"] = fork_command.recording
    if fork_command.after_step is not None:
        fields["forked_at"] = fork_command.after_step
    return fields


def _take_report(path: Path) -> dict[str, Any] | None:
    """Read and delete the report that the worker wrote; None if it wrote none."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    path.unlink()
    return report


async def _finish_run(
    processes: CommandProcesses,
    child: str,
    report: Mapping[str, Any] | None,
    fork_command: ForkCommand,
    result: CommandResult,
) -> tuple[Mapping[str, Any], str | None]:
    """End the child. Return it as stored, and why the store may not have all of it yet."""
    api = await processes.connect_store_server(may_create=True)
    if report is not None:
        fork = report["fork"]
        of_file = {"parent": fork["parent"]} if fork_command.is_from_file else {}
        api.put(f"/runs/{path_segment(child)}", {**of_file, "forked_at": fork["forked_at"]})
    store_escapes(api, child, result)
    missing = incomplete_reason(api, child)
    labels = proxy_label(has_proxy_variables=result.has_proxy_variables) | unresolved_label(result.unresolved_names)
    child_run: Mapping[str, Any] = api.patch(
        f"/runs/{path_segment(child)}", {"ended": True, "isolation": result.isolation, "labels": labels}
    )
    return child_run, missing


def summary_lines(
    run: Mapping[str, Any], report: Mapping[str, Any] | None, recording: str, missing: str | None = None
) -> Iterator[str]:
    """Yield the summary of a fork and the commands to type next. `missing` says why the store may not have all of it."""
    if report is None:
        yield f"playhead: the fork {printable(run['id'])} left no report, so its outcome is unknown"
        return
    fork = report["fork"]
    name, after_step = printable(run["id"]), fork["forked_at"]
    steps = "nothing" if after_step == 0 else "step 1" if after_step == 1 else f"steps 1 to {after_step}"
    yield f"playhead: forked {name} from {fork['parent']}: {steps} from the record, then live"
    yield f"          {_counts_line(run, report, missing)}"
    if missing is not None:
        yield f"          not all stored yet, the rest waits in the spool: {printable(missing)}"
    yield from idle_override_lines(report)
    if fork.get("from_checkpoint"):
        steps = "step 1 was" if report["unused"] == 1 else f"steps 1 to {report['unused']} were"
        yield f"          {steps} not asked for again: the command went on from a checkpoint of its own"
    elif report["unused"]:
        unused_steps = ", ".join(f"step {one['step']} ({one['asked']})" for one in report["unused_steps"][:SHOWN])
        yield f"          not asked for: {unused_steps}{' and more' if report['unused'] > SHOWN else ''}"
    for one in report["misses"][:SHOWN]:
        yield f"          missed: {one['detail']}"
    yield from _blocked_lines(fork["blocked_calls"])
    yield f"          look: {next_command(f'show {name}')}    compare: {next_command(f'diff {quote(recording)} {name}')}"
    yield f"          replay: {next_command(f'replay {name}', '-- COMMAND')}"


def _blocked_lines(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each blocked request once, with the option that would allow it."""
    often = Counter(str(one["asked"]) for one in calls)
    for request, times in list(often.items())[:SHOWN]:
        method, _, url = request.partition(" ")
        rule = quote(f"{method} {urlsplit(url).hostname}=allow")
        often_blocked = f" {times} times" if times > 1 else ""
        yield f"          blocked{often_blocked}: {request}: it may change something there; to let it out: --side-effects {rule}"
    if len(often) > SHOWN:
        yield f"          blocked: and {count_text(len(often) - SHOWN, 'other request')}"


def _counts_line(run: Mapping[str, Any], report: Mapping[str, Any], missing: str | None) -> str:
    """Return how many calls were recorded, live, blocked and missed, and what the live ones cost."""
    free = report["served"] + report["edited"]
    edited = f", {report['edited']} of them edited" if report["edited"] else ""
    cost = money(run["known_cost_usd"] or 0)
    if missing is not None:
        cost = "at a cost that is not known yet"
    elif run["unpriced"]:
        cost += f", and {count_text(run['unpriced'], 'call')} whose price is not known"
    facts = [f"{count_text(free, 'call')} answered free of charge{edited}", f"{report['live']} live ({cost})"]
    if report["fork"]["blocked"]:
        facts.append(f"{report['fork']['blocked']} blocked")
    if report["missed"]:
        facts.append(f"{report['missed']} missed")
    if report.get("allowed"):
        facts.append(f"{report['allowed']} to hosts that may always be asked, unrecorded")
    return ", ".join(facts)
