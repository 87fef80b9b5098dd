"""What came of a trial is told from its exit code and its report."""

from collections.abc import Mapping
from typing import Any

import pytest

from proxy.trials.outcome import general_pointer, step_kind, trial_outcome
from proxy.trials.trial import TrialResult

REPORT: Mapping[str, Any] = {
    "served": 2,
    "missed": 0,
    "live": 0,
    "edited": 0,
    "refused": 0,
    "unused": 0,
    "unused_steps": [],
    "first_divergence": None,
    "interrupted": False,
    "verdict": "right",
}


def result(report: Mapping[str, Any] | None = REPORT, **changes: Any) -> TrialResult:
    given: dict[str, Any] = {
        "code": 0,
        "is_timed_out": False,
        "was_stopped": False,
        "failure": None,
        "isolation": "captive",
        "connections": (),
        "exchanges": (),
        "output": "",
        "seconds": 1.0,
    }
    return TrialResult(report=report, **given | changes)


NONE_SERVED = {**REPORT, "served": 0}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            result(NONE_SERVED, code=1, output="Traceback\nImportError: no x\n\n"),
            "the command ended with 1 before its first call: ImportError: no x",
        ),
        (result(NONE_SERVED), "no request reached the proxy; see: playhead doctor -- CMD"),
        (result(is_timed_out=True), "it was stopped after 9 s (--timeout)"),
        (result(code=125), "the command ended with 125, which means that it cannot be judged"),
        (result(None), "the replay left no report"),
        (result({**REPORT, "interrupted": True}), "its proxy ended before the command did"),
        (result(None, failure="cannot run x: gone"), "cannot run x: gone"),
    ],
)
def test_an_undecided_result_says_why(found: TrialResult, reason: str) -> None:
    outcome = trial_outcome(found, 9, allow_unused=False)
    assert (outcome.verdict, outcome.reason) == ("cannot tell", reason)


def test_a_replay_that_is_right_is_the_same() -> None:
    assert trial_outcome(result(), 9, allow_unused=False).verdict == "same"


def test_a_miss_diverges_at_the_step_and_place_of_the_nearest_call() -> None:
    differences = [{"pointer": "/body/messages/7/content", "recorded": "a", "now": "b"}]
    first = {
        "reason": "no_match",
        "number": 3,
        "asked": "POST https://api.openai.com/v1/chat/completions",
        "detail": "It was not recorded.",
        "nearest": {"call": "x", "step": 4, "differences": differences},
    }
    outcome = trial_outcome(result({**REPORT, "missed": 1, "first_divergence": first}), 9, allow_unused=False)
    assert outcome.divergence is not None
    assert outcome.divergence.cluster == (
        "no_match",
        "POST api.openai.com/v1/chat/completions",
        "/body/messages/*/content",
    )
    assert (outcome.divergence.step, outcome.divergence.recorded, outcome.divergence.now) == (4, "a", "b")


def test_a_step_that_is_not_asked_for_diverges_unless_that_is_allowed() -> None:
    report = {
        **REPORT,
        "unused": 1,
        "unused_steps": [{"step": 2, "asked": "DELETE https://crm.example.com/records/R-7"}],
    }
    outcome = trial_outcome(result(report), 9, allow_unused=False)
    assert outcome.divergence is not None
    assert outcome.divergence.cluster == ("unused", "DELETE crm.example.com/records/*", "")
    assert trial_outcome(result(report), 9, allow_unused=True).verdict == "same"


def test_a_command_that_fails_after_the_same_requests_diverges() -> None:
    outcome = trial_outcome(result(code=3, output="AssertionError: no\n"), 9, allow_unused=False)
    assert outcome.divergence is not None
    assert outcome.divergence.cluster == ("exit_code", "", "exit 3")
    assert outcome.divergence.detail.endswith("the command ended with 3: AssertionError: no")


def test_a_connection_past_the_proxy_diverges() -> None:
    escaped = {"outcome": "escaped", "destination": "10.0.0.1:22", "count": 1, "reason": "a connection was opened"}
    outcome = trial_outcome(result(connections=[escaped]), 9, allow_unused=False)
    assert outcome.divergence is not None
    assert outcome.divergence.cluster == ("escaped", "10.0.0.1:22", "")


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("GET https://crm.example.com/v2/records/R-1042?name=x", "GET crm.example.com/v2/records/*"),
        ("POST https://api.openai.com:8443/v1/responses", "POST api.openai.com/v1/responses"),
        ("10.0.0.1:25", "10.0.0.1:25"),
    ],
)
def test_ids_are_no_part_of_the_kind_of_a_step(asked: str, kind: str) -> None:
    assert step_kind(asked) == kind


def test_places_in_lists_are_no_part_of_a_general_pointer() -> None:
    assert general_pointer("/body/messages/12/parts/0") == "/body/messages/*/parts/*"
    assert general_pointer("/body/a1/2b") == "/body/a1/2b"
