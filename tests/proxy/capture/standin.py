"""A fake internet for captive commands: one HTTP server on loopback in place of every host, which counts requests."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ZONE = "captive.example"
ADDRESSES = ("203.0.113.7", "2001:db8::7")
COMMIT = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass
class StandIn:
    """The server's address, and the requests that it got."""

    port: int
    asked: Counter[str] = field(default_factory=Counter)
    """The number of requests for each `METHOD host/path`."""

    @property
    def config(self) -> str:
        """Return a playhead.toml that sends every host of the tests to this server."""
        hosts = (ZONE, f"*.{ZONE}", *ADDRESSES)
        return "[upstreams]\n" + "".join(f'"{host}" = "http://127.0.0.1:{self.port}"\n' for host in hosts)


@contextmanager
def start_stand_in() -> Iterator[StandIn]:
    """Serve while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.standin = StandIn(server.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.standin  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        host = self.headers.get("host", "").partition(":")[0] if "[" not in self.headers.get("host", "") else "v6"
        asked = self.server.standin.asked  # type: ignore[attr-defined]
        asked[f"{self.command} {host}{self.path}"] += 1
        answer = _numbered_answer(self.path, sum(asked.values()), body)
        self.send_response(200)
        self.send_header("content-type", "application/json" if answer[:1] == b"{" else "text/plain")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


def _numbered_answer(path: str, number: int, body: bytes) -> bytes:
    """Each answer is different, so an equal one comes from a recording."""
    if "/info/refs" in path:
        return f"{COMMIT}\trefs/heads/answer-{number}\n".encode()
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": f"refund ticket 904, says answer {number}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return json.dumps(
            {"id": f"c-{number}", "object": "chat.completion", "model": "m", "created": 1, "choices": [choice]}
        ).encode()
    return json.dumps({"answer": number, "path": path, "sent": len(body)}).encode()
