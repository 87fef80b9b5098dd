"""Any other HTTP API: JSON as JSON, text as text, event streams and WebSockets as lists of messages."""

from typing import Final

from calls.codec.json import NotLossless, lenient
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.framing import DecoderInterface, Message, sse, websocket
from calls.model import Headers, Json

NAME: Final = "generic"
OPERATION: Final = "request"

_TEXT: Final = ("text/", "xml", "javascript", "ndjson", "jsonl", "json-seq", "stream+json", "graphql", "yaml", "csv")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Everything: this dialect is asked last."""
    return Claim(dialect=NAME, operation=OPERATION, kind=None)


def asked(body: Json) -> RequestSummary:  # noqa: ARG001 # as the protocol has it
    """Nothing that we know the meaning of."""
    return RequestSummary()


def told(answer: Json) -> AnswerSummary:
    """A text is what it says; of anything else we do not know the meaning."""
    return AnswerSummary(text=answer if isinstance(answer, str) else None)


def assemble(content_type: str) -> Assembly:
    """An assembly by media type."""
    if content_type == websocket.MEDIA:
        return Events(websocket.Decoder())
    return Events(sse.Decoder()) if "event-stream" in content_type else WholeBody(content_type)


class WholeBody:
    """A body that is one value."""

    streamed: Final = False
    complete: Final = None

    def __init__(self, content_type: str) -> None:
        self._is_text = any(word in content_type for word in _TEXT)
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._pieces.append(data)

    def finish(self) -> None:
        """HTTP itself says where such a body ends."""

    @property
    def answer(self) -> Json:
        """The value so far: JSON, or text, or None for anything else."""
        data = b"".join(self._pieces)
        try:
            return lenient(data)
        except NotLossless:
            pass
        try:
            return data.decode() if self._is_text and data else None
        except UnicodeDecodeError:
            return None


class Events:
    """A stream of events or messages: a list of their data, in order, each as JSON where it is JSON."""

    streamed: Final = True
    complete: Final = None

    def __init__(self, decoder: DecoderInterface) -> None:
        self._decoder = decoder
        self._events: list[Json] = []

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._events.extend(map(_event, self._decoder.feed(data)))

    def finish(self) -> None:
        """No more bytes will come."""
        self._events.extend(map(_event, self._decoder.finish()))

    @property
    def answer(self) -> Json:
        """The events so far."""
        return list(self._events)


def _event(message: Message) -> Json:
    try:
        value = lenient(message.data.encode("utf-8", "replace"))
    except NotLossless:
        value = message.data
    return {"event": message.event, "data": value} if message.event else {"data": value}
