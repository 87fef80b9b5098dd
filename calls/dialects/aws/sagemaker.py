"""Models at AWS SageMaker's endpoints, whose bodies are in the shape of their servers: mostly TGI's or OpenAI's.

The payloads of Amazon's frames are the pieces of the server's own stream.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.openai import chat as openai_chat
from calls.dialects.openai.chat_writer import compose_chat_answer, write_chat_stream
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import streamed_by_path
from calls.dialects.parts.assembly import Accumulator, AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.services import text_generation
from calls.framing import Framing, payloads, sse
from calls.framing.eventstream import encode_frame
from calls.model import Headers, Json

_HOST: Final = re.compile(r"runtime(-fips)?\.sagemaker\..+\.amazonaws\.com(\.cn)?")
_PATH: Final = re.compile(r"(/endpoints/([^/]+)/)(invocations|invocations-response-stream)")
_FRAMINGS: Final[tuple[Framing, ...]] = (payloads, sse)


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the invocations of an endpoint. Its name stands for the model, which is not known."""
    match = _PATH.fullmatch(path) if method == "POST" and _HOST.fullmatch(host) else None
    if match is None:
        return None
    streams, key_path = match[3].endswith("stream"), match[1] + "invocations"
    return Claim(operation="text_completion", kind="model", path=key_path, model=match[2], streams=streams)


def summarize_request(body: Json) -> RequestSummary:
    """Summarize a request in either shape."""
    return (
        openai_chat.summarize_request(body)
        if "messages" in as_object(body)
        else text_generation.summarize_request(body)
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Summarize an answer in either shape."""
    return (
        openai_chat.summarize_answer(answer)
        if "choices" in as_object(answer)
        else text_generation.summarize_answer(answer)
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, SagemakerStream(), _FRAMINGS)


class SagemakerStream:
    """The carried events, in either shape."""

    def __init__(self) -> None:
        self._inner: Accumulator | None = None
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:
        """Add one event, or an exception under HTTP 200."""
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **parse_payload(data)}
            return
        if self._inner is None:
            self._inner = (
                openai_chat.ChatStream() if "choices" in parse_payload(data) else text_generation.TextGenerationStream()
            )
        self._inner.add_message(event, data)

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        whole = as_object(self._inner.answer) if self._inner else {}
        if self._error is not None:
            return {**whole, "error": self._error} if whole else self._error
        return dict(whole) or None

    @property
    def is_complete(self) -> bool | None:
        """Whether the carried stream ended, and no error arrived."""
        return self._inner.is_complete if self._inner and self._error is None else False


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer in the form of the server that takes such a request."""
    return compose_chat_answer(parts) if "messages" in parts.request else text_generation.compose_answer(parts)


def _write_stream(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[bytes] | None:
    """Write the events of the server's own stream, each in a frame; None for an answer in another form."""
    write = write_chat_stream if "choices" in answer else text_generation.write_stream
    events = write(answer, request)
    headers = {":event-type": "PayloadPart", ":content-type": "application/octet-stream", ":message-type": "event"}
    return None if events is None else (encode_frame(headers, event) for event in events)


DIALECT: Final = Dialect(
    name="sagemaker",
    claim=claim,
    services=(
        Service(
            provider="aws.sagemaker",
            host_pattern=r"runtime(-fips)?\.sagemaker\..+\.amazonaws\.com(\.cn)?",
            only_models=False,
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_by_path("eventstream"),
    stream_writers={"eventstream": _write_stream},
    compose_answer=_compose_answer,
)
