"""Runs to check, made without bytes: an agent that looks a record up and deletes it."""

import dataclasses
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from calls.checking.check import CheckResult, check_run
from calls.checking.checked_run import CheckedRun, CheckedStep
from calls.checking.spec import parse_spec
from calls.model import Call, CallKind, Json, ToolCall, Usage

SECOND = 1_000_000_000


def step(number: int, kind: CallKind = "model", **given: Any) -> CheckedStep:
    """One call; `call` holds the members of its call that matter."""
    members = (
        {"model_requested": "gpt-5", "usage": Usage(input_tokens=100, output_tokens=10)} if kind == "model" else {}
    )
    call = Call(
        exchanges=(f"e{number}",),
        kind=kind,
        provider="openai",
        dialect="openai_chat",
        operation="chat",
        key=f"sha256:{number}",
        profile="openai/1",
        complete=True,
        **members | given.pop("call", {}),
    )
    defaults: dict[str, Any] = {
        "host": "api.openai.com" if kind == "model" else "crm.example.com",
        "method": "POST",
        "path": "/v1/chat/completions" if kind == "model" else "/records",
        "status": 200,
        "outcome": "completed",
        "attempts": 1,
        "started_at": number * SECOND,
        "ended_at": number * SECOND + SECOND // 2,
        "is_unsafe": kind != "model",
        "can_cost": kind == "model",
        "usd": Decimal("0.01") if kind == "model" else None,
    }
    return CheckedStep(number=number, call=call, **defaults | given)


def tool(name: str, arguments: Json, tool_id: str | None = None) -> ToolCall:
    """A requested tool call."""
    return ToolCall(id=tool_id or f"{name}-1", name=name, arguments=arguments)


def deleting_agent(deleted: str = "R-17", *, user: str = "Please delete record R-17.", name: str = "r") -> CheckedRun:
    """The user names a record, the agent finds it, deletes one, and says so."""
    messages: list[Json] = [{"role": "system", "content": "You help."}, {"role": "user", "content": user}]
    found = {"id": "find_record-1", "content": '{"items": [{"id": "R-17", "owner": "Ann"}]}'}
    return CheckedRun(
        name,
        (
            step(1, call={"request": {"messages": messages}, "tool_calls": (tool("find_record", {"query": user}),)}),
            step(2, "tool", method="GET", is_unsafe=False),
            step(
                3,
                call={
                    "request": {"messages": messages},
                    "tool_results": (found,),
                    "tool_calls": (tool("delete_record", {"id": deleted, "force": True}),),
                },
            ),
            step(4, "tool", method="DELETE", path=f"/records/{deleted}"),
            step(5, call={"request": {"messages": messages}, "text": f"Deleted {deleted} [doc-1]."}),
        ),
    )


def with_step(run: CheckedRun, number: int, **changed: Any) -> CheckedRun:
    """The run with one step changed; `call` holds changed members of its call."""
    call = changed.pop("call", {})
    return CheckedRun(
        run.name,
        tuple(
            dataclasses.replace(one, **changed, call=replace(one.call, **call)) if one.number == number else one
            for one in run.steps
        ),
    )


def check(run: CheckedRun, spec: str) -> CheckResult:
    """Check a run against the text of a spec."""
    return check_run(run, parse_spec(spec))


def findings(run: CheckedRun, rule: str) -> list[tuple[int | None, str]]:
    """What one rule, the members of which are given, finds: steps and messages."""
    report = check(run, f"[[rule]]\n{rule}")
    return [(one.step, one.message) for each in report.rules for one in each.findings]
