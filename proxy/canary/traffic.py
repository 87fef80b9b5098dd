"""What ordinary traffic says of the models that a canary asks, before it asks: no request is made for it.

Another model that replaced the one before is a change. Another fingerprint, or more identical requests that are answered otherwise, are
hints: providers alternate between fingerprints, and nobody drew the requests of ordinary traffic at random.
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from calls.canary.evidence import Counts, evidence_of_change
from proxy.processes.store_client import Api

type Change = Mapping[str, Any]
"""The reason why it is one, and an example."""


def look_at_traffic(
    api: Api, models: Sequence[str], canary_state: Mapping[str, Any] | None
) -> tuple[Change | None, list[str]]:
    """Return the change that ordinary traffic shows since a canary began, and hints at one."""
    if canary_state is None or canary_state["verdict"] == "changed":
        return None, []
    hints: list[str] = []
    for model in sorted({one for one in models if one}):
        drift = api.get("/drift", model=model, since=canary_state["began_at"])
        for item in (one for one in drift["items"] if one["replaced"]):
            if item["kind"] == "model":
                return _model_change(model, item), []
            was, now = item["from"]["system_fingerprint"], item["to"]["system_fingerprint"]
            hints.append(
                f"in ordinary traffic, the fingerprint {now} of {model} has replaced {was} since {item['first_at'][:19]}Z"
            )
        before = api.get("/drift", model=model, until=canary_state["began_at"])["answers"]
        hints += answer_hint(model, before, drift["answers"], canary_state["rules"]["false_alarm"])
    return None, hints[:20]


def _model_change(model: str, item: Mapping[str, Any]) -> Change:
    was, now = item["from"]["model_returned"], item["to"]["model_returned"]
    reason = f"in ordinary traffic {now} answers to {model} since {item['first_at'][:19]}Z, where {was} did"
    return {"reason": reason, "example": next(iter(item["examples"]["after"]), None)}


def answer_hint(
    model: str, before: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]], false_alarm: float
) -> list[str]:
    """Say if identical requests of ordinary traffic are answered otherwise more or less often than before the canary began."""
    counts = Counts(
        differing_before=sum(one["answered_otherwise"] for one in before),
        before=sum(one["asked_again"] for one in before),
        differing_since=sum(one["answered_otherwise"] for one in since),
        since=sum(one["asked_again"] for one in since),
    )
    if not counts.before or not counts.since or evidence_of_change(counts) < -log(false_alarm):
        return []
    return [
        f"in ordinary traffic, {counts.rate_since:.1%} of {counts.since:,} repeated requests to {model} were answered otherwise,"
        f" where {counts.rate_before:.1%} of {counts.before:,} were"
    ]
