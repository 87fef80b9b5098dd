"""Services for reproducing the bugs of other recorders: upstreams that answer as a test says, one `playhead up` that records and
one that replays, both real processes. What the first recorded is carried to the other as a file."""

import base64
import http.client
import json
import re
import signal
import socketserver
import ssl
import struct
import subprocess
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from store.bundle.bundle import Bundle, read_bundle
from tests.support.api import authorization, ready_words
from tests.support.forks import FORKED_HELPERS
from tests.support.service import READY, command, surroundings

OPENAI, BEDROCK, TOOLS = "api.openai.com", "bedrock-runtime.us-east-1.amazonaws.com", "tools.example.com"
ANTHROPIC, CHATGPT = "api.anthropic.com", "chatgpt.com"
HOSTS = (OPENAI, ANTHROPIC, BEDROCK, TOOLS, CHATGPT)

CHAT = f"https://{OPENAI}/v1/chat/completions"

CUT = b"\0cut\0"
"""A piece that is none: the upstream breaks off here, with a reset."""


# Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A request as it came to the upstream."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Upstream:
    """Answers each path from its list, in order; the last answer stays."""

    port: int = 0
    answers: dict[str, list[Sequence[bytes]]] = field(default_factory=dict)
    asked: list[UpstreamRequest] = field(default_factory=list)
    together: threading.Barrier | None = None
    """Where it is set, requests wait here for one another before they are answered."""

    def next(self, asked: UpstreamRequest) -> Sequence[bytes]:
        """What is sent, piece by piece."""
        self.asked.append(asked)
        waiting = self.answers[asked.target.partition("?")[0]]
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def whole(body: bytes, *headers: str, status: int = 200, media: str = "application/json") -> list[bytes]:
    """An answer of known length."""
    head = (f"HTTP/1.1 {status} OK", f"content-type: {media}", f"content-length: {len(body)}", *headers, "", "")
    return ["\r\n".join(head).encode(), body]


def streamed_answer(*pieces: bytes, media: str = "text/event-stream", ends: bool = True) -> list[bytes]:
    """An answer in chunks; without its end, the upstream breaks off."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {media}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunks = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return [head, *chunks, b"0\r\n\r\n" if ends else CUT]


def model_answer(text: str, **more: Any) -> bytes:
    """What a model says, whole."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    fields = {"id": f"chatcmpl-{text}", "object": "chat.completion", "created": 1, "model": "gpt-4o-2024-08-06"}
    return json.dumps({**fields, "choices": [choice], **more}).encode()


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        upstream: Upstream = self.server.upstream  # type: ignore[attr-defined]
        while line := self.rfile.readline():
            asked = self._read(line.decode("latin-1"))
            if upstream.together:
                upstream.together.wait(60)
            for piece in upstream.next(asked):
                if piece == CUT:
                    self.wfile.flush()
                    self.connection.setsockopt(1, 13, struct.pack("ii", 0, 0))
                    return
                self.wfile.write(piece)

    def _read(self, line: str) -> UpstreamRequest:
        method, target, _ = line.split(" ", 2)
        headers: dict[str, str] = {}
        while (field_ := self.rfile.readline().decode("latin-1").strip()) != "":
            name, _, value = field_.partition(":")
            headers[name.lower()] = value.strip()
        body = self.rfile.read(int(headers.get("content-length", "0")))
        return UpstreamRequest(method=method, target=target, headers=headers, body=body)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever leaves in the middle is nobody's business."""


@contextmanager
def upstreams() -> Iterator[Upstream]:
    """One server that stands for all hosts."""
    upstream = Upstream()
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.upstream = upstream  # type: ignore[attr-defined]
        upstream.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield upstream
        server.shutdown()


def until[T](question: Callable[[], T | None]) -> T:
    """Ask again and again until there is an answer: another process sends us no events."""
    for _ in range(1200):
        if answer := question():
            return answer
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


# Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running `playhead up`."""

    proxy: str
    api: str
    ca: str
    process: subprocess.Popen[str]
    data: Path

    def client(self, run: str, **more: Any) -> httpx.Client:
        """An agent's client under a run."""
        context = ssl.create_default_context(cafile=self.ca)
        return httpx.Client(
            proxy=self.proxy.replace("//", f"//{run}:@"), verify=context, trust_env=False, timeout=60, **more
        )

    def connection(self, run: str, host: str) -> http.client.HTTPSConnection:
        """The same for many or large calls of one host, of which httpx takes most of the time."""
        context = ssl.create_default_context(cafile=self.ca)
        place = urlsplit(self.proxy)
        connection = http.client.HTTPSConnection(place.hostname or "", place.port, context=context, timeout=60)
        credentials = base64.b64encode(f"{run}:".encode()).decode()
        connection.set_tunnel(host, headers={"proxy-authorization": f"Basic {credentials}"})
        return connection

    def request(self, method: str, path: str, **what: Any) -> httpx.Response:
        """What the REST interface answers."""
        headers = authorization(self.api) | what.pop("headers", {})
        return httpx.request(
            method, f"{self.api}/v1{path}", headers=headers, trust_env=False, verify=False, timeout=60, **what
        )

    def ask(self, method: str, path: str, **what: Any) -> Any:
        """JSON of the REST interface."""
        answer = self.request(method, path, **what)
        assert answer.status_code < 400, answer.text
        return answer.json() if answer.content else None

    def calls(self, run: str, *, is_summary: bool = False) -> list[dict[str, Any]]:
        """A run's calls, whole or as lists have them, once all that was acknowledged is in. On a busy machine that takes longer than one question may."""

        def fetch_settled() -> list[dict[str, Any]] | None:
            params = {"settled": "true", "limit": 500} | ({} if is_summary else {"fields": "*"})
            answer = self.request("GET", f"/runs/{run}/calls", params=params)
            if answer.status_code == 404:
                return None
            result = answer.raise_for_status().json()
            return result["items"] if result["settled"] else None

        return until(fetch_settled)


@contextmanager
def service(data: Path, *flags: str, config: str) -> Iterator[Service]:
    """Start one; stop it cleanly."""
    file = data.with_suffix(".toml")
    file.write_text(config)
    place = ("--data", str(data), "--config", str(file), "--proxy-port", "0", "--api-port", "0")
    around = surroundings() | {FORKED_HELPERS: "1"}
    process = subprocess.Popen(command("up", *place, *flags), stdout=subprocess.PIPE, text=True, env=around)
    assert process.stdout
    try:
        line = process.stdout.readline()
        assert READY.match(line), line
        words = ready_words(line)
        yield Service(proxy=words["proxy"], api=words["api"], ca=words["ca"], process=process, data=data)
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        assert process.wait(15) == 0


# The stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay under way."""

    id: str
    at: Service

    def client(self, **more: Any) -> httpx.Client:
        """An agent's client, answered from the recording."""
        return self.at.client(self.id, **more)

    def report(self, requests: int) -> dict[str, Any]:
        """Its report, as soon as it tells of so many requests: the worker tells it a moment after it has answered."""

        def fetch_report() -> dict[str, Any] | None:
            found: dict[str, Any] = self.at.ask("GET", f"/replays/{self.id}", params={"settled": "true"})
            return found if found["served"] + found["missed"] >= requests else None

        return until(fetch_report)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAndReplay:
    """An upstream, a service that records and one that replays, and the run of a test."""

    upstream: Upstream
    recorder: Service
    player: Service
    run: str = field(default_factory=lambda: f"run-{uuid.uuid4()}")

    def script(self, **paths: Sequence[Sequence[bytes]]) -> None:
        """What the upstream answers, by path; `_` stands for a slash."""
        self.upstream.answers = {path.replace("_", "/"): list(answers) for path, answers in paths.items()}
        self.upstream.asked.clear()
        self.upstream.together = None

    def answers(self, path: str, *answers: Sequence[bytes]) -> None:
        """What the upstream answers to a path."""
        self.upstream.answers[path] = list(answers)

    def recording(self, **more: Any) -> httpx.Client:
        """A client whose calls are recorded under this test's run."""
        return self.recorder.client(self.run, **more)

    def calls(self) -> list[dict[str, Any]]:
        """What was recorded."""
        return self.recorder.calls(self.run)

    def exchanges(self) -> list[dict[str, Any]]:
        """The exchanges of the run's calls, in order."""
        ids = [name for call in self.calls() for name in call["exchanges"]]
        return [self.recorder.ask("GET", f"/exchanges/{name}") for name in ids]

    def file(self) -> bytes:
        """The run as a file."""
        self.recorder.calls(self.run, is_summary=True)
        answer = self.recorder.request("GET", f"/runs/{self.run}/bundle")
        return answer.raise_for_status().content

    def bundle(self) -> Bundle:
        """The run as it reads from its file."""
        return read_bundle(self.file().splitlines(keepends=True))

    def replay(self, file: bytes | None = None) -> Replay:
        """Carry the run to the player, and begin a replay. The upstream answers nothing any more."""
        self.upstream.answers = defaultdict(lambda: [whole(b"the upstream was asked in a replay", status=500)])
        self.upstream.asked.clear()
        content = memoryview(file or self.file())
        # httpx copies what is left of a large body each time that a part of it was sent.
        pieces = (content[start : start + (1 << 20)].tobytes() for start in range(0, len(content), 1 << 20))
        self.player.ask("POST", "/import", content=pieces, headers={"content-length": str(len(content))})
        made = self.player.ask("POST", "/replays", json={"run": self.run})
        return Replay(id=made["id"], at=self.player)


def pointers(miss: Mapping[str, Any]) -> list[str]:
    """Where a request that was missed differs from the nearest recording."""
    return [one["pointer"] for one in miss["playhead"]["nearest"]["differences"]]


def config(port: int) -> str:
    """Every host is this upstream."""
    lines = [f'"{host}" = "http://127.0.0.1:{port}"' for host in HOSTS]
    return "body_limit = 150000000\n[upstreams]\n" + "\n".join(lines) + "\n"


def worker(at: Service) -> int:
    """The process that agents speak to."""
    children = Path(f"/proc/{at.process.pid}/task/{at.process.pid}/children").read_text().split()
    return next(
        int(child) for child in children if b"proxy.worker.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def resident(pid: int) -> int:
    """Megabytes of memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0
