"""Determine the form of an answer: whole or streamed, and by which framing; the one requested and the one received.

The form is not part of a request's key, because the answer is the same. Replay converts a recorded answer to the requested form.
"""

from typing import Final

from calls.derive import decode_response_body
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.table import BY_NAME
from calls.framing import Framing, eventstream, json_array, ndjson, sse
from calls.keys.key import KeyResult
from calls.model import Call, Request, Response, header
from calls.route import split_url

_LABELS: Final[tuple[tuple[str, AnswerForm], ...]] = (
    ("event-stream", "sse"),
    ("amazon.eventstream", "eventstream"),
    ("ndjson", "ndjson"),
    ("stream+json", "ndjson"),
)


_FRAMINGS: Final[tuple[tuple[AnswerForm, Framing], ...]] = (
    ("sse", sse),
    ("eventstream", eventstream),
    ("array", json_array),
    ("ndjson", ndjson),
)


def requested_form(key: KeyResult, request: Request) -> AnswerForm:
    """The form in which a request wants its answer."""
    _, _, query = split_url(request.url)
    criteria = FormCriteria(body=key.request_body, operation=key.operation, streams=key.route.streams, query=query)
    return BY_NAME[key.dialect].answer_form(criteria)


def received_form(response: Response, call: Call | None = None) -> AnswerForm:
    """The form of an answer, from which this call was derived.

    Some recordings have no content type, and Gemini's array has that of any JSON: then the bytes determine it. Without a call,
    only the content type or server-sent events do.
    """
    media = (header(response.headers, "content-type") or "").lower()
    labelled = next((form for label, form in _LABELS if label in media), None)
    head = (decode_response_body(response) or b"").lstrip()
    if labelled:
        # Errors are plain JSON under any content type.
        return "whole" if call and not call.streamed and head[:1] in (b"{", b"[") else labelled
    framings = _FRAMINGS if call and call.streamed else _FRAMINGS[:1]
    return next((form for form, framing in framings if framing.matches(head, media, is_whole=True)), "whole")
