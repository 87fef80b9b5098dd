"""The rest of OpenAI's API: images, speech, transcription, videos and moderation, which ask a model; files, vector stores and
the like, which do not.

The first are recognised by their paths at any host, because many services have them; the others only at OpenAI and Azure.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import CallKind, Headers, Json, Usage

_BASE: Final = r"(?:.*/)?(?:v\d+|deployments/(?P<model>[^/]+))"

_MEDIA: Final = tuple(
    (re.compile(rf"{_BASE}{tail}/?"), operation)
    for tail, operation in (
        (r"/images/(?:generations|edits|variations)", "image_generation"),
        (r"/audio/speech", "speech"),
        (r"/audio/transcriptions", "transcription"),
        (r"/audio/translations", "translation"),
        (r"/videos(?:/(?:generations|edits|extensions|[^/]+/remix))?", "video_generation"),
        (r"(?:/chat)?/moderations", "moderation"),
        (r"/ocr", "ocr"),
    )
)

_FORMER: Final = re.compile(
    r"(?:.*/)?v1/(?:engines/(?P<model>[^/]+)/)?(?P<what>edits|answers|classifications|search)",
)
"""Operations of models before there were chats, which old recordings still have."""

_VIDEO: Final = re.compile(_BASE + r"/videos/(?P<video>video_[^/]+)")

_LOOKS: Final = (
    (
        re.compile(r"api\.(together\.(xyz|ai)|x\.ai)|openrouter\.ai"),
        re.compile(_BASE + r"/videos/(?P<video>(?!models$)[^/]+)"),
    ),
    (re.compile(r"open\.bigmodel\.cn|api\.z\.ai"), re.compile(r"/api/paas/v4/async-result/(?P<video>[^/]+)")),
)
"""Where other services poll for videos, whose ids have no prefix: Together, xAI, OpenRouter, Z.ai."""

_ONLY_HERE: Final = (
    (re.compile(r"(?:.+\.)?api\.openai\.com"), re.compile(r"/v1/decisions"), "decision"),
    (re.compile(r"openrouter\.ai"), re.compile(r"/api/alpha/decisions"), "decision"),
    (re.compile(r"openrouter\.ai"), re.compile(r"/api/v1/images"), "image_generation"),
)
"""Requests to models at paths that mean something else at other hosts: host, path, operation."""

_ANY: Final = re.compile(r"(?:.*/)?(?:v1|openai)/(?P<rest>.+)")
_AN_ID: Final = re.compile(r".*[\d:].*|(?![a-z]+(?:_[a-z]+)+$).{25,}")
_PICTURE: Final = ("b64_json", "url", "revised_prompt")
# Not a set: a member of a body may be a value that has no hash.
_UNDONE: Final = ("queued", "in_progress", "pending", "PROCESSING")


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim media at any host; everything else only at OpenAI and under `/openai/` at Azure."""
    return (
        _claim_media(method, path)
        or _claim_poll(method, host, path)
        or _claim_own_path(method, host, path)
        or (_claim_other(method, path) if _is_openai_host(host, path) else None)
    )


def _is_openai_host(host: str, path: str) -> bool:
    return host.endswith("api.openai.com") or (host.endswith(".azure.com") and "/openai/" in path)


def _claim_media(method: str, path: str) -> Claim | None:
    if method == "GET" and (match := _VIDEO.fullmatch(path)):
        return Claim(operation="poll", kind="model", polls=match["video"])
    found = ((shape.fullmatch(path), operation) for shape, operation in _MEDIA if method == "POST")
    return next((_claim(operation, "model", match["model"]) for match, operation in found if match), None)


def _claim_poll(method: str, host: str, path: str) -> Claim | None:
    found = (shape.fullmatch(path) for hosts, shape in _LOOKS if method == "GET" and hosts.fullmatch(host))
    return next((Claim(operation="poll", kind="model", polls=match["video"]) for match in found if match), None)


def _claim_own_path(method: str, host: str, path: str) -> Claim | None:
    found = (name for hosts, shape, name in _ONLY_HERE if hosts.fullmatch(host) and shape.fullmatch(path))
    operation = next(found, None) if method == "POST" else None
    return _claim(operation, "model") if operation else None


def _claim(operation: str, kind: CallKind, model: str | None = None) -> Claim:
    return Claim(operation=operation, kind=kind, model=model)


def _claim_other(method: str, path: str) -> Claim | None:
    """Claim anything else. The operation is the method and the path without ids: `get_files_content`. A search of a store is a retrieval."""
    if method == "POST" and (former := _FORMER.fullmatch(path)):
        return _claim(former["what"], "model", former["model"])
    match = _ANY.fullmatch(path)
    if match is None:
        return None
    steps = match["rest"].strip("/").split("/")
    names = [
        word
        for before, word in pairwise(["", *steps])
        if before not in {"models", "engines"} and not _AN_ID.fullmatch(word)
    ]
    kind: CallKind = "retrieval" if names[:1] == ["vector_stores"] and names[-1] == "search" else "other"
    return _claim("_".join([method.lower(), *names]), kind)


def summarize_request(body: Json) -> RequestSummary:
    """Find the model; a form has a list of values for each field."""
    model = as_object(body).get("model")
    values = as_array(model)
    return RequestSummary(model=as_text_or_none(values[0]) if values else as_text_or_none(model))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text of a transcription, the usage, and the id of a video that is not done."""
    if isinstance(answer, str):
        return AnswerSummary(text=answer)
    fields = as_object(answer)
    usage = as_object(fields.get("usage"))
    results = as_array(fields.get("data")) if fields.get("object") == "vector_store.search_results.page" else ()
    edited = (
        next((as_object(choice) for choice in as_array(fields.get("choices"))), {})
        if fields.get("object") == "edit"
        else fields
    )
    return AnswerSummary(
        model=as_text_or_none(fields.get("model")),
        text=as_text_or_none(edited.get("text")),
        usage=Usage(
            input_tokens=as_count(usage.get("input_tokens", usage.get("prompt_tokens"))),
            output_tokens=as_count(usage.get("output_tokens", usage.get("completion_tokens"))),
            cached_tokens=as_count(as_object(usage.get("input_tokens_details")).get("cached_tokens")),
            reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
        pending=_pending_id(fields),
        is_unfinished=fields.keys() <= {"status", "progress"} and fields.get("status") in _UNDONE,
        results=tuple(results),
    )


def _pending_id(fields: Mapping[str, Json]) -> str | None:
    """The id of a video that is not done. Other answers have an `object`, or no status."""
    if fields.get("object", "video") != "video":
        return None
    if fields.keys() == {"request_id"}:  # xAI's
        return as_text_or_none(fields["request_id"])
    return as_text_or_none(fields.get("id")) if fields.get("status", fields.get("task_status")) in _UNDONE else None


def assemble(content_type: str) -> Assembly:
    """Make an assembly for JSON, a stream, a transcript as text, or bytes without meaning here."""
    return _RestAssembly(content_type)


class _RestAssembly(AccumulatorAssembly):
    """A body that can also be plain text: a transcript as `text`, `srt` or `vtt`."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, RestStream())
        self._is_text = content_type.startswith(("text/plain", "text/vtt", "text/srt", "application/x-subrip"))

    def _read_whole_body(self, data: bytes) -> None:
        super()._read_whole_body(data)
        if self._answer is None and self._is_text and data:
            self._answer = data.decode("utf-8", "replace")


class RestStream:
    """An image, a transcript, speech or a list of events while it arrives. The last event has everything but the pieces."""

    def __init__(self) -> None:
        self._frame: dict[str, Json] = {}
        self._pictures: list[Json] = []
        self._pieces: list[str] = []
        self._segments: list[Json] = []
        self._listed: list[Json] = []
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event. Its type is in the payload."""
        if data.strip() == "[DONE]":
            self._has_ended = True
            return
        fields = parse_payload(data)
        kind = as_text(fields.get("type")) or (event if fields else "")
        rest = {name: value for name, value in fields.items() if name not in ("type", "obfuscation")}
        if kind == "error" or fields.get("error") is not None:
            self._error = fields.get("error") or rest
        elif kind.startswith(("image_generation.", "image_edit.")):
            self._add_picture(kind, rest)
        elif kind == "transcript.text.delta":
            self._pieces.append(as_text(fields.get("delta")))
        elif kind == "transcript.text.segment":
            self._segments.append(rest)
        elif kind.endswith(".done"):
            self._frame.update(rest)
            self._has_ended = True
        elif "type" not in fields and "object" in fields:
            # An event of a fine-tune, in the shape of its list.
            self._listed.append(fields)

    def _add_picture(self, kind: str, rest: dict[str, Json]) -> None:
        """Add an image. Partial images are previews and not part of the answer."""
        if kind.endswith(".completed"):
            self._has_ended = True
            self._pictures.append({name: rest.pop(name) for name in _PICTURE if name in rest})
            self._frame.update({"created" if name == "created_at" else name: rest[name] for name in rest})

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        if self._error is not None:
            return {"error": self._error}
        answer = dict(self._frame)
        if self._listed:
            answer |= {"object": "list", "data": list(self._listed)}
        if self._pictures:
            answer["data"] = list(self._pictures)
        if self._pieces:
            answer.setdefault("text", "".join(self._pieces))
        if self._segments:
            answer.setdefault("segments", list(self._segments))
        return answer or None

    @property
    def is_complete(self) -> bool:
        """Whether the last event or `[DONE]` arrived, and no error."""
        return self._has_ended and self._error is None


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    """A form has a list of texts for each field."""
    return "sse" if as_object(criteria.body).get("stream") in (True, ["true"], ["True"]) else "whole"


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write images or a transcript. Partial images are left out: only a stream has them."""
    if "text" in answer:
        yield sse_message("transcript.text.delta", {"type": "transcript.text.delta", "delta": answer["text"]})
        yield sse_message("transcript.text.done", {"type": "transcript.text.done", **answer})
        return
    about = {name: value for name, value in answer.items() if name not in ("data", "created")}
    for picture in map(as_object, as_array(answer.get("data"))):
        kind = "image_generation.completed"
        yield sse_message(kind, {"type": kind, **picture, "created_at": answer.get("created"), **about})


_CATEGORIES: Final = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence"),
    "violence/graphic",
)
"""What OpenAI's moderation looks for."""


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a transcript, as JSON or as the text that the request wants."""
    if parts.operation not in ("transcription", "translation") or parts.tool_calls or parts.text is None:
        return None
    response_format = parts.request.get("response_format")
    form = next(iter(as_array(response_format)), response_format)
    if form in ("text", "srt", "vtt"):
        return parts.text
    tokens: Json = {
        "type": "tokens",
        "input_tokens": parts.input_tokens,
        "output_tokens": parts.output_tokens,
        "total_tokens": parts.input_tokens + parts.output_tokens,
    }
    return {"text": parts.text, "usage": tokens}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make images, or moderations by the categories that each text falls into."""
    match parts.operation:
        case "image_generation" if pictures := parts.pictures:
            images = [{"url" if one.startswith("http") else "b64_json": one} for one in pictures]
            usage: Json = {"input_tokens": parts.input_tokens, "output_tokens": 0, "total_tokens": parts.input_tokens}
            return {"created": parts.created, "data": images, "usage": usage}
        case "moderation" if (found := parts.words) is not None:
            return {"id": f"modr-{parts.id}", "model": parts.model, "results": list(map(_moderation, found))}
        case _:
            return None


def _moderation(categories: list[str]) -> Json:
    names = dict.fromkeys((*_CATEGORIES, *categories))
    return {
        "flagged": bool(categories),
        "categories": {name: name in categories for name in names},
        "category_scores": {name: 0.99 if name in categories else 0.01 for name in names},
        "category_applied_input_types": {name: ["text"] for name in names},
    }


DIALECT: Final = Dialect(
    name="openai_rest",
    claim=claim,
    precedence=1,  # what OpenAI's other dialects leave at OpenAI's hosts
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=_requested_form,
    stream_writers={"sse": _write_stream},
    error_body=openai_error,
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
