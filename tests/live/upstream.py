"""The upstream of the client matrix: a model API that sends the same bytes each time, and knows what it was sent."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

from proxy.demo import model
from proxy.demo.servers import Handler, start_server

SAID = model.plan_tool_calls("any refunds?")
CHAT = model.whole_answer(SAID, 400)
CHAT_EVENTS = tuple(model.streamed_answer(SAID, 400, with_usage=True))

MESSAGE = {
    "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
    "type": "message",
    "role": "assistant",
    "model": "claude-example",
    "content": [{"type": "text", "text": "There are three open refund tickets."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 9},
}


def _event(name: str, **members: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()


MESSAGE_EVENTS = (
    _event("message_start", message={**MESSAGE, "content": [], "stop_reason": None}),
    _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    _event("ping"),
    *(
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"{word} "})
        for word in ("There", "are", "three", "open", "refund", "tickets.")
    ),
    _event("content_block_stop", index=0),
    _event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 9}),
    _event("message_stop"),
)

WHOLE = {"/v1/chat/completions": CHAT, "/v1/messages": json.dumps(MESSAGE).encode()}
STREAMS = {"/v1/chat/completions": CHAT_EVENTS, "/v1/messages": MESSAGE_EVENTS}


def response_body(path: str, *, streamed: bool) -> bytes:
    """The body that the upstream sends."""
    return b"".join(STREAMS[path]) if streamed else WHOLE[path]


class Upstream(Handler):
    @property
    def place(self) -> str:
        """The path, also where the whole URL came, as it does to a proxy."""
        return urlsplit(self.path).path

    gate: ClassVar[threading.Event] = threading.Event()
    """What `/gated` waits for between its two events; `/go` opens it."""

    def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.place == "/digest":
            return self.answer(200, hashlib.sha256(body).hexdigest().encode(), "text/plain")
        if json.loads(body).get("stream"):
            return self.answer_in_pieces(iter(STREAMS[self.place]), 0)
        return self.answer(200, WHOLE[self.place])

    def do_GET(self) -> None:  # noqa: N802 - likewise
        match self.place.split("/"):
            case ["", "bytes", size]:
                return self.answer(200, pattern_bytes(int(size)), "application/octet-stream")
            case ["", "gated"]:
                return self.answer_in_pieces(self.stream_until_gate(), 0)
            case ["", "go"]:
                self.gate.set()
                return self.answer(200, b"gone")
            case _:
                return self.answer_not_found()

    def stream_until_gate(self) -> Iterator[bytes]:
        yield b"data: first\n\n"
        yield b"data: second\n\n" if self.gate.wait(20) else b"data: too late\n\n"


def pattern_bytes(size: int) -> bytes:
    return (hashlib.sha256(b"playhead").digest() * (size // 32 + 1))[:size]


@contextmanager
def upstream() -> Iterator[ThreadingHTTPServer]:
    """The upstream, answering."""
    Upstream.gate.clear()
    server = start_server(Upstream)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
