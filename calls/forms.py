"""In which form an answer is asked for, and in which one it came: whole, or as a stream, cut in one way or another.

The form is not part of a request's key, because the answer is the same. Whoever answers from a record has to see to it.
"""

from typing import Final, Literal
from urllib.parse import parse_qs

from calls.key import Keyed
from calls.model import Json, Request, Response, header
from calls.route import target
from calls.shape import members

type Form = Literal["whole", "sse", "array", "ndjson", "eventstream"]

_LABELS: Final[tuple[tuple[str, Form], ...]] = (
    ("event-stream", "sse"),
    ("amazon.eventstream", "eventstream"),
    ("ndjson", "ndjson"),
    ("stream+json", "ndjson"),
)


def asked(key: Keyed, request: Request) -> Form:
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


def given(response: Response, answer: Json = None) -> Form:
    """The form in which this answer came. Gemini's array is labelled as any JSON, and is one by what it became."""
    media = (header(response.headers, "content-type") or "").lower()
    labelled = next((form for label, form in _LABELS if label in media), None)
    if labelled:
        return labelled
    if not media and response.body.data.lstrip().startswith((b"event:", b"data:")):
        return "sse"  # LangChain's cassettes keep no headers
    return "array" if response.body.data.lstrip()[:1] == b"[" and isinstance(answer, dict) else "whole"
