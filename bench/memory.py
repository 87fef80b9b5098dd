"""Measure how large and hostile bodies affect the memory of Playhead's processes and the latency of other clients:
`python -m bench.memory LOAD…`.

Each load runs against a `playhead up` of its own. Prints the peak resident memory of the proxy worker, the store server
and its helper processes, their memory at rest, and the longest time in which another client, or the API, got no answer.
"""

import argparse
import asyncio
import gzip
import json
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

HOST = "api.openai.com"
STREAMS = 8
MB = 1 << 20


def _sse(size: int) -> list[bytes]:
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0}]}
    pieces = []
    for n in range(size // 250):
        event["choices"] = [{"index": 0, "delta": {"content": f"word {n} {'x' * 100}"}, "finish_reason": None}]
        pieces.append(b"data: " + json.dumps(event).encode() + b"\n\n")
    return [b"".join(pieces[n : n + 40]) for n in range(0, len(pieces), 40)] + [b"data: [DONE]\n\n"]


def _keys(count: int) -> bytes:
    return json.dumps({f"k{n}": n for n in range(count)}).encode()


def _text(size: int) -> bytes:
    text = "".join(f"so it was and so it is, number {n}. " for n in range(size // 32))
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text[:size]}}]}).encode()


def _brotli(opened: int) -> bytes:
    import brotli

    stream = brotli.Compressor(quality=1)
    return b"".join([*(stream.process(bytes(MB)) for _ in range(opened // MB)), stream.finish()])


def _deflated_message(opened: int) -> bytes:
    """Return a WebSocket frame from the server with permessage-deflate."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join(deflater.compress(b"a" * MB) for _ in range(opened // MB)) + deflater.flush(zlib.Z_SYNC_FLUSH)
    data = data[:-4]
    return b"\xc1\x7f" + struct.pack(">Q", len(data)) + data


@dataclass
class _Upstream:
    """An upstream whose answer depends on the path."""

    port: int = 0
    cache: dict[str, bytes] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(one[15:]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                path = urlsplit(head.split(b" ")[1].decode()).path
                if path.startswith("/ws"):
                    await self._socket(head, path, reader, writer)
                    break
                await self._answer(path, writer)
        writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path.startswith("/sse"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for piece in _sse(30 * MB):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            return
        body, extra = self.body(path)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n" % (extra, len(body))
        )
        writer.write(body)
        await writer.drain()

    def body(self, path: str) -> tuple[bytes, bytes]:
        """Return a body and its additional headers, generated once."""
        kinds: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/keys": lambda: (_keys(10**6), b""),
            "/text": lambda: (_text(5 * MB), b""),
            "/brotli": lambda: (_brotli(1 << 30), b"content-encoding: br\r\n"),
            "/gzip": lambda: (gzip.compress(b"\0" * (640 * MB)), b"content-encoding: gzip\r\n"),
        }
        kind = "/" + path.split("/")[1]
        if kind not in self.cache:
            self.cache[kind], extra = kinds.get(kind, lambda: (b'{"ok":true}', b""))()
            self.cache[kind + " head"] = extra
        return self.cache[kind], self.cache[kind + " head"]

    async def _socket(self, head: bytes, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import base64
        import hashlib

        key = next(one[18:].strip() for one in head.split(b"\r\n") if one.lower().startswith(b"sec-websocket-key:"))
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        deflate = b"sec-websocket-extensions: permessage-deflate\r\n"
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n")
        writer.write(deflate + b"sec-websocket-accept: " + accept + b"\r\n\r\n")
        if path == "/ws/bomb":
            writer.write(self.cache["/ws/bomb"])
        elif path == "/ws/pings":
            writer.write(b"\x89\x04ping" * 200_000)
        await writer.drain()
        await reader.read(100_000)
        await asyncio.sleep(30)


@dataclass
class Processes:
    """The memory of the processes of `playhead up`, sampled repeatedly."""

    root: int
    peaks: dict[str, int] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        parents = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError, IndexError):
                    parents[int(entry.name)] = int(Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
        found, waiting = [], [self.root]
        while waiting:
            children = [pid for pid, parent in parents.items() if parent == waiting[-1]]
            waiting.pop()
            waiting += children
            found += children
        self.now = {}
        for pid in found:
            with suppress(OSError, StopIteration, ValueError):
                name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                kind = "helper" if "store_helper" in name else "store" if "store_server" in name else "worker"
                if "proxy.worker.process" not in name and kind == "worker":
                    continue
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                size = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024
                self.now[kind] = self.now.get(kind, 0) + size
        for kind, size in self.now.items():
            self.peaks[kind] = max(self.peaks.get(kind, 0), size)

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.05)


@dataclass
class LoadedUp:
    """A `playhead up` under load."""

    proxy: int
    api: str
    token: str
    upstream: _Upstream
    pauses: dict[str, float] = field(default_factory=dict)

    async def ask(self, path: str, run: str, read: bool = True) -> int:
        """Call the upstream through the proxy; return the number of bytes received."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        try:
            body = b'{"model":"m","messages":[]}'
            writer.write(
                f"POST http://{HOST}{path} HTTP/1.1\r\nhost: {HOST}\r\nx-playhead-run: {run}\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            size = 0
            while read and (data := await reader.read(1 << 16)):
                size += len(data)
            return size
        finally:
            writer.close()

    async def get(self, path: str) -> bytes:
        """Call the API."""
        parts = urlsplit(self.api)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(self.request(path))
            return await reader.read()
        finally:
            writer.close()

    def request(self, path: str) -> bytes:
        authorization = f"authorization: Bearer {self.token}\r\n" if self.token else ""
        return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{authorization}connection: close\r\n\r\n".encode()

    async def wait_until_stored(self, run: str, seconds: float = 240) -> float:
        """Wait until everything of a run is stored; return the seconds."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            answer = await self.get(f"/v1/runs/{run}/calls?settled=true&limit=1")
            if b'"settled":true' in answer:
                break
            await asyncio.sleep(0.2)
        return time.monotonic() - begin

    async def measure_bystander(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        """Make a small request repeatedly, and note the longest time that it took."""
        while True:
            begin = time.monotonic()
            with suppress(OSError, asyncio.IncompleteReadError):
                await act()
            self.pauses[name] = max(self.pauses.get(name, 0.0), time.monotonic() - begin)
            await asyncio.sleep(0.05)


async def sse(loaded: LoadedUp) -> None:
    """Streams of 30 MB, eight at once."""
    await asyncio.gather(*(loaded.ask(f"/sse/{n}", "sse") for n in range(STREAMS)))
    await _visible(loaded)
    print(f"  stored after {await loaded.wait_until_stored('sse'):.1f} s")


async def keys(loaded: LoadedUp) -> None:
    """An answer of 13 MB with a million names."""
    await loaded.ask("/keys", "keys")
    await _visible(loaded)
    print(f"  stored after {await loaded.wait_until_stored('keys'):.1f} s")


async def _visible(loaded: LoadedUp) -> None:
    begin = time.monotonic()
    await loaded.ask("/small", "after")
    while b'"calls":1' not in await loaded.get("/v1/runs/after"):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.02)
    print(f"  a small exchange that came after it was visible after {time.monotonic() - begin:.2f} s")


async def readers(loaded: LoadedUp) -> None:
    """500 clients of the API that ask for 5 MB and stop reading."""
    await loaded.ask("/text", "text")
    await loaded.wait_until_stored("text")
    answer = await loaded.get("/v1/runs/text/calls?limit=1")
    call = _body(answer)
    name = call["items"][0]["id"]
    for path in (f"/v1/exchanges/{name}/response", f"/v1/calls/{name}", "/v1/runs/text/bundle"):
        parts = urlsplit(loaded.api)
        writers = []
        for _ in range(500):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
            writer.write(loaded.request(path))
            writers.append(writer)
        await asyncio.sleep(3)
        begin = time.monotonic()
        whole = await loaded.get(path)
        print(
            f"  {path.split('/')[-1][:12]}: another reader had its {len(whole)} bytes after {time.monotonic() - begin:.2f} s"
        )
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(1)


def _body(answer: bytes) -> dict:  # type: ignore[type-arg]
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            whole += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        body = whole
    found: dict = json.loads(body)  # type: ignore[type-arg]
    return found


async def lists(loaded: LoadedUp) -> None:
    """A list of five calls with answers of 5 MB."""
    for n in range(5):
        await loaded.ask(f"/text/{n}", "text")
    await loaded.wait_until_stored("text")
    begin = time.monotonic()
    answer = await loaded.get("/v1/calls?limit=5")
    print(f"  calls?limit=5: {len(answer)} bytes in {time.monotonic() - begin:.2f} s")
    begin = time.monotonic()
    answer = await loaded.get("/v1/calls?limit=5&fields=*")
    print(f"  calls?limit=5&fields=*: {len(answer)} bytes in {time.monotonic() - begin:.2f} s")


async def brotli(loaded: LoadedUp) -> None:
    """An answer of 1 KB in brotli that decompresses to 1 GiB."""
    print(f"  {await loaded.ask('/brotli', 'bomb')} bytes came")
    await loaded.wait_until_stored("bomb")


async def serve_gzip_bomb(loaded: LoadedUp) -> None:
    """An answer in gzip that decompresses to 640 MiB."""
    print(f"  {await loaded.ask('/gzip', 'bomb')} bytes came")
    await loaded.wait_until_stored("bomb")


async def _websocket(loaded: LoadedUp, path: str, total: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", loaded.proxy)
    writer.write(
        f"GET http://{HOST}{path} HTTP/1.1\r\nhost: {HOST}\r\nx-playhead-run: socket\r\nupgrade: websocket\r\n"
        "connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: AQIDBAUGBwgJCgsMDQ4PEA==\r\n"
        "sec-websocket-extensions: permessage-deflate\r\n\r\n".encode()
    )
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(25):
            while size < total and (data := await reader.read(1 << 20)):
                size += len(data)
    writer.close()
    return size


async def websocket(loaded: LoadedUp) -> None:
    """A WebSocket message of 1 MB that decompresses to 1 GiB."""
    print(f"  {await _websocket(loaded, '/ws/bomb', 1 << 20)} bytes came")


async def pings(loaded: LoadedUp) -> None:
    """200,000 pings of a WebSocket server."""
    print(f"  {await _websocket(loaded, '/ws/pings', 1_200_000)} bytes came")


LOADS = {one.__name__: one for one in (sse, keys, readers, lists, brotli, serve_gzip_bomb, websocket, pings)}


@asynccontextmanager
async def start_loaded_up(flags: list[str]) -> AsyncIterator[tuple[LoadedUp, int]]:
    """Start a `playhead up` in front of an upstream of this process."""
    upstream = _Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, delete="KEEP" not in os.environ) as place:
        Path(place).chmod(0o755)  # noqa: ASYNC240 - as root, Postgres runs as another user
        config = Path(place, "playhead.toml")
        config.write_text(f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{server.sockets[0].getsockname()[1]}"\n')  # noqa: ASYNC240 - one line
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("playhead")), "up", "--proxy-port", "0", "--api-port", "0"),
            *("--data", f"{place}/data", "--config", str(config), *flags),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        ready = dict(word.split("=", 1) for word in line.split()[1:])
        token = Path(ready["token"]).read_text().strip() if "token" in ready else ""  # noqa: ASYNC240 - one line
        try:
            yield LoadedUp(urlsplit(ready["proxy"]).port or 0, ready["api"], token, upstream), process.pid
        finally:
            process.terminate()
            await process.wait()
            server.close()


async def _measure_workload(name: str, flags: list[str]) -> None:
    print(f"{name}: {LOADS[name].__doc__}", flush=True)
    async with start_loaded_up(flags) as (loaded, pid):
        # Generated before measuring: generating takes this process longer than the load itself.
        if name == "websocket":
            loaded.upstream.cache["/ws/bomb"] = _deflated_message(1 << 30)
        for path in {"brotli": ["/brotli"], "serve_gzip_bomb": ["/gzip"]}.get(name, []):
            loaded.upstream.body(path)
        await loaded.ask("/small", "warm")
        await loaded.wait_until_stored("warm")
        processes = Processes(pid)
        processes.look()
        print("  before:", _format_sizes(processes.now))
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(processes.watch()),
                group.create_task(loaded.measure_bystander("proxy", lambda: loaded.ask("/small", "beside"))),
                group.create_task(loaded.measure_bystander("API", lambda: loaded.get("/healthz"))),
            ]
            begin = time.monotonic()
            await LOADS[name](loaded)
            print(f"  took {time.monotonic() - begin:.1f} s; most: {_format_sizes(processes.peaks)}")
            await asyncio.sleep(3)
            for task in beside:
                task.cancel()
            counted = (await loaded.get("/metrics")).decode().splitlines()
            print("  counted:", *(one[16:] for one in counted if "_large_total " in one or "_underived_total " in one))
        print(f"  at rest: {_format_sizes(processes.now)}")
        print(
            "  longest wait of others:",
            ", ".join(f"{who} {took:.2f} s" for who, took in loaded.pauses.items()),
            flush=True,
        )


def _format_sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{kind} {size // MB} MB" for kind, size in sorted(sizes.items()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("loads", nargs="*", choices=[*LOADS, []], help="the loads to run; by default all")
    parser.add_argument("--engine", default="lane", choices=("lane", "mitmproxy"))
    arguments = parser.parse_args()
    for name in arguments.loads or LOADS:
        asyncio.run(_measure_workload(name, ["--engine", arguments.engine]))


if __name__ == "__main__":
    main()
