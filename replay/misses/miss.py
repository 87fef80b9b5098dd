"""Represent a miss (a request that the recording does not answer) and the response that reports it to the agent.

The status is 424, with `x-should-retry: false`, because the SDKs of the model providers retry on 408, 409, 429 and every 5xx.
"""

from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from calls.keys.divergence import Difference
from calls.model import Json, Request
from calls.project_runs import DEFAULT_PROJECT, split_run_name
from replay.answer import Answer, source_header
from replay.refusals import refusal_answer

type Reason = Literal[
    "no_match",
    "consumed",
    "incomplete",
    "profile_changed",
    "redaction_changed",
    "unknown_run",
    "interrupted",
    "client_left",
    "unexpected",
]
"""Reasons for a miss. `interrupted`: the worker of the replay was killed. `client_left` occurs only in reports, `unexpected` only
in tests that give their answers themselves."""

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
    "unexpected": "No answer of the test expects this request",
}


class NearestCall(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded call that is most similar to a request."""

    call: str
    step: int
    differences: tuple[Difference, ...] = ()
    more: int = 0
    """The number of differences that are not listed."""


class MissedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a request, as the report shows it."""

    method: str
    url: str
    content_type: str | None
    size: int
    """Bytes of the body."""

    body: str
    """The beginning of the body, after redaction."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
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
    request: MissedRequest | None = None
    candidates: tuple[dict[str, Json], ...] = ()
    """The most similar recorded calls, the nearest first, each with the rules that would ignore its differences."""

    page: str | None = None
    """The address of the web page about the miss; None where no store server has it."""


def miss_page(page: str, replay: str) -> str:
    """Return the address of the web page about a replay's misses; `replay` is its full name."""
    project, name = split_run_name(replay)
    query = "" if project == DEFAULT_PROJECT else f"?project={quote(project, safe='')}"
    return f"{page}/misses/{quote(name, safe=':')}{query}"


def miss_answer(miss: Miss, request: Request | None = None) -> Answer:
    """The response that the agent gets to its request, in the form that its client reads."""
    return refusal_answer(
        request,
        status=MISS_STATUS,
        reason="Failed Dependency",
        members=problem_body(miss),
        message=_message(miss),
        source=source_header("miss", run=miss.run or "", step=miss.number),
    )


def _message(miss: Miss) -> str:
    look = f". To look at it: {miss.page}" if miss.page else ""
    return f"{miss.detail} To fix it: {miss.fix}{look}"


def problem_body(miss: Miss) -> dict[str, Json]:
    """The body of the response. AWS SDKs show the top-level `message`, the others that of `error`."""
    message = _message(miss)
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
            "page": miss.page,
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
        "request": None if miss.request is None else asdict(miss.request),
        "candidates": list(miss.candidates),
        "page": miss.page,
    }


def nearest_entry(nearest: NearestCall) -> dict[str, Json]:
    """The nearest recorded call as JSON."""
    entry: dict[str, Json] = {
        "call": nearest.call,
        "step": nearest.step,
        "differences": [difference.as_json() for difference in nearest.differences],
    }
    if nearest.more:
        entry["more"] = nearest.more
    return entry
