"""Recorded exchanges for tests, short to write and complete enough to be replayed."""

from calls.codec.json import dumps
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import Body, Chunk, Exchange, Headers, Json, Outcome, Request, Response
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry

SECOND = 1_000_000_000
PROFILES = load_profiles(None)
JSON: Headers = (("Content-Type", "application/json"),)


def body(*pieces: bytes, every: int = 1_000_000) -> Body:
    """A body that arrived in these pieces, one per millisecond."""
    chunks, offset = [], 0
    for number, piece in enumerate(pieces, 1):
        chunks.append(Chunk(number * every, offset, len(piece)))
        offset += len(piece)
    return Body(data=b"".join(pieces), chunks=tuple(chunks), size=offset)


def post(url: str, data: bytes, headers: Headers = JSON) -> Request:
    """A POST of JSON."""
    return Request(method="POST", url=url, headers=headers, body=body(data) if data else Body())


def ok(*pieces: bytes, status: int = 200, headers: Headers = JSON) -> Response:
    """A response in pieces."""
    return Response(status=status, reason="OK", headers=headers, body=body(*pieces))


def exchange(
    request: Request,
    response: Response | None,
    *,
    number: int = 1,
    outcome: Outcome = "completed",
    started_at: int | None = None,
    ended_at: int | None = SECOND // 2,
) -> Exchange:
    """The exchange with this number in a run; each starts a second after the previous one."""
    return Exchange(
        id=f"0199aaaa-0000-7000-8000-{number:012d}",
        run="run-1",
        request=request,
        response=response,
        outcome=outcome,
        started_at=number * SECOND if started_at is None else started_at,
        first_byte_at=SECOND // 1000 if response else None,
        ended_at=ended_at,
    )


CHAT = "https://api.openai.com/v1/chat/completions"


def chat(prompt: str, **more: Json) -> Request:
    """A chat completion request."""
    return post(CHAT, dumps({"model": "gpt-test", "messages": [{"role": "user", "content": prompt}], **more}))


def model_answer(text: str) -> Response:
    """The answer of a model, in one piece."""
    message: Json = {"role": "assistant", "content": text}
    choice: Json = {"index": 0, "message": message, "finish_reason": "stop"}
    usage: Json = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    answer: dict[str, Json] = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-test",
        "choices": [choice],
    }
    return ok(dumps({**answer, "usage": usage}))


def said_in_a_stream(text: str, *, ended: bool = True) -> Response:
    """The answer of a model as a stream, with or without its end mark."""
    delta: Json = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    event: Json = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test", "choices": [delta]}
    pieces = [b"data: " + dumps(event) + b"\n\n", b"data: [DONE]\n\n"][: 1 + ended]
    return ok(*pieces, headers=(("content-type", "text/event-stream"),))


def failed_in_a_stream(text: str) -> Response:
    """The answer of a model as a stream that ends with an error."""
    begun = said_in_a_stream(text, ended=False).body.data
    error = b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'
    return ok(begun, error, headers=(("content-type", "text/event-stream"),))


def run_of(*exchanges: Exchange, profiles: Profiles = PROFILES, run: str = "run-1") -> Bundle:
    """A bundle of these exchanges, keyed under these profiles."""
    entries = [
        Entry(exchange=exchange, call={"key": make_key(exchange.request, profiles).key}) for exchange in exchanges
    ]
    return Bundle(run={"id": run}, profiles=profiles.digest, entries=tuple(entries))
