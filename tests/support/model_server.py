"""A fake OpenAI-compatible server whose answers depend only on the question, or vary."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any


@dataclass(slots=True)
class ModelServer:
    """The server's behaviour, and the requests that it received."""

    varies: bool = False
    logprobs: bool = True
    claim: str | None = None
    fingerprint: str = "sha256:one"
    status: int = 200
    owner: str = "vllm"
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    """The authorization header of each request."""
    _turns: dict[tuple[Any, ...], Iterator[int]] = field(default_factory=dict)
    """How often each question was received. Guarded by a lock, because threads answer at the same time."""

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return an answer that depends only on the question, or, if the server varies, a slightly different one every
        second time.
        """
        self.asked.append(body)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        turn = next(self._turns.setdefault((prompt, body.get("temperature")), count()))
        drift = 1e-9 if self.varies and turn % 2 else 0.0
        value = -0.5 - len(prompt) / 1000 - drift
        text = f"so much for {prompt[:8]}"
        shown = {"tokens": [text], "token_logprobs": [value]}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": shown if self.logprobs else None}
        if "messages" in body:
            content = [{"token": text, "logprob": value, "bytes": None, "top_logprobs": []}]
            choice |= {"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}}
        else:
            choice |= {"text": text}
        kind = "chat.completion" if "messages" in body else "text_completion"
        made = len(self.asked)
        return {"id": f"cmpl-{made}", "created": made, "object": kind, "model": "tiny", "choices": [choice]}


@contextmanager
def serving(model: ModelServer) -> Iterator[ModelServer]:
    """Serve on a free local port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": [{"id": "tiny", "owned_by": model.owner}]}, 200)

        def do_POST(self) -> None:
            model.keys.append(self.headers["authorization"])
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._send(model.answer(body) if model.status == 200 else {"error": "busy"}, model.status)

        def _send(self, value: Any, status: int) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            if model.claim:
                self.send_header("x-batch-invariant", model.claim)
                self.send_header("x-batch-invariant-fingerprint", model.fingerprint)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
