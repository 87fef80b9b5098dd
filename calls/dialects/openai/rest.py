"""The rest of OpenAI's API: images, speech, transcription, videos and moderation, which ask a model; files, vector stores and
the like, which do not.

The first are known by their paths at any host, because so many serve them; the others only at OpenAI's own and Azure's.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, Kind, Usage

NAME: Final = "openai_rest"

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
"""What models were asked before there were chats, as old recordings still have it."""

_VIDEO: Final = re.compile(_BASE + r"/videos/(?P<video>video_[^/]+)")

_LOOKS: Final = (
    (
        re.compile(r"api\.(together\.(xyz|ai)|x\.ai)|openrouter\.ai"),
        re.compile(_BASE + r"/videos/(?P<video>(?!models$)[^/]+)"),
    ),
    (re.compile(r"open\.bigmodel\.cn|api\.z\.ai"), re.compile(r"/api/paas/v4/async-result/(?P<video>[^/]+)")),
)
"""Where others look after videos whose names tell nothing: Together, xAI, OpenRouter, Z.ai."""

_ONLY_HERE: Final = (
    (re.compile(r"(?:.+\.)?api\.openai\.com"), re.compile(r"/v1/decisions"), "decision"),
    (re.compile(r"openrouter\.ai"), re.compile(r"/api/alpha/decisions"), "decision"),
    (re.compile(r"openrouter\.ai"), re.compile(r"/api/v1/images"), "image_generation"),
)
"""What asks a model by a path that could be anything at other hosts: host, path, operation."""

_ANY: Final = re.compile(r"(?:.*/)?(?:v1|openai)/(?P<rest>.+)")
_AN_ID: Final = re.compile(r".*[\d:].*|(?![a-z]+(?:_[a-z]+)+$).{25,}")
_PICTURE: Final = ("b64_json", "url", "revised_prompt")
_UNDONE: Final = frozenset(("queued", "in_progress", "pending", "PROCESSING"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Media at any host; everything else at OpenAI's own and in Azure's folder for it."""
    return (
        _media(method, path)
        or _looks(method, host, path)
        or _only_here(method, host, path)
        or (_other(method, path) if _is_ours(host, path) else None)
    )


def _is_ours(host: str, path: str) -> bool:
    return host.endswith("api.openai.com") or (host.endswith(".azure.com") and "/openai/" in path)


def _media(method: str, path: str) -> Claim | None:
    if method == "GET" and (match := _VIDEO.fullmatch(path)):
        return Claim(dialect=NAME, operation="poll", kind="model", polls=match["video"])
    found = ((shape.fullmatch(path), operation) for shape, operation in _MEDIA if method == "POST")
    return next((_claim(operation, "model", match["model"]) for match, operation in found if match), None)


def _looks(method: str, host: str, path: str) -> Claim | None:
    found = (shape.fullmatch(path) for hosts, shape in _LOOKS if method == "GET" and hosts.fullmatch(host))
    return next(
        (Claim(dialect=NAME, operation="poll", kind="model", polls=match["video"]) for match in found if match), None
    )


def _only_here(method: str, host: str, path: str) -> Claim | None:
    found = (name for hosts, shape, name in _ONLY_HERE if hosts.fullmatch(host) and shape.fullmatch(path))
    operation = next(found, None) if method == "POST" else None
    return _claim(operation, "model") if operation else None


def _claim(operation: str, kind: Kind, model: str | None = None) -> Claim:
    return Claim(dialect=NAME, operation=operation, kind=kind, model=model)


def _other(method: str, path: str) -> Claim | None:
    """What is done to what, without ids: `get_files_content`. To search a store is to retrieve."""
    if method == "POST" and (former := _FORMER.fullmatch(path)):
        return _claim(former["what"], "model", former["model"])
    match = _ANY.fullmatch(path)
    if match is None:
        return None
    steps = match["rest"].strip("/").split("/")
    words = [
        word
        for before, word in pairwise(["", *steps])
        if before not in {"models", "engines"} and not _AN_ID.fullmatch(word)
    ]
    kind: Kind = "retrieval" if words[:1] == ["vector_stores"] and words[-1] == "search" else "other"
    return _claim("_".join([method.lower(), *words]), kind)


def asked(body: Json) -> RequestSummary:
    """The model; a form has a list of values for each field."""
    model = members(body).get("model")
    values = elements(model)
    return RequestSummary(model=some(values[0]) if values else some(model))


def told(answer: Json) -> AnswerSummary:
    """What a transcription says, and what it all cost. A video that is still made says whom to ask for it."""
    if isinstance(answer, str):
        return AnswerSummary(text=answer)
    made = members(answer)
    usage = members(made.get("usage"))
    found = elements(made.get("data")) if made.get("object") == "vector_store.search_results.page" else ()
    edited = (
        next((members(choice) for choice in elements(made.get("choices"))), {})
        if made.get("object") == "edit"
        else made
    )
    return AnswerSummary(
        model=some(made.get("model")),
        text=some(edited.get("text")),
        usage=Usage(
            input_tokens=count(usage.get("input_tokens", usage.get("prompt_tokens"))),
            output_tokens=count(usage.get("output_tokens", usage.get("completion_tokens"))),
            cached_tokens=count(members(usage.get("input_tokens_details")).get("cached_tokens")),
            reasoning_tokens=count(members(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
        pending=_pending(made),
        going_on=made.keys() <= {"status", "progress"} and made.get("status") in _UNDONE,
        results=tuple(found),
    )


def _pending(made: Mapping[str, Json]) -> str | None:
    """The name of a video that is not done: whole answers of others say what they are, or have no status."""
    if made.get("object", "video") != "video":
        return None
    if made.keys() == {"request_id"}:  # xAI's
        return some(made["request_id"])
    return some(made.get("id")) if made.get("status", made.get("task_status")) in _UNDONE else None


def assemble(content_type: str) -> Assembly:
    """An assembly for whatever comes: JSON, a stream, a transcript as text, or bytes that say nothing to us."""
    return _Any(content_type)


class _Any(AccumulatorAssembly):
    """A body that may also be a plain text: a transcript as `text`, `srt` or `vtt`."""

    def __init__(self, content_type: str) -> None:
        super().__init__(content_type, RestStream())
        self._is_text = content_type.startswith(("text/plain", "text/vtt", "text/srt", "application/x-subrip"))

    def _read(self, data: bytes) -> None:
        super()._read(data)
        if self._answer is None and self._is_text and data:
            self._answer = data.decode("utf-8", "replace")


class RestStream:
    """A picture, a transcript, a speech or a list of events while it comes. The last event has all but what only pieces said."""

    def __init__(self) -> None:
        self._frame: dict[str, Json] = {}
        self._pictures: list[Json] = []
        self._pieces: list[str] = []
        self._segments: list[Json] = []
        self._listed: list[Json] = []
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event. Its type is in the payload."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        said = payload(data)
        kind = text(said.get("type")) or (event if said else "")
        rest = {name: value for name, value in said.items() if name not in ("type", "obfuscation")}
        if kind == "error" or said.get("error") is not None:
            self._error = said.get("error") or rest
        elif kind.startswith(("image_generation.", "image_edit.")):
            self._take_picture(kind, rest)
        elif kind == "transcript.text.delta":
            self._pieces.append(text(said.get("delta")))
        elif kind == "transcript.text.segment":
            self._segments.append(rest)
        elif kind.endswith(".done"):
            self._frame.update(rest)
            self._done = True
        elif "type" not in said and "object" in said:
            # What happens to a fine-tune, as its list has it.
            self._listed.append(said)

    def _take_picture(self, kind: str, rest: dict[str, Json]) -> None:
        """Pictures that are not finished yet are only to look at meanwhile."""
        if kind.endswith(".completed"):
            self._done = True
            self._pictures.append({name: rest.pop(name) for name in _PICTURE if name in rest})
            self._frame.update({"created" if name == "created_at" else name: rest[name] for name in rest})

    @property
    def answer(self) -> Json:
        """What came so far; where there is only an error, the error's own body."""
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
    def complete(self) -> bool:
        """Whether the last event or `[DONE]` came, and no error."""
        return self._done and self._error is None
