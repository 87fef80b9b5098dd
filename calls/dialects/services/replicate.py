"""Replicate's predictions: created, then polled or read as a stream of plain text."""

import re
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.model import Headers, Json, Usage

NAME: Final = "replicate"

_MADE: Final = re.compile(r"/v1/(?:predictions|deployments/[^/]+/([^/]+)/predictions|models/([^/]+/[^/]+)/predictions)")
_ASKED: Final = re.compile(r"/v1/predictions/([^/]+)")
_GOING_ON: Final = frozenset(("starting", "processing"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """A new prediction, whoever asks after one, and its stream."""
    if host.endswith(".replicate.net") and path.startswith("/v1/streams/"):
        return Claim(dialect=NAME, operation="stream", kind="model", provider=NAME, streams=True)
    if host != "api.replicate.com":
        return None
    if method == "POST" and (match := _MADE.fullmatch(path)):
        return Claim(dialect=NAME, operation="text_completion", kind="model", model=match[2] or match[1])
    if method == "GET" and (match := _ASKED.fullmatch(path)):
        return Claim(dialect=NAME, operation="poll", kind="model", polls=match[1])
    return None


def asked(body: Json) -> RequestSummary:
    """The version of a model, where the path does not name the model."""
    return RequestSummary(model=some(members(body).get("model")) or some(members(body).get("version")))


def told(answer: Json) -> AnswerSummary:
    """What a prediction came to; of a stream, its text."""
    said = members(answer)
    output, metrics = said.get("output"), members(said.get("metrics"))
    spoken = output if isinstance(output, str) else "".join(map(text, elements(output)))
    status = some(said.get("status"))
    counts = Usage(
        input_tokens=count(metrics.get("input_token_count")), output_tokens=count(metrics.get("output_token_count"))
    )
    pending = some(said.get("id")) if status in _GOING_ON else None
    return AnswerSummary(
        model=some(said.get("model")), text=spoken or None, finish_reason=status, usage=counts, pending=pending
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a prediction, or for the stream of one's output."""
    return AccumulatorAssembly(content_type, ReplicateStream())


class ReplicateStream:
    """The output of one prediction in pieces, which are text and not JSON."""

    def __init__(self) -> None:
        self._pieces: list[Json] = []
        self._ended: str | None = None
        self._error: str | None = None

    def take(self, event: str, data: str) -> None:
        """Take one piece, an error, or the end."""
        match event:
            case "output":
                self._pieces.append(data)
            case "error":
                self._error = data
            case "done" if data.endswith("}"):  # with why, where it was not to the end
                self._ended = data
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The output so far, as a prediction has it: a list of its pieces."""
        error: dict[str, Json] = {} if self._error is None else {"error": self._error}
        return {"output": list(self._pieces), **error}

    @property
    def complete(self) -> bool:
        """Whether `done` came without a reason to be done early, and no error."""
        return self._ended is not None and "reason" not in self._ended and self._error is None
