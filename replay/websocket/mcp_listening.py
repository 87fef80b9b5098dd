"""Say which requests each event of MCP's listening streams has to wait for, and which answers wait for its questions.

A server may ask its client while it works on a request: for a sample of a model, for the roots, or a person. Where it asks on
the listening stream, nothing says for which request. So an event waits for any of the requests that were open then, or for the
last one before, where none was; and for the answers to earlier questions. What was answered to questions that were asked while
a request was open comes before the answer to that request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from calls.codec.json import InvalidJson, dumps, parse_json_leniently
from calls.codec.lenient_json import as_object
from calls.dialects.protocols.jsonrpc import is_answer, split_messages
from calls.model import Body, Exchange, Json
from replay.pacing import RECORDED
from replay.reframing.readdress import split_events

type Messages = Sequence[Mapping[str, Json]]

_UNORDERED: Final = frozenset(("notifications/cancelled", "notifications/progress"))
"""What a client sends or not, depending on the time."""


class Reply(NamedTuple):
    """The client's answer to a question of the server."""

    at: int
    """When it was recorded, in nanoseconds."""

    step: int


class SentRequest(NamedTuple):
    """What a client request in one POST."""

    step: int
    started_at: int
    ended_at: int
    """When the exchange ended, in nanoseconds."""

    messages: Messages = ()
    """Empty if it was not read."""


class EventWait(NamedTuple):
    """What one event waits for."""

    at: int
    """When it was recorded, in nanoseconds: it waits for the client's answers that were recorded before this."""

    any_of: Sequence[int]
    """Steps of which one must come first; empty if none need."""

    after: int | None = None
    """The step of the last notification before it."""

    owner: int | None = None
    """The step of the request whose id or progress token the event has."""

    reply: Reply | None = None
    """The answer to the question that the event is."""


class EventPlan(NamedTuple):
    """The events of a stream, and what each of them waits for."""

    events: Body
    waits: Sequence[EventWait]
    replies: Mapping[int, Sequence[Reply]]
    """By the step of a request: the answers to what the server asked while it was open."""


def names_requests(messages: Messages) -> bool:
    """Whether any of these messages of a server is a question to its client, or about one request."""
    return any(_is_question(message) or _event_name(message) is not None for message in messages)


def plan_events(exchange: Exchange, requests: Sequence[SentRequest]) -> EventPlan:
    """Plan the events of a stream. `requests`: those of its session, in their order."""
    assert exchange.response is not None
    events = split_events(exchange.response.body)
    read = [(exchange.started_at + piece.at, event_messages(piece.data)) for piece in RECORDED.pieces(events)]
    answered_at = {_name("id", message): at for at, messages in read for message in messages if is_answer(message)}
    owners = {
        name: request.step for request in requests for message in request.messages for name in _request_names(message)
    }
    replies = _Replies(requests)
    sent_before = _SentBefore(requests, answered_at)
    waits: list[EventWait] = []
    replies_of: dict[int, list[Reply]] = {}
    for at, messages in read:
        open_steps = sent_before.open_steps(at)
        owner = next((owners[name] for message in messages if (name := _event_name(message)) in owners), None)
        any_of = open_steps or sent_before.last_step if owner is None else [owner]
        reply = next((found for message in messages if (found := replies.find(message, at))), None)
        if reply is not None:
            for step in open_steps:
                replies_of.setdefault(step, []).append(reply)
        waits.append(EventWait(at, any_of, sent_before.last_notification, owner, reply))
    return EventPlan(events, waits, replies_of)


class _Replies:
    """The client's answers, by the ids of the questions."""

    def __init__(self, requests: Sequence[SentRequest]) -> None:
        self._by_id: dict[str, list[Reply]] = {}
        for request in requests:
            for message in filter(is_answer, request.messages):
                self._by_id.setdefault(_name("id", message), []).append(Reply(request.started_at, request.step))

    def find(self, message: Mapping[str, Json], asked_at: int) -> Reply | None:
        if not _is_question(message):
            return None
        found = self._by_id.get(_name("id", message), ())
        return next((reply for reply in found if reply.at >= asked_at), None)


class _SentBefore:
    """What a client had sent at times that only increase."""

    def __init__(self, requests: Sequence[SentRequest], answered_at: Mapping[str, int]) -> None:
        self._requests = requests
        self._answered_at = answered_at
        self._count = 0
        self._open: list[tuple[int, int]] = []
        self.last_notification: int | None = None

    def open_steps(self, at: int) -> list[int]:
        """The steps of the requests that were open."""
        while self._count < len(self._requests) and self._requests[self._count].started_at < at:
            request = self._requests[self._count]
            ends = (
                self._answered_at.get(_name("id", message), 0) for message in request.messages if "method" in message
            )
            self._open.append((max(request.ended_at, *ends, 0), request.step))
            if any(_is_ordered_notification(message) for message in request.messages):
                self.last_notification = request.step
            self._count += 1
        self._open = [one for one in self._open if one[0] >= at]
        return [step for _, step in self._open]

    @property
    def last_step(self) -> list[int]:
        """The step of the last request; empty if there was none."""
        return [request.step for request in self._requests[max(self._count - 1, 0) : self._count]]


def event_messages(event: bytes) -> Messages:
    """The JSON-RPC messages of one event."""
    return body_messages(b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")))


def body_messages(data: bytes) -> Messages:
    """The JSON-RPC messages of a body; none if it is not JSON."""
    try:
        return split_messages(parse_json_leniently(data))
    except InvalidJson:
        return ()


def _is_question(message: Mapping[str, Json]) -> bool:
    return "method" in message and message.get("id") is not None


def _is_ordered_notification(message: Mapping[str, Json]) -> bool:
    return "method" in message and message.get("id") is None and message["method"] not in _UNORDERED


def id_name(value: Json) -> str:
    """Return what an id or a token is compared by, whatever its type: 1 and "1" differ."""
    return dumps(value).decode()


def _name(kind: str, message: Mapping[str, Json]) -> str:
    return f"{kind} {id_name(message.get('id'))}"


def _request_names(message: Mapping[str, Json]) -> Iterator[str]:
    """The names by which events refer to a request."""
    if _is_question(message):
        yield _name("id", message)
        token = as_object(as_object(message.get("params")).get("_meta")).get("progressToken")
        if token is not None:
            yield _name("token", {"id": token})


def _event_name(message: Mapping[str, Json]) -> str | None:
    if message.get("method") == "notifications/progress":
        return _name("token", {"id": as_object(message.get("params")).get("progressToken")})
    return _name("id", message) if is_answer(message) else None
