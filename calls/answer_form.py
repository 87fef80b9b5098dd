"""Determine the form of an answer: whole or streamed, and by which framing; the one requested and the one received.

The form is not part of a request's key, because the answer is the same. Whoever answers from a record has to see to it.
"""

from typing import Final, Literal
from urllib.parse import parse_qs

from calls.codec.lenient_json import members
from calls.derive import opened
from calls.framing import Framing, eventstream, json_array, ndjson, sse
from calls.keys.key import KeyResult
from calls.model import Call, Request, Response, header
from calls.route import target

type Form = Literal["whole", "sse", "array", "ndjson", "eventstream"]

_LABELS: Final[tuple[tuple[str, Form], ...]] = (
    ("event-stream", "sse"),
    ("amazon.eventstream", "eventstream"),
    ("ndjson", "ndjson"),
    ("stream+json", "ndjson"),
)


_FRAMINGS: Final[tuple[tuple[Form, Framing], ...]] = (
    ("sse", sse),
    ("eventstream", eventstream),
    ("array", json_array),
    ("ndjson", ndjson),
)


def asked(key: KeyResult, request: Request) -> Form:
    """The form in which this request wants its answer."""
    wants = members(key.request).get("stream")
    match key.dialect:
        case "gemini" | "gemini_code":
            return _google(request) if key.route.streams else "whole"
        case "bedrock_converse" | "bedrock_invoke" | "bedrock_others":
            return "eventstream" if key.route.streams else "whole"
        case "ollama":  # which streams unless it is told not to
            return "whole" if wants is False or key.operation == "embeddings" else "ndjson"
        case "cohere_v1":
            return "ndjson" if wants is True else "whole"
        case _:
            return "sse" if wants is True or key.route.streams else "whole"


def _google(request: Request) -> Form:
    _, _, query = target(request.url)
    return "sse" if parse_qs(query).get("alt") == ["sse"] else "array"


def given(response: Response, call: Call | None = None) -> Form:
    """The form in which this answer, which means this call, came.

    Many a recording has no content type, and Gemini's array is labelled as any JSON: then the bytes tell. Without a call,
    only a label and a stream of events do.
    """
    media = (header(response.headers, "content-type") or "").lower()
    labelled = next((form for label, form in _LABELS if label in media), None)
    head = (opened(response) or b"").lstrip()
    if labelled:
        # Errors are plain JSON, whatever they are labelled.
        return "whole" if call and not call.streamed and head[:1] in (b"{", b"[") else labelled
    framings = _FRAMINGS if call and call.streamed else _FRAMINGS[:1]
    return next((form for form, framing in framings if framing.begins(head, media, ended=True)), "whole")
