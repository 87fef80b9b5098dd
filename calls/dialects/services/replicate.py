"""Replicate's predictions: created, then polled or read as a stream of plain text."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import streamed_by_path
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, Usage

_CREATED_PATH: Final = re.compile(
    r"/v1/(?:predictions|deployments/[^/]+/([^/]+)/predictions|models/([^/]+/[^/]+)/predictions)"
)
_POLLED_PATH: Final = re.compile(r"/v1/predictions/([^/]+)")
_GOING_ON: Final = frozenset(("starting", "processing"))


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim a new prediction, a poll for one, and its stream."""
    if host.endswith(".replicate.net") and path.startswith("/v1/streams/"):
        return Claim(operation="stream", kind="model", provider="replicate", streams=True)
    if host != "api.replicate.com":
        return None
    if method == "POST" and (match := _CREATED_PATH.fullmatch(path)):
        return Claim(operation="text_completion", kind="model", model=match[2] or match[1])
    if method == "GET" and (match := _POLLED_PATH.fullmatch(path)):
        return Claim(operation="poll", kind="model", polls=match[1])
    return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model or its version, where the path does not name the model."""
    return RequestSummary(
        model=as_text_or_none(as_object(body).get("model")) or as_text_or_none(as_object(body).get("version"))
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and status of a prediction."""
    prediction = as_object(answer)
    output, metrics = prediction.get("output"), as_object(prediction.get("metrics"))
    text = output if isinstance(output, str) else "".join(map(as_text, as_array(output)))
    status = as_text_or_none(prediction.get("status"))
    counts = Usage(
        input_tokens=as_count(metrics.get("input_token_count")),
        output_tokens=as_count(metrics.get("output_token_count")),
    )
    pending = as_text_or_none(prediction.get("id")) if status in _GOING_ON else None
    return AnswerSummary(
        model=as_text_or_none(prediction.get("model")),
        text=text or None,
        finish_reason=status,
        usage=counts,
        pending=pending,
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a prediction, or for the stream of its output."""
    return AccumulatorAssembly(content_type, ReplicateStream())


class ReplicateStream:
    """The output of one prediction in pieces, which are text and not JSON."""

    def __init__(self) -> None:
        self._pieces: list[Json] = []
        self._end_data: str | None = None
        self._error: str | None = None

    def add_message(self, event: str, data: str) -> None:
        """Add one piece, an error, or the end."""
        match event:
            case "output":
                self._pieces.append(data)
            case "error":
                self._error = data
            case "done" if data.endswith("}"):  # with the reason, if it ended early
                self._end_data = data
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The output so far, as a prediction has it: a list of its pieces."""
        error: dict[str, Json] = {} if self._error is None else {"error": self._error}
        return {"output": list(self._pieces), **error}

    @property
    def is_complete(self) -> bool:
        """Whether `done` arrived without a reason for an early end, and no error."""
        return self._end_data is not None and "reason" not in self._end_data and self._error is None


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a prediction that has succeeded: at once, when it is polled, or as a stream of its output."""
    if parts.tool_calls:
        return None
    name = parts.path.rpartition("/")[2] if parts.operation == "poll" else parts.id
    return {
        "id": name,
        "model": parts.model,
        "version": as_text(parts.request.get("version")),
        "input": as_object(parts.request.get("input")),
        "logs": "",
        "error": None,
        "output": [parts.text],
        "status": parts.finish_word("succeeded", "succeeded"),
        **dict.fromkeys(("created_at", "started_at", "completed_at"), parts.created_at),
        "metrics": {"input_token_count": parts.input_tokens, "output_token_count": parts.output_tokens},
        "urls": {"get": f"https://api.replicate.com/v1/predictions/{name}"},
    }


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write each piece of the output, and the end."""
    output = answer.get("output")
    for number, piece in enumerate([output] if isinstance(output, str) else as_array(output)):
        data = "".join(f"data: {line}\n" for line in as_text(piece).split("\n"))
        yield f"event: output\nid: {number}:0\n{data}\n".encode("utf-8", "replace")
    yield sse_message("done", {})


DIALECT: Final = Dialect(
    name="replicate",
    claim=claim,
    services=(Service(provider="replicate", hosts=("api.replicate.com",)),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_by_path("sse"),
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
