"""Represent a request that the recording does not answer, and the response that tells the agent so.

The body is an RFC 9457 problem that also has the `error` member in which the SDKs of the model providers look for a
message. 424 and `x-should-retry: false` because 408, 409, 429 and every 5xx make those SDKs ask again.
"""

from dataclasses import dataclass
from typing import Literal

from calls.codec.json import dumps
from calls.keys.divergence import Difference
from calls.model import Json
from replay.answer import Answer, Piece, mark

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
"""Those of the contract; one for a replay whose worker was killed; and one that nobody is left to hear but the report."""

STATUS = 424

TITLES: dict[Reason, str] = {
    "no_match": "No recorded answer for this request",
    "consumed": "Every recorded answer for this request was given already",
    "incomplete": "The recorded answer cannot be given whole",
    "profile_changed": "The rules that make keys changed since the recording",
    "redaction_changed": "The rules of redaction changed since the recording",
    "unknown_run": "No recording of that name",
    "interrupted": "The replay was interrupted",
    "client_left": "The client left before the end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The recorded call that is most like the request."""

    call: str
    step: int
    differences: tuple[Difference, ...] = ()
    more: int = 0
    """How many differences are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Why a request was not answered, for whoever reads it at night."""

    replay: str
    run: str | None
    reason: Reason
    detail: str
    fix: str
    asked: str | None = None
    """Method and URL, after redaction."""

    key: str | None = None
    number: int | None = None
    """Which request of the replay this was, from 1."""

    nearest: Nearest | None = None
    head_only: bool = False
    """The request was a HEAD: its answer has no body."""


def answer(miss: Miss) -> Answer:
    """What the agent gets."""
    body = dumps(problem(miss))
    headers = (
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("x-should-retry", "false"),
        mark("miss", run=miss.run or "", step=miss.number),
    )
    pieces = () if miss.head_only else (Piece(0, body),)
    return Answer(status=STATUS, reason="Failed Dependency", headers=headers, pieces=pieces)


def problem(miss: Miss) -> dict[str, Json]:
    """The body of the contract. AWS's SDKs show a `message` of the whole, the others that of its `error`."""
    message = f"{miss.detail} To mend it: {miss.fix}"
    return {
        "type": f"urn:playhead:miss:{miss.reason}",
        "title": TITLES[miss.reason],
        "status": STATUS,
        "detail": miss.detail,
        "instance": f"urn:playhead:replay:{miss.replay}" + ("" if miss.number is None else f":{miss.number}"),
        "error": {"type": "replay_miss", "code": miss.reason, "message": message},
        "message": message,
        "playhead": {
            "run": miss.run,
            "key": miss.key,
            "reason": miss.reason,
            "nearest": None if miss.nearest is None else nearest(miss.nearest),
            "fix": miss.fix,
        },
    }


def noted(miss: Miss) -> dict[str, Json]:
    """The miss in the report of its replay."""
    return {
        "number": miss.number,
        "reason": miss.reason,
        "asked": miss.asked,
        "detail": miss.detail,
        "key": miss.key,
        "nearest": None if miss.nearest is None else nearest(miss.nearest),
        "fix": miss.fix,
    }


def nearest(found: Nearest) -> dict[str, Json]:
    """The nearest recorded call, in the contract's form."""
    told: dict[str, Json] = {
        "call": found.call,
        "step": found.step,
        "differences": [difference.told() for difference in found.differences],
    }
    if found.more:
        told["more"] = found.more
    return told
