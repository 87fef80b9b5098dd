"""`playhead record -- CMD`: run a command and record its calls as one run."""

import asyncio
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from proxy.capture.command import (
    NO_WISH,
    CommandResult,
    IsolationWish,
    Work,
    isolation_lines,
    run_command,
    store_escapes,
)
from proxy.doctor.doctor import surroundings
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.ports import free
from proxy.processes.settings_match import others
from proxy.processes.store_client import DOTS, Api, Away, NotFound, lacks, segment
from proxy.processes.user_command import present
from proxy.settings import Settings
from proxy.terminal.text import counted, printable, typed
from proxy.trust.client_environment import user_proxy

RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
PATIENCE = 5.0
"""Seconds that the store may take to open a run."""

ASKED = 6
"""How many times the store server is asked whether all is stored: each time it takes ten seconds to say no."""


async def record(
    settings: Settings,
    command: Sequence[str],
    *,
    run: str | None,
    labels: Mapping[str, str],
    append: bool = False,
    quiet: bool = False,
    wish: IsolationWish = NO_WISH,
) -> int:
    """Run the command under a run of its own and return its exit code."""
    is_named, run = run is not None, checked(run) if run else new_run(time.time())
    present(command)
    async with CommandProcesses(settings) as house:
        port = free("127.0.0.1", 0)
        api, place = await _started(house, port)
        house.agreed(own_worker="mode" not in place)
        if place.get("apart"):
            click.echo(f"playhead: {printable(place['apart'])}", err=True)
        if is_named and not append and place.get("mode") != "auto":
            _refuse_to_append(api, run)
        opened = _opened(api, run, labels)
        for sentence in surroundings(os.environ):
            click.echo(f"playhead: {sentence}", err=True)
        ran = await run_command(
            Work(
                command=command,
                place=place,
                run=run,
                token=house.claimed(run),
                api=api.url,
                api_token_file=house.data.api_token_file,
                passes_other_traffic=True,
                wish=wish,
            )
        )
        code = ran.code
        await house.close_workers()
        try:
            words = _ended(await house.api(), run, None if opened else labels, place, ran)
        except Away as away:
            words = (
                f"playhead: {printable(run)} waits in the spool, and cannot be shown yet: {printable(str(away))}\n"
                f"          look again: {typed(f'show {printable(run)}')}"
                + ("; its labels are not kept" if labels and not opened else "")
            )
        if not quiet:
            click.echo("\n".join([words, *_indented(ran)]), err=True)
    return code


def _indented(ran: CommandResult) -> list[str]:
    """What the summary says of isolation."""
    return [f"          {printable(line)}" for line in isolation_lines(ran, is_replay=False)]


def _refuse_to_append(api: Api, run: str) -> None:
    """Raise Failure where there is a recording of this name: in mode `auto`, which answers from it, it is wanted."""
    try:
        found = api.get(f"/runs/{segment(run)}")
    except (NotFound, Away):
        return
    if found["exchanges"]:
        raise Failure(
            f"run {run} exists already, with {counted(found['calls'], 'call')} since {found['started_at'][:19]}Z: recording"
            " under its name would add to it, and its replay would be of both; choose another --run ID, or add to it"
            " with --append"
        )


def _opened(api: Api, run: str, labels: Mapping[str, str]) -> bool:
    """Make the run. A store that is away is no reason not to record: False, and it is made when the command has ended."""
    try:
        api.put(f"/runs/{segment(run)}", {"labels": dict(labels)}, timeout=PATIENCE)
    except Away as away:
        click.echo(f"playhead: {printable(str(away))} The command runs, and is recorded into the spool.", err=True)
        return False
    return True


def _ended(api: Api, run: str, labels: Mapping[str, str] | None, place: Mapping[str, Any], ran: CommandResult) -> str:
    """End the run, and say what it came to. `labels` are those that it has still to be given."""
    if labels is not None:
        api.put(f"/runs/{segment(run)}", {"labels": dict(labels)}, timeout=PATIENCE)
    store_escapes(api, run, ran)
    lacking = lacks(api, run, ASKED)
    calls = list(api.each(f"/runs/{segment(run)}/calls", limit=500))
    whole = api.patch(f"/runs/{segment(run)}", {"ended": True, "succeeded": ran.code == 0, "isolation": ran.isolation})
    taken = _taken(api, run) if place.get("mode") == "auto" else None
    return taken or summary(whole, calls, lacking)


def _taken(api: Api, run: str) -> str | None:
    """What a run that was answered where it was recorded has come to. None where it had no recording."""
    try:
        report = api.get(f"/replays/{segment(run)}")
    except NotFound:
        return None
    if report.get("candidate") in (None, run) or "generation" not in report:
        return None
    made, name = report["generation"], printable(run)
    head = f"playhead: {name}: {report['served']} answered from the record, {report['live']} live\n          "
    if made["run"]:
        return f"{head}generation {printable(made['run'])} is replayed from now on: {typed(f'replay {name}', '-- COMMAND')}"
    if made["why"]:
        kept = f"; what went out is kept as run {printable(report['candidate'])}" if report["live"] else ""
        return f"{head}its recording stays as it was: {printable(made['why'])}{kept}"
    return f"{head}nothing was lacking; its recording stays as it was"


async def _started(house: CommandProcesses, port: int) -> tuple[Api, Mapping[str, Any]]:
    """Store server and worker, side by side: each takes a second or two to start. Ends only when neither is starting any more."""
    try:
        async with asyncio.TaskGroup() as group:
            api, place = group.create_task(house.api(port)), group.create_task(_place(house, port))
    except* Failure as failures:
        raise failures.exceptions[0] from None
    return api.result(), place.result()


def checked(run: str) -> str:
    """The run id a user chose. Raises Failure when it cannot be one."""
    if RUN_ID.fullmatch(run) and run not in DOTS:
        return run
    raise Failure(f"{run!r} cannot be a run id: use 1 to 128 of the characters A-Z a-z 0-9 . _ : -")


def new_run(now: float) -> str:
    """A run id for a person to read and type: the time in UTC, and a few random letters."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + secrets.token_hex(2)


async def _place(house: CommandProcesses, api_port: int) -> Mapping[str, Any]:
    """Where the command's traffic goes: to the running `up`, when it records, or to a worker of our own."""
    note = house.running_up()
    apart = ""
    if note is not None and note["mode"] in ("record", "auto"):
        apart = _apart(house.settings, note)
        if not apart:
            return note
    above = house.settings.upstream_proxy or user_proxy(os.environ)
    worker = await house.worker(mode="record", own_addresses=[("127.0.0.1", api_port)], upstream_proxy=above)
    return {"proxy": f"http://127.0.0.1:{worker.ready['port']}", "apart": apart, **worker.ready}


def _apart(settings: Settings, up: Mapping[str, Any]) -> str:
    """What is set here otherwise than for the running `up`, in words. Raises Failure where no other worker can stand in for it."""
    names = others(settings, up.get("settings", {}))
    if not names:
        return ""
    words = f"{' and '.join(names)}: set otherwise here than for the `playhead up` that runs on {settings.data}"
    if up["mode"] == "auto":
        raise Failure(
            f"{words}, which answers what it has recorded, by its own settings; start that again with these, or give this"
            " command a directory of its own with --data"
        )
    return f"{words}; this command has a worker of its own, which goes by the settings here"


def summary(run: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], lacking: str | None = None) -> str:
    """What was recorded, and what to type next. `lacking` says why the store may not have all of it."""
    models = sum(call["kind"] == "model" for call in calls)
    tools = len(calls) - models
    tokens = sum((call["usage"]["input_tokens"] or 0) + (call["usage"]["output_tokens"] or 0) for call in calls)
    facts = [f"{counted(len(calls), 'call')} ({models} model, {tools} other)", counted(tokens, "token")]
    if run["gaps"]:
        facts.append(f"{counted(run['gaps'], 'gap')}: not everything could be recorded")
    elif not run["complete"]:
        facts.append("incomplete: something of it is cut")
    name = printable(run["id"])
    if lacking is not None:
        return (
            f"playhead: {name} may lack calls as yet, {len(calls):,} are stored: {printable(lacking)}\n"
            f"          what was recorded waits in the spool; look again: {typed(f'show {name}')}"
        )
    if not calls and run.get("isolation") == "captive":
        # Nothing could go past us, whatever the command's clients think of proxies.
        return f"playhead: recorded nothing under {name}: the command made no call"
    if not calls:
        return (
            f"playhead: recorded nothing under {name}: no call came through the proxy\n"
            "          see which clients would escape: playhead doctor"
        )
    return (
        f"playhead: recorded {name}: {', '.join(facts)}\n"
        f"          look: {typed(f'show {name}')}    replay: {typed(f'replay {name}', '-- COMMAND')}"
    )
