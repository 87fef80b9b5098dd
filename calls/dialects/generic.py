"""Any other HTTP API: JSON as JSON, text as text, event streams and WebSockets as lists of messages."""

import re
from collections.abc import Sequence
from typing import Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect
from calls.dialects.protocols.jsonrpc import is_answer, split_messages, state_of_answers
from calls.framing import Message, MessageDecoder, sse, websocket
from calls.model import Headers, Json

_TEXT: Final = ("text/", "xml", "javascript", "ndjson", "jsonl", "json-seq", "stream+json", "graphql", "yaml", "csv")


def claim(_method: str, _host: str, _path: str, _headers: Headers) -> Claim | None:
    """Claim every request: this dialect is asked last."""
    return Claim(operation="request", kind=None)


JSON_RPC: Final = ("json_rpc", "json_rpc_batch")
"""The operations of JSON-RPC of which no more is known: one message, or several in one body."""


def claim_json_rpc(_headers: Headers, methods: tuple[str, ...]) -> Claim | None:
    """Claim calls of any method. It counts only where nothing else claims the request, by its head either."""
    return Claim(operation=JSON_RPC[len(methods) > 1], kind=None) if methods else None


PRESIGNED_POST: Final = "presigned_post"
"""The operation of a form by which a client uploads a file with somebody else's signature: that of S3, and of stores like it."""

_POLICY_FIELD: Final = re.compile(rb'name="[Pp]olicy"')
_SIGNED_FIELDS: Final = re.compile(rb'name="(?:x-(?:amz|goog|oss|obs)-signature|signature)"', re.IGNORECASE)


def claim_body(body: bytes) -> Claim | None:
    """Claim a form with a signed policy, which is new in each run, as are its times."""
    is_signed = _POLICY_FIELD.search(body) and _SIGNED_FIELDS.search(body)
    return Claim(operation=PRESIGNED_POST, kind=None) if is_signed else None


def summarize_answer(answer: Json) -> AnswerSummary:
    """Use a text as it is; of JSON-RPC whether it failed. The meaning of anything else is unknown."""
    if isinstance(answer, str):
        return AnswerSummary(text=answer)
    # A list of anything else may be very long.
    first = answer[0] if isinstance(answer, Sequence) and answer else answer
    if as_object(first).get("jsonrpc") != "2.0":
        return AnswerSummary()
    answers = [one for one in split_messages(answer) if is_answer(one)]
    return AnswerSummary(state=state_of_answers(answers, lambda _: False))


def assemble(content_type: str) -> Assembly:
    """Make an assembly by media type."""
    if content_type == websocket.MEDIA:
        return EventsBody(websocket.Decoder())
    return EventsBody(sse.Decoder()) if "event-stream" in content_type else WholeBody(content_type)


class WholeBody:
    """A body that is one value."""

    is_streamed: Final = False
    is_complete: Final = None

    def __init__(self, content_type: str) -> None:
        self._is_text = any(word in content_type for word in _TEXT)
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._pieces.append(data)

    def finish(self) -> None:
        """Do nothing: only HTTP marks the end of such a body."""

    @property
    def answer(self) -> Json:
        """The value so far: JSON, or text, or None for anything else."""
        data = b"".join(self._pieces)
        try:
            return parse_json_leniently(data)
        except InvalidJson:
            pass
        try:
            return data.decode() if self._is_text and data else None
        except UnicodeDecodeError:
            return None


class EventsBody:
    """A stream of events or messages: a list of their data, in order, each as JSON where it is JSON."""

    is_streamed: Final = True
    is_complete: Final = None

    def __init__(self, decoder: MessageDecoder) -> None:
        self._decoder = decoder
        self._events: list[Json] = []

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._events.extend(map(_event_value, self._decoder.feed(data)))

    def finish(self) -> None:
        """Note that the body has ended."""
        self._events.extend(map(_event_value, self._decoder.finish()))

    @property
    def answer(self) -> Json:
        """The events so far."""
        return list(self._events)


def _event_value(message: Message) -> Json:
    try:
        value = parse_json_leniently(message.data.encode("utf-8", "replace"))
    except InvalidJson:
        value = message.data
    return {"event": message.event, "data": value} if message.event else {"data": value}


DIALECT: Final = Dialect(
    name="generic",
    claim=claim,
    claim_json_rpc=claim_json_rpc,
    claim_body=claim_body,
    body_start=b"--",
    body_mark=b'olicy"',
    precedence=9,  # claims everything else
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="the form of this API is not known",
)
