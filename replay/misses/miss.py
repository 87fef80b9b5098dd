"""Represent a miss (a request that the recording does not answer) and the response that reports it to the agent.

The body is an RFC 9457 problem with an additional `error` member, in which the SDKs of the model providers look for a
message. The status is 424, with `x-should-retry: false`, because those SDKs retry on 408, 409, 429 and every 5xx.
"""

from dataclasses import dataclass
from typing import Literal

from calls.codec.json import dumps
from calls.keys.divergence import Difference
from calls.model import Json
from replay.answer import Answer, Piece, source_header

type Reason = Literal[
    "no_match",
    "consumed",
    "incomplete",
    "profile_changed",
    "redaction_changed",
    "unknown_run",
    "interrupted",
    "client_left",
]
"""Reasons for a miss. `interrupted`: the worker of the replay was killed. `client_left` occurs only in reports."""

MISS_STATUS = 424

MISS_TITLES: dict[Reason, str] = {
    "no_match": "No recorded answer for this request",
    "consumed": "Every recorded answer for this request was already used",
    "incomplete": "The recorded answer is incomplete",
    "profile_changed": "The key rules have changed since the recording",
    "redaction_changed": "The redaction rules have changed since the recording",
    "unknown_run": "No recording of that name",
    "interrupted": "The replay was interrupted",
    "client_left": "The client left before the end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestCall:
    """The recorded call that is most similar to a request."""

    call: str
    step: int
    differences: tuple[Difference, ...] = ()
    more: int = 0
    """The number of differences that are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A request that was not answered, with the reason and a fix."""

    replay: str
    run: str | None
    reason: Reason
    detail: str
    fix: str
    request_line: str | None = None
    """Method and URL, after redaction."""

    key: str | None = None
    number: int | None = None
    """The place among the requests of the replay, from 1."""

    nearest: NearestCall | None = None
    head_only: bool = False
    """True for a HEAD request, whose answer has no body."""


def miss_answer(miss: Miss) -> Answer:
    """The response that the agent gets."""
    body = dumps(problem_body(miss))
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("x-should-retry", "false"),
        source_header("miss", run=miss.run or "", step=miss.number),
    )
    pieces = () if miss.head_only else (Piece(0, body),)
    return Answer(status=MISS_STATUS, reason="Failed Dependency", headers=headers, pieces=pieces)


def problem_body(miss: Miss) -> dict[str, Json]:
    """The body of the response. AWS SDKs show the top-level `message`, the others that of `error`."""
    message = f"{miss.detail} To fix it: {miss.fix}"
    return {
        "type": f"urn:playhead:miss:{miss.reason}",
        "title": MISS_TITLES[miss.reason],
        "status": MISS_STATUS,
        "detail": miss.detail,
        "instance": f"urn:playhead:replay:{miss.replay}" + ("" if miss.number is None else f":{miss.number}"),
        "error": {"type": "replay_miss", "code": miss.reason, "message": message},
        "message": message,
        "playhead": {
            "run": miss.run,
            "key": miss.key,
            "reason": miss.reason,
            "nearest": None if miss.nearest is None else nearest_entry(miss.nearest),
            "fix": miss.fix,
        },
    }


def miss_entry(miss: Miss) -> dict[str, Json]:
    """A miss as the report lists it."""
    return {
        "number": miss.number,
        "reason": miss.reason,
        "asked": miss.request_line,
        "detail": miss.detail,
        "key": miss.key,
        "nearest": None if miss.nearest is None else nearest_entry(miss.nearest),
        "fix": miss.fix,
    }


def nearest_entry(found: NearestCall) -> dict[str, Json]:
    """The nearest recorded call as JSON."""
    entry: dict[str, Json] = {
        "call": found.call,
        "step": found.step,
        "differences": [difference.as_json() for difference in found.differences],
    }
    if found.more:
        entry["more"] = found.more
    return entry
