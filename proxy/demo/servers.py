"""The two servers that the demo's agent uses: `python -m proxy.demo.servers`.

The process prints one JSON line with its ports, and stops when its stdin closes, so that it cannot outlive its parent. It
uses only the standard library, to start fast.
"""

import json
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from proxy.demo import model, tickets

TOKEN_GAP = 0.012
"""Seconds between two events of a stream: visible as they arrive, and fast enough for a demo."""


class Handler(BaseHTTPRequestHandler):
    """The common base of both servers: HTTP/1.1, JSON, no log."""

    protocol_version = "HTTP/1.1"
    server_version = "standin"
    sys_version = ""
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name that the base class has
        """Log nothing, because the terminal shows the demo."""

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))))

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.begin_answer(status, content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_answer(self, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("x-request-id", f"req_{secrets.token_hex(12)}")

    def answer_in_pieces(self, pieces: Iterator[bytes], gap: float) -> None:
        self.begin_answer(200, "text/event-stream; charset=utf-8")
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(gap)
        self.wfile.write(b"0\r\n\r\n")

    def answer_not_found(self) -> None:
        error = {"message": f"No such endpoint: {self.command} {self.path}", "type": "not_found", "code": "404"}
        self.answer(404, json.dumps({"error": error}).encode())


class ModelHandler(Handler):
    gap: ClassVar[float] = TOKEN_GAP

    def do_POST(self) -> None:
        request_fields = self.read_json()
        if urlsplit(self.path).path != "/v1/chat/completions":
            return self.answer_not_found()
        reply = model.next_reply(request_fields["messages"])
        prompt = int(self.headers["content-length"])
        if not request_fields.get("stream"):
            return self.answer(200, model.whole_answer(reply, prompt))
        with_usage = bool((request_fields.get("stream_options") or {}).get("include_usage"))
        return self.answer_in_pieces(model.streamed_answer(reply, prompt, with_usage=with_usage), self.gap)


class TicketHandler(Handler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/v2/tickets":
            return self.answer_not_found()
        request_fields = {name: values[-1] for name, values in parse_qs(url.query).items()}
        found = tickets.search_tickets(request_fields.get("query", ""), int(request_fields.get("limit", "10")))
        return self.answer(200, json.dumps(found).encode())

    def do_POST(self) -> None:
        request_fields = self.read_json()
        match urlsplit(self.path).path.split("/"):
            case ["", "v2", "tickets", ticket, "notes"]:
                note = tickets.add_note(ticket, str(request_fields.get("text", "")))
                return self.answer(201, json.dumps(note).encode())
            case _:
                return self.answer_not_found()


def start_server(handler: type[Handler], port: int = 0) -> ThreadingHTTPServer:
    """Start a server on a port of this machine, by default a free one."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


def main() -> None:
    ports = {"model": start_server(ModelHandler).server_port, "tickets": start_server(TicketHandler).server_port}
    sys.stdout.write(json.dumps({"ready": True, **ports}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
