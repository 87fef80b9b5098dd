"""Models at AWS SageMaker's endpoints, whose bodies are those of their servers, mostly TGI or OpenAI's.

A stream comes in Amazon's frames, whose payloads are the pieces of the server's own stream.
"""

import re
from typing import Final

from calls.codec.lenient_json import members
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.openai import chat as openai_chat
from calls.dialects.parts.assembly import Accumulator, AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.services import text_generation
from calls.framing import Framing, payloads, sse
from calls.model import Headers, Json

NAME: Final = "sagemaker"

_HOST: Final = re.compile(r"runtime(-fips)?\.sagemaker\..+\.amazonaws\.com(\.cn)?")
_PATH: Final = re.compile(r"(/endpoints/([^/]+)/)(invocations|invocations-response-stream)")
_FRAMINGS: Final[tuple[Framing, ...]] = (payloads, sse)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """An endpoint, asked whole or for a stream: it is the model as far as anybody can tell."""
    match = _PATH.fullmatch(path) if method == "POST" and _HOST.fullmatch(host) else None
    if match is None:
        return None
    streams, place = match[3].endswith("stream"), match[1] + "invocations"
    return Claim(dialect=NAME, operation="text_completion", kind="model", path=place, model=match[2], streams=streams)


def asked(body: Json) -> RequestSummary:
    """What a request says, in whichever shape."""
    return openai_chat.asked(body) if "messages" in members(body) else text_generation.asked(body)


def told(answer: Json) -> AnswerSummary:
    """What an answer says, in whichever shape."""
    return openai_chat.told(answer) if "choices" in members(answer) else text_generation.told(answer)


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, SagemakerStream(), _FRAMINGS)


class SagemakerStream:
    """The carried events, whoever's shape they have."""

    def __init__(self) -> None:
        self._inner: Accumulator | None = None
        self._error: Json = None

    def take(self, event: str, data: str) -> None:
        """Take one event, or an exception under HTTP 200."""
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **payload(data)}
            return
        if self._inner is None:
            self._inner = (
                openai_chat.ChatStream() if "choices" in payload(data) else text_generation.TextGenerationStream()
            )
        self._inner.take(event, data)

    @property
    def answer(self) -> Json:
        """The answer so far; where there is only an error, the error's own body."""
        whole = members(self._inner.answer) if self._inner else {}
        if self._error is not None:
            return {**whole, "error": self._error} if whole else self._error
        return dict(whole) or None

    @property
    def complete(self) -> bool | None:
        """Whether the carried stream ended, and no error came."""
        return self._inner.complete if self._inner and self._error is None else False
