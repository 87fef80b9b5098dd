"""`playhead record -- CMD`: run a command and record its calls as one run."""

import asyncio
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from proxy.capture.command import (
    DEFAULT_ISOLATION,
    CommandPlan,
    CommandResult,
    IsolationOptions,
    PreparedCommand,
    import_while_waiting,
    isolation_lines,
    run_command,
    store_escapes,
    with_worker_ends,
)
from proxy.capture.pinned import environment_label, pinned_by_label, unresolved_label, variables_to_pin
from proxy.commands.code_version import add_version, code_labels
from proxy.effects.launch import EffectsOptions, note_exit
from proxy.errors import FAILURE_EXIT_CODE, Failure, first_exception
from proxy.processes.command_processes import LOOPBACK, CommandProcesses
from proxy.processes.ports import reserve_port
from proxy.processes.settings_match import differing_settings
from proxy.processes.store_client import DOT_SEGMENTS, Api, NotFound, StoreUnavailable, path_segment, settled_run
from proxy.processes.store_connection import StoreConnection
from proxy.processes.user_command import require_command
from proxy.settings import Settings
from proxy.terminal.render_run import MAX_NAMED, outcome_word
from proxy.terminal.text import count_text, next_command, printable
from proxy.terminal.waiting import show_waiting
from proxy.trust.client_environment import environment_problems, user_proxy
from replay.pinned import ENVIRONMENT_LABEL

RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
OPEN_RUN_TIMEOUT = 5.0
"""Seconds that the store server may take to open a run."""

STORE_CHECKS = 6
"""How many times to ask the store server whether the run is completely stored; each request waits up to ten seconds."""


async def record(
    settings: Settings,
    command: Sequence[str],
    *,
    run: str | None,
    labels: Mapping[str, str],
    code_directory: Path | None = None,
    append: bool = False,
    quiet: bool = False,
    isolation: IsolationOptions = DEFAULT_ISOLATION,
    effects: EffectsOptions | None = None,
) -> int:
    """Run the command, record its calls as one run, and return its exit code.

    `code_directory`: a directory whose Git repository gives the run labels.
    """
    is_named, run = run is not None, check_run_id(run) if run else new_run_id(time.time())
    require_command(command)
    async with CommandProcesses(settings) as processes, PreparedCommand() as prepared:
        may_exist = is_named and _may_have_runs(processes)
        with reserve_port(LOOPBACK, 0) as port:
            store, worker_info, version = await _start_processes(
                processes,
                port,
                code_directory,
                partial(prepared.start, isolation),
                needs_store=append or may_exist,
            )
        labels = {**version, **environment_label(variables_to_pin(os.environ)), **labels}
        processes.require_same_profiles(own_worker="mode" not in worker_info)
        if worker_info.get("apart"):
            click.echo(f"playhead: {printable(worker_info['apart'])}", err=True)
        if may_exist and not append and worker_info.get("mode") != "auto":
            _refuse_to_append(await _started_store(store), run)
        if append:
            labels = _with_earlier_version(await _started_store(store), run, labels)
        opened_early = None if store.is_starting else _open_run(await store.api(), run, labels)
        for sentence in environment_problems(os.environ):
            click.echo(f"playhead: {sentence}", err=True)
        plan = CommandPlan(
            command=command,
            worker_info=worker_info,
            run=run,
            token=processes.claim_run(run),
            api=store.url,
            api_token_file=processes.data.api_token_file,
            project=settings.project,
            passes_other_traffic=True,
            isolation=isolation,
            effects=effects,
            pinned=pinned_by_label(labels) or None,
            prepared=prepared,
        )
        result, opened = await _run_and_open(plan, processes, store, labels, opened_early)
        if isinstance(opened, Failure):
            click.echo("\n".join([_unstored_text(run, labels, opened), *_indented_isolation_lines(result)]), err=True)
            return result.code or FAILURE_EXIT_CODE
        words = await _stored_text(processes, run, None if opened else labels, worker_info, result)
        if not quiet:
            click.echo("\n".join([words, *_indented_isolation_lines(result)]), err=True)
    return result.code


async def _run_and_open(
    plan: CommandPlan,
    processes: CommandProcesses,
    store: StoreConnection,
    labels: Mapping[str, str],
    opened_early: bool | None,
) -> tuple[CommandResult, bool | Failure]:
    """Run the command, and meanwhile create its run if that was not tried early. Return whether it was created."""
    run = plan.run
    try:
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(_open_later(store, run, labels)) if opened_early is None else None
            result = await run_command(plan)
            if plan.effects is not None:
                _note_exit(plan.worker_info, run, processes.run_token(run), result.code)
            result = with_worker_ends(result, await processes.close_workers())
            if opening is not None:
                with show_waiting("starting the store server"):
                    await opening
    except BaseExceptionGroup as failures:
        raise first_exception(failures) from None
    return result, opening.result() if opening is not None else bool(opened_early)


async def _stored_text(
    processes: CommandProcesses,
    run: str,
    unset_labels: Mapping[str, str] | None,
    worker_info: Mapping[str, Any],
    result: CommandResult,
) -> str:
    """Wait until the run is stored, end it, and return its summary. `unset_labels`: those of a run that is not created yet."""
    try:
        api = await processes.connect_store_server(may_create=True)
        with show_waiting("waiting until the run is stored"):
            return _finish_run(api, run, unset_labels, worker_info, result)
    except StoreUnavailable as away:
        return (
            f"playhead: {printable(run)} waits in the spool and cannot be shown yet: {printable(str(away))}\n"
            f"          look again: {next_command(f'show {printable(run)}')}"
            + ("; its labels are not kept" if unset_labels else "")
        )


def _may_have_runs(processes: CommandProcesses) -> bool:
    """Whether something may have been recorded into the data directory before; False for a new one."""
    data = processes.data
    has_spools = data.spools.exists() and any(data.spools.iterdir())
    return processes.settings.database_url is not None or data.postgres.exists() or has_spools


async def _started_store(store: StoreConnection) -> Api:
    """Return a client of the store server once it has started. Raises Failure."""
    with show_waiting("starting the store server"):
        return await store.api()


async def _open_later(store: StoreConnection, run: str, labels: Mapping[str, str]) -> bool | Failure:
    """Create the run when the store server has started, while the command runs. The Failure is of one that cannot be started."""
    try:
        api = await store.api()
    except Failure as failure:
        return failure
    try:
        await asyncio.to_thread(_put_run, api, run, labels)
    except Failure:
        # Whoever finishes the run tries again, and reports it.
        return False
    return True


def _unstored_text(run: str, labels: Mapping[str, str], why: Failure) -> str:
    """Say what became of a run whose store server could not be started."""
    name = printable(run)
    return (
        f"playhead: {name} is recorded but not stored: the store server could not be started: {printable(str(why))}\n"
        f"          all of it waits in the spool, and the next store server stores it; look then: {next_command(f'show {name}')}"
        + ("; its labels are not kept" if labels else "")
    )


def _note_exit(worker_info: Mapping[str, Any], run: str, token: str | None, code: int) -> None:
    """Record how the command ended, so that a replay that ends otherwise says so."""
    control = worker_info.get("control")
    if not control or not note_exit(control, run, token, code):
        click.echo(
            "playhead: the effects of this command were not recorded: its proxy worker takes none; restart `playhead up` if one runs",
            err=True,
        )


def _indented_isolation_lines(result: CommandResult) -> list[str]:
    """Return the summary's lines about isolation, indented."""
    return [f"          {printable(line)}" for line in isolation_lines(result, is_replay=False)]


def _refuse_to_append(api: Api, run: str) -> None:
    """Raise Failure if a recording of this name exists."""
    try:
        found = api.get(f"/runs/{path_segment(run)}")
    except (NotFound, StoreUnavailable):
        return
    if found["exchanges"]:
        raise Failure(
            f"run {run} exists already, with {count_text(found['calls'], 'call')} since {found['started_at'][:19]}Z, and a replay"
            " would answer from both recordings; choose another --run ID, or add to it with --append"
        )


def _with_earlier_version(api: Api, run: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels with the versions of the code that the run was recorded with before."""
    try:
        known: Mapping[str, str] = api.get(f"/runs/{path_segment(run)}")["labels"]
    except (NotFound, StoreUnavailable):
        return labels
    first = {ENVIRONMENT_LABEL: known[ENVIRONMENT_LABEL]} if ENVIRONMENT_LABEL in known else {}
    return add_version(known, labels) | first


def _open_run(api: Api, run: str, labels: Mapping[str, str]) -> bool:
    """Create the run. Return False if the store is unavailable: then it is created when the command has ended."""
    try:
        _put_run(api, run, labels)
    except StoreUnavailable as away:
        click.echo(f"playhead: {printable(str(away))} The command runs, and is recorded into the spool.", err=True)
        return False
    return True


def _put_run(api: Api, run: str, labels: Mapping[str, str]) -> None:
    api.put(f"/runs/{path_segment(run)}", {"labels": dict(labels)}, timeout=OPEN_RUN_TIMEOUT)


def _finish_run(
    api: Api,
    run: str,
    labels: Mapping[str, str] | None,
    worker_info: Mapping[str, Any],
    result: CommandResult,
) -> str:
    """End the run and return its summary. `labels` are set first if the run could not be created earlier."""
    if labels is not None:
        _put_run(api, run, labels)
    store_escapes(api, run, result)
    stored, missing = settled_run(api, run, STORE_CHECKS)
    calls = list(api.list_items(f"/runs/{path_segment(run)}/calls", limit=500)) if stored["exchanges"] else []
    changes = {"ended": True, "succeeded": result.code == 0, "isolation": result.isolation}
    whole = api.patch(f"/runs/{path_segment(run)}", changes | {"labels": unresolved_label(result.unresolved_names)})
    if result.code == os.EX_TEMPFAIL:
        # Programs that wait for a person end with it.
        whole["waiting"] = api.get(f"/runs/{path_segment(run)}")["waiting"]
    auto_session = _auto_session_text(api, run) if worker_info.get("mode") == "auto" else None
    return auto_session or summary_text(whole, calls, missing, effects=0 if calls else _effects_count(api, run))


def _effects_count(api: Api, run: str) -> int:
    """Count what a run has beside calls: effects of programs, steps of frameworks, questions to people."""
    return sum(int(one["count"]) for one in api.get(f"/runs/{path_segment(run)}/effects/sums")["items"])


def _auto_session_text(api: Api, run: str) -> str | None:
    """Return the outcome of an auto session, or None if the run had no recording to answer from."""
    try:
        report = api.get(f"/replays/{path_segment(run)}")
    except NotFound:
        return None
    if report.get("candidate") in (None, run) or "generation" not in report:
        return None
    generation, name = report["generation"], printable(run)
    head = f"playhead: {name}: {report['served']} answered from the record, {report['live']} live\n          "
    if generation["run"]:
        return f"{head}generation {printable(generation['run'])} is replayed from now on: {next_command(f'replay {name}', '-- COMMAND')}"
    if generation["why"]:
        note = f"; what went out is kept as run {printable(report['candidate'])}" if report["live"] else ""
        return f"{head}its recording is unchanged: {printable(generation['why'])}{note}"
    return f"{head}nothing was missing; its recording is unchanged"


async def _start_processes(
    processes: CommandProcesses,
    port: int,
    code_directory: Path | None,
    prepare: Callable[[], Awaitable[None]],
    *,
    needs_store: bool,
) -> tuple[StoreConnection, Mapping[str, Any], dict[str, str]]:
    """Start the worker, and beside it `prepare` the command and ask Git: each takes a while. The store server may still start then.

    Where nothing `needs_store` before the command begins, it starts when the worker has.
    """
    try:
        async with asyncio.TaskGroup() as group:
            version = group.create_task(asyncio.to_thread(code_labels, code_directory)) if code_directory else None
            worker_info = group.create_task(_find_worker(processes, port))
            after = None if needs_store else worker_info
            store = group.create_task(processes.reach_store_server(port, stays_ready=True, after=after))
            # Their processes have been started when this task continues.
            await asyncio.sleep(0)
            import_while_waiting()
            await prepare()
    except* Failure as failures:
        raise failures.exceptions[0] from None
    return store.result(), worker_info.result(), version.result() if version else {}


def check_run_id(run: str) -> str:
    """Return the run id that a user chose. Raise Failure if it is invalid."""
    if RUN_ID.fullmatch(run) and run not in DOT_SEGMENTS:
        return run
    raise Failure(f"{run!r} cannot be a run id: use 1 to 128 of the characters A-Z a-z 0-9 . _ : -")


def new_run_id(now: float) -> str:
    """Return a run id that is easy to read and type: the time in UTC and a few random letters."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + secrets.token_hex(2)


async def _find_worker(processes: CommandProcesses, api_port: int) -> Mapping[str, Any]:
    """Return the worker for the command's traffic: that of the running `up` if it records, otherwise a new one."""
    note = processes.find_up()
    apart = ""
    if note is not None and note["mode"] in ("record", "auto"):
        apart = _separation_reason(processes.settings, note)
        if not apart:
            return note
    above = processes.settings.upstream_proxy or user_proxy(os.environ)
    worker = await processes.start_own_worker(
        mode="record", own_addresses=[("127.0.0.1", api_port)], upstream_proxy=above
    )
    return {"proxy": f"http://127.0.0.1:{worker.ready['port']}", "apart": apart, **worker.ready}


def _separation_reason(settings: Settings, up: Mapping[str, Any]) -> str:
    """Name the settings that differ from those of the running `up`. Raise Failure if only its workers can serve the command."""
    names = differing_settings(settings, up.get("settings", {}))
    if not names:
        return ""
    words = f"{' and '.join(names)}: set otherwise here than for the `playhead up` that runs on {settings.data}"
    if up["mode"] == "auto":
        raise Failure(
            f"{words}, which answers what it has recorded, by its own settings; start that again with these, or give this"
            " command a directory of its own with --data"
        )
    return f"{words}; this command has a worker of its own, which goes by the settings here"


def _incomplete_steps(calls: Sequence[Mapping[str, Any]]) -> str:
    """Name the steps whose answers are not whole."""
    words = [(call["step"], outcome_word(call)) for call in calls if not call["complete"]]
    steps = [f"step {step} {word}" for step, word in words[:MAX_NAMED]]
    steps += [f"and {len(words) - MAX_NAMED:,} more"] if len(words) > MAX_NAMED else []
    # What is truncated in a run without gaps is so by the limit, and if no answer is, a request.
    is_limit_met = not words or any(word == "truncated" for _, word in words)
    return ", ".join(steps) + (f"{'; ' if steps else ''}a body was larger than body_limit" if is_limit_met else "")


def summary_text(
    run: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    missing: str | None = None,
    *,
    effects: int = 0,
) -> str:
    """Summarise what was recorded and what to type next. `missing` says why the store may not have all of it."""
    models = sum(call["kind"] == "model" for call in calls)
    tools = len(calls) - models
    tokens = sum((call["usage"]["input_tokens"] or 0) + (call["usage"]["output_tokens"] or 0) for call in calls)
    facts = [f"{count_text(len(calls), 'call')} ({models} model, {tools} other)", count_text(tokens, "token")]
    if run["gaps"]:
        facts.append(f"{count_text(run['gaps'], 'gap')}: not everything could be recorded")
    elif not run["complete"]:
        facts.append(f"incomplete: {_incomplete_steps(calls)}")
    name = printable(run["id"])
    if missing is not None:
        return (
            f"playhead: {name} is not completely stored yet, {len(calls):,} calls are: {printable(missing)}\n"
            f"          the rest waits in the spool; look again: {next_command(f'show {name}')}"
        )
    if waiting := run.get("waiting"):
        what = ", ".join(facts) if calls else "no call"
        return (
            f"playhead: recorded {name}: {what}; {count_text(waiting, 'question')} {'waits' if waiting == 1 else 'wait'} for an answer\n"
            f"          look: {next_command(f'waiting {name}')}    answer: {next_command(f'answer {name}', '--value TEXT')}"
        )
    if not calls and effects:
        return (
            f"playhead: recorded no call under {name}, but {count_text(effects, 'effect')} of its programs and frameworks\n"
            f"          look: {next_command(f'show {name}', '--effects')}    replay: {next_command(f'replay {name}', '-- COMMAND')}"
        )
    if not calls and run.get("isolation") == "captive":
        # No client of a captive command can bypass the proxy.
        return f"playhead: recorded nothing under {name}: the command made no call"
    if not calls:
        return (
            f"playhead: recorded nothing under {name}: no call came through the proxy\n"
            "          see which clients would escape: playhead doctor"
        )
    return (
        f"playhead: recorded {name}: {', '.join(facts)}\n"
        f"          look: {next_command(f'show {name}')}    replay: {next_command(f'replay {name}', '-- COMMAND')}"
    )
