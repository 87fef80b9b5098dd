"""`playhead check`: check what runs did against a spec, or propose a spec from good runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calls.checking.check import CheckResult, check_run
from calls.checking.checked_run import CheckedRun, CheckedStep
from calls.checking.proposal import propose_spec
from calls.checking.spec import BadSpec, SpecRule, parse_spec
from calls.model import Call, Exchange
from calls.redaction.redactor import Redactor
from calls.retry_grouping import attempt_of, group_retries, merge_calls
from calls.side_effects import is_read_only
from proxy.errors import Failure, explain_file_errors
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, path_segment, resolve_run_name
from proxy.run_names import missing_file_failure, recording_path, unknown_run_failure
from proxy.worker.recordings import load_file
from store.bundle.bundle import read_bundle
from store.diff.steps import StepReader
from store.pricing.prices import call_cost
from store.query.rest_shapes import path_of


def read_spec(path: Path) -> tuple[SpecRule, ...]:
    """Read a spec. Raise Failure that says what is wrong."""
    if not path.exists():
        raise Failure(
            f"there is no spec {path}: make one from a good run with playhead check --init RUN -o {path}, or name one with --spec"
        )
    with explain_file_errors(path, "spec", "name another one with --spec", BadSpec):
        return parse_spec(path.read_text("utf-8"))


async def check_recordings(
    processes: CommandProcesses, names: Sequence[str], spec: Sequence[SpecRule], reading: StepReader, redactor: Redactor
) -> list[CheckResult]:
    """Check runs and files. Raise Failure if one cannot be read."""
    runs = await load_checked_runs(processes, names, reading, redactor, stays_ready=True)
    return await asyncio.to_thread(lambda: [check_run(run, spec) for run in runs])


async def propose_checks(
    processes: CommandProcesses, names: Sequence[str], reading: StepReader, redactor: Redactor
) -> str:
    """Return the text of a spec that these runs and files satisfy."""
    return propose_spec(await load_checked_runs(processes, names, reading, redactor, stays_ready=True))


async def load_checked_runs(
    processes: CommandProcesses,
    names: Sequence[str],
    reading: StepReader,
    redactor: Redactor,
    *,
    stays_ready: bool = False,
) -> list[CheckedRun]:
    """Load runs and files. Only where a run is named is a store server started or asked."""
    files = {name: path for name in names if (path := _recording_file(name)) is not None}
    loaded = {
        name: await asyncio.to_thread(_load_checked_file, name, path, reading, redactor) for name, path in files.items()
    }
    if others := [name for name in dict.fromkeys(names) if name not in files]:
        with await processes.connect_store_server(stays_ready=stays_ready) as api:
            for name in others:
                loaded[name] = await asyncio.to_thread(_load_checked_run, api, name, reading)
    return [loaded[name] for name in names]


def _recording_file(name: str) -> Path | None:
    """Return the path of a file; None for a run. Raise Failure if a file does not exist."""
    if (file := recording_path(name)) is not None:
        return file
    if "/" in name or name.endswith((".jsonl", ".har", ".yaml")):
        raise missing_file_failure(name)
    return None


def _load_checked_file(name: str, path: Path, reading: StepReader, redactor: Redactor) -> CheckedRun:
    return build_checked_run(name, _in_step_order(load_file(path, redactor, reading.profiles).exchanges), reading)


def _load_checked_run(api: Api, name: str, reading: StepReader) -> CheckedRun:
    run = resolve_run_name(api, name)
    try:
        # What was acknowledged just now is stored first.
        api.get(f"/runs/{path_segment(run)}/calls", settled="true", limit=1)
        lines = b"".join(api.stream_bytes(f"/runs/{path_segment(run)}/bundle", proof="false"))
    except NotFound as error:
        raise unknown_run_failure(run) from error
    return build_checked_run(run, _in_step_order(read_bundle(lines.splitlines(keepends=True)).exchanges), reading)


def _in_step_order(exchanges: Sequence[Exchange]) -> list[Exchange]:
    return sorted(exchanges, key=lambda each: (each.started_at, each.id))


def build_checked_run(name: str, exchanges: Sequence[Exchange], reading: StepReader) -> CheckedRun:
    """Derive the calls of a run from its exchanges, given in step order. Retries and polls of one call are one step."""
    derived = {exchange.id: reading.derive_call(exchange, reading.key(exchange)) for exchange in exchanges}
    numbers = {exchange.id: number for number, exchange in enumerate(exchanges, 1)}
    by_id = {exchange.id: exchange for exchange in exchanges}
    groups = group_retries(attempt_of(exchange, derived[exchange.id]) for exchange in exchanges)
    steps = []
    for group in groups:
        first, last = by_id[group.ids[0]], by_id[group.ids[-1]]
        step = _checked_step(first, last, [derived[name] for name in group.ids], reading)
        steps.append(replace(step, number=numbers[first.id], attempts=group.attempts))
    return CheckedRun(name, tuple(steps))


def _checked_step(first: Exchange, last: Exchange, calls: Sequence[Call], reading: StepReader) -> CheckedStep:
    """Return a step without its number and attempts: the request of its first exchange and the answer of its last."""
    call = calls[0] if len(calls) == 1 else merge_calls(calls)
    route = reading.key(first).route
    status = _status(last)
    cost = call_cost(last, calls[-1])
    return CheckedStep(
        number=0,
        call=call,
        host=route.host,
        method=first.request.method,
        path=path_of(first.request.url) or "/",
        status=status,
        outcome=last.outcome,
        attempts=1,
        started_at=first.started_at,
        ended_at=_end_time(last),
        is_unsafe=call.kind != "model" and not is_read_only(first.request, route),
        can_cost=call.kind == "model" and calls[-1].pending is None and (status is None or status < 300),
        usd=cost.usd if cost else None,
    )


def _status(exchange: Exchange) -> int | None:
    return exchange.response.status if exchange.response else None


def _end_time(exchange: Exchange) -> int | None:
    return None if exchange.ended_at is None else exchange.started_at + exchange.ended_at
