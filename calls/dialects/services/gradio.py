"""Gradio's apps, at Hugging Face's Spaces or anywhere: a prediction joins a queue, and a stream of events brings the results.

Each client draws a `session_hash` and sends it with every request, in the body, the query or the path. (Reference:
`gradio_client` 2, and `routes.py` of gradio 5.)
"""

import re
from collections.abc import Sequence
from typing import Final

from calls.codec.lenient_json import as_array, as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.model import Headers, Json

_PATH: Final = re.compile(r"(?:.*/)?(?:queue/(?P<queue>join|data)|gradio_api/(?P<other>cancel|reset))")
# Before version 5 the path had no prefix.
_HEARTBEAT: Final = re.compile(r"((?:.*/)?gradio_api/heartbeat/)[^/]+|((?:.*/)?heartbeat/)[0-9a-f]{8}(?:-[0-9a-f]+){4}")
_METHODS: Final = {"join": "POST", "data": "GET", "cancel": "POST", "reset": "POST"}


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the paths of the queue at any host, which determines the kind."""
    if method == "GET" and (heartbeat := _HEARTBEAT.fullmatch(path)):
        return Claim(operation="heartbeat", kind=None, path=heartbeat[1] or heartbeat[2])
    match = _PATH.fullmatch(path)
    name = (match["queue"] or match["other"]) if match else None
    if name is None or method != _METHODS[name]:
        return None
    return Claim(operation=name, kind=None)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a stream of events, or for the answer to another request."""
    return AccumulatorAssembly(content_type, GradioStream())


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find what the predictions returned, and whether one failed."""
    ends = [as_object(end) for end in answer] if isinstance(answer, Sequence) and not isinstance(answer, str) else []
    results = [value for end in ends for value in as_array(as_object(end.get("output")).get("data"))]
    failed = any(end.get("success") is False for end in ends)
    return AnswerSummary(results=tuple(results), state="error" if failed else None)


class GradioStream:
    """The ends of the predictions whose events one stream brings."""

    def __init__(self) -> None:
        self._ends: list[Json] = []
        self._is_closed = self._has_begun = False

    def add_message(self, _event: str, data: str) -> None:
        """Add one event. Before version 4.25 a stream had one prediction and ended with it."""
        event = parse_payload(data)
        match event.get("msg"):
            case "estimation" | "process_starts":
                self._has_begun = True
            case "process_completed":
                self._ends.append(dict(event))
                self._has_begun = False
            case "close_stream":
                self._is_closed = True

    @property
    def answer(self) -> Json:
        """The ends so far."""
        return list(self._ends)

    @property
    def is_complete(self) -> bool | None:
        """Whether the stream was closed, or broke off within a prediction; None else, as for older servers and heartbeats."""
        return self._is_closed or (False if self._has_begun else None)


DIALECT: Final = Dialect(
    name="gradio",
    claim=claim,
    precedence=6,  # claims paths that any host may have
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="the form of its data is that of the app",
)
