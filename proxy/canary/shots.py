"""One shot of a canary: ask its pinned calls, recorded as a run of its own, add what was found, and tell who waits for news."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from calls.canary.canary_state import CanaryRules, CanaryState, PinnedForms, begin_canary
from calls.canary.distance import answer_words
from calls.canary.draws import draw_pins
from calls.redaction.redactor import Redactor
from proxy.canary.canary_settings import CanarySettings, ModelAddress
from proxy.canary.pinned_calls import PinnedCall, load_pinned_calls
from proxy.canary.traffic import look_at_traffic
from proxy.canary.webhook import call_webhook
from proxy.capture.command import IsolationOptions
from proxy.commands.record import new_run_id, record
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, path_segment
from proxy.settings import Settings
from store.diff.steps import StepReader

TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotResult:
    """What one shot has found."""

    canary: Mapping[str, Any]
    """As `GET /v1/canaries` has it."""

    asked: int
    not_run: int
    spent_usd: float
    unpriced: int
    """Answers whose price is not known, which no budget in USD counts."""

    webhook_problem: str | None = None


async def run_shot(
    settings: Settings, canary: CanarySettings, isolation: IsolationOptions, reading: StepReader, redactor: Redactor
) -> ShotResult:
    """Ask, add what was found, and call the webhook if the model is said to have changed just now. Raises Failure."""
    run = f"canary-{canary.name}-{new_run_id(time.time())}"
    with tempfile.TemporaryDirectory(prefix="playhead-canary-") as scratch:
        directory = Path(scratch)
        async with CommandProcesses(settings) as processes:
            pinned = await load_pinned_calls(processes, canary.calls, reading, redactor, directory)
            with await processes.connect_store_server(stays_ready=True, may_create=True) as api:
                known = _known_canary(api, canary.name)
                traffic, hints = look_at_traffic(api, [one.model for one in pinned], known)
                references = _load_references(api, known) if canary.embeddings or canary.judge else {}
            state = _counted_state(canary, known, pinned)
            # What ordinary traffic shows is looked into sooner.
            times = canary.times * (2 if hints else 1)
            questions = _draw_questions(pinned, state, times, run, references)
            result = await _ask(settings, canary, questions, directory, run, isolation)
            with await processes.connect_store_server(stays_ready=True, may_create=True) as api:
                answers = _with_exchanges(api, run, result)
            shot = {
                "rules": msgspec.to_builtins(_rules(canary)),
                "run": run,
                "answers": answers,
                "failed": result["failed"],
                "problem": result["problem"],
                "traffic": traffic,
                "hints": hints,
            }
            with await processes.connect_store_server(may_create=True) as api:
                canary_state = api.post(f"/canaries/{path_segment(canary.name)}/shots", json=shot)
    if not result["answers"] and canary_state["verdict"] == "unchanged":
        canary_state = {**canary_state, "verdict": "cannot tell", "reason": "nobody answered in this shot"}
    problem = await call_webhook(canary.webhook, canary_state) if canary.webhook and canary_state["is_news"] else None
    return ShotResult(
        canary=canary_state,
        asked=len(result["answers"]) + result["failed"],
        not_run=result["not_run"],
        spent_usd=result["spent_usd"],
        unpriced=result["unpriced"],
        webhook_problem=problem,
    )


def _rules(canary: CanarySettings) -> CanaryRules:
    return CanaryRules(
        references=canary.references,
        baseline=canary.baseline,
        effect=canary.effect,
        false_alarm=canary.false_alarm,
        embeddings=canary.embeddings.model if canary.embeddings else None,
        judge=canary.judge.model if canary.judge else None,
    )


def _known_canary(api: Api, name: str) -> Mapping[str, Any] | None:
    return next((one for one in api.get("/canaries")["items"] if one["name"] == name), None)


def _counted_state(
    canary: CanarySettings, canary_state: Mapping[str, Any] | None, pinned: Sequence[PinnedCall]
) -> CanaryState:
    """The state, as far as the choice of the next calls needs it: how many references each pinned call has."""
    state = begin_canary(_rules(canary), 0)
    counts: Mapping[str, int] = (
        canary_state["reference_answers"] if canary_state and _same_rules(canary, canary_state) else {}
    )
    forms = {one.pin: PinnedForms(answers=counts.get(one.pin, 0)) for one in pinned}
    return msgspec.structs.replace(state, pins=forms)


def _same_rules(canary: CanarySettings, canary_state: Mapping[str, Any]) -> bool:
    rules = canary_state["rules"]
    return bool((rules["references"], rules["baseline"]) == (canary.references, canary.baseline))


def _draw_questions(
    pinned: Sequence[PinnedCall], state: CanaryState, count: int, seed: str, references: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    by_pin = {one.pin: one for one in pinned}
    return [
        by_pin[pin].as_question() | {"references": references.get(pin, ())}
        for pin in draw_pins(sorted(by_pin), state, count, seed)
    ]


def _load_references(api: Api, canary_state: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Load the words of the reference answers of each pinned call that has all of them. The store keeps them in the runs that asked."""
    if canary_state is None:
        return {}
    found: dict[str, list[str]] = {}
    for pin, exchanges in canary_state["reference_exchanges"].items():
        if not exchanges or canary_state["reference_answers"][pin] < canary_state["rules"]["references"]:
            continue
        try:
            found[pin] = list(dict.fromkeys(_load_words(api, one) for one in exchanges))
        except NotFound:
            raise Failure(
                f"the reference answers of {pin}, which answers are compared with, are not recorded any more: pin the runs of a canary"
                f" against retention, or begin anew with `playhead canary {canary_state['name']} --reset`"
            ) from None
    return found


def _load_words(api: Api, exchange: str) -> str:
    call = api.get(f"/calls/{path_segment(exchange)}")
    if "answer" not in call:
        raise NotFound(exchange)
    return answer_words(call["text"], [(tool["name"], tool["arguments"]) for tool in call["tool_calls"]])


async def _ask(
    settings: Settings,
    canary: CanarySettings,
    questions: Sequence[Mapping[str, Any]],
    directory: Path,
    run: str,
    isolation: IsolationOptions,
) -> dict[str, Any]:
    """Run the program that asks, recorded as a run."""
    profiles = settings.config.read_text("utf-8") if settings.config and settings.profile else None
    content = {
        "key_variable": canary.key_env,
        "timeout_s": TIMEOUT,
        "budget_usd": canary.budget_usd,
        "profiles": profiles,
        "questions": questions,
        "embedding": _address(canary, canary.embeddings, "/embeddings"),
        "judged": _address(canary, canary.judge, "/chat/completions"),
    }
    (directory / "questions.json").write_text(json.dumps(content), "utf-8")
    command = [sys.executable, "-m", "proxy.canary.ask", str(directory)]
    labels = {"kind": "canary", "canary": canary.name}
    code = await record(settings, command, run=run, labels=labels, quiet=True, isolation=isolation)
    try:
        found: dict[str, Any] = json.loads((directory / "answers.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(
            f"the program that asks for canary {canary.name} ended with {code} and left no answers ({error});"
            f" see playhead show {run}"
        ) from error
    return found


def _address(canary: CanarySettings, model: ModelAddress | None, path: str) -> dict[str, str] | None:
    if model is None:
        return None
    url = model.url.rstrip("/").removesuffix(path)
    return {"url": url, "model": model.model, "key_variable": model.key_env or canary.key_env}


def _with_exchanges(api: Api, run: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers with the exchanges that they are from, if the run has one for each."""
    stored = [str(item["id"]) for item in api.list_items(f"/runs/{path_segment(run)}/calls", limit=500)]
    is_whole = len(stored) == result["sent"]
    return [
        {
            "pin": one["pin"],
            "answer": {**one["answer"], "exchange": stored[one["number"] - 1] if is_whole else None},
        }
        for one in result["answers"]
    ]
