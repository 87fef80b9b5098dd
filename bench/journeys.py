"""Trace a call through running processes: the functions that run for it, and those that handle its data."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

QUIET: Final = 3.0
"""Seconds after a call until its rows are written. In the same time, without a call, periodic work is traced."""

PAUSE: Final = 0.2
"""Seconds between the messages of a stream, so that each arrives by itself."""

MARKER: Final = "marigold"
"""A word in the request and in the response of a traced call. A function whose data contains it handles the call's
data.
"""

TRACER: Final = """
import os, sys, threading, time
_root, _out, _marker = (os.environ["PLAYHEAD_TRACE_" + name] for name in ("ROOT", "OUT", "MARKER"))
_root += "/"
_places = tuple(_root + package + "/" for package in ("calls", "store", "replay", "proxy"))
_ran, _data = set(), set()
_word, _bytes = _marker, _marker.encode()
_tool = sys.monitoring.PROFILER_ID
_all = sys.monitoring.events

def _holds(value, depth=5):
    kind = type(value)
    if kind is str:
        return _word in value
    if kind is bytes or kind is bytearray:
        return _bytes in value
    if kind is memoryview:
        return _bytes in bytes(value)
    if kind in (int, float, bool, type(None)) or not depth:
        return False
    try:
        if isinstance(value, dict):
            return any(_holds(key, depth - 1) or _holds(one, depth - 1) for key, one in list(value.items())[:200])
        if isinstance(value, (list, tuple, set, frozenset)) or kind.__name__ == "deque":
            return any(_holds(one, depth - 1) for one in list(value)[:200])
        names = None
        # What cannot change is data; what can is a part of the program that data passes through.
        config = getattr(kind, "__struct_config__", None)  # of a class itself, a descriptor
        if getattr(config, "frozen", False) or getattr(config, "array_like", False):
            names = kind.__struct_fields__
        elif hasattr(kind, "__dataclass_params__") and kind.__dataclass_params__.frozen:
            names = kind.__dataclass_fields__
        if names:
            return any(_holds(getattr(value, name, None), depth - 1) for name in names)
    except (RuntimeError, ValueError, TypeError):
        pass
    return False

def _place(code):
    return code.co_filename[len(_root):] + "\\t" + code.co_qualname

def _caller(frame):
    while frame := frame.f_back:
        if frame.f_code.co_filename.startswith(_places):
            return _place(frame.f_code)
        if frame.f_code.co_filename.endswith(("asyncio/events.py", "asyncio/runners.py", "uvloop/__init__.py", "threading.py", "concurrent/futures/thread.py")):
            break
    return "\\t"

def _note_start(code, _offset):
    if not code.co_filename.startswith(_places) or code.co_qualname.startswith("<module>"):
        return sys.monitoring.DISABLE
    _ran.add((code.co_filename[len(_root):], code.co_qualname))
    frame = sys._getframe(1)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    local = frame.f_locals
    if any(name != "self" and name in local and _holds(local[name]) for name in names):
        _data.add("data\\t" + _caller(frame) + "\\t" + _place(code))

def _note_end(code, _offset, value):
    if not code.co_filename.startswith(_places) or code.co_qualname.startswith("<module>"):
        return sys.monitoring.DISABLE
    frame = sys._getframe(1)
    if _holds(value) or any(name != "self" and _holds(one) for name, one in frame.f_locals.items()):
        _data.add("data\\t" + _caller(frame) + "\\t" + _place(code))

sys.monitoring.use_tool_id(_tool, "journeys")
sys.monitoring.register_callback(_tool, _all.PY_START, _note_start)
sys.monitoring.register_callback(_tool, _all.PY_RETURN, _note_end)
sys.monitoring.register_callback(_tool, _all.PY_YIELD, _note_end)

def _watch():
    mark = 0
    while True:
        time.sleep(0.02)
        if not os.path.exists(f"{_out}/mark-{mark + 1}"):
            continue
        mark += 1
        if mark % 2:
            _ran.clear()
            _data.clear()
            sys.monitoring.set_events(_tool, _all.PY_START | _all.PY_RETURN | _all.PY_YIELD)
            continue
        sys.monitoring.set_events(_tool, 0)
        with open(f"{_out}/part-{mark}-{os.getpid()}", "w") as out:
            out.writelines(f"ran\\t{file}\\t{name}\\n" for file, name in list(_ran))
            out.writelines(line + "\\n" for line in list(_data))
        os.rename(out.name, f"{_out}/{mark}-{os.getpid()}")

def _start():
    threading.Thread(target=_watch, daemon=True).start()
os.register_at_fork(after_in_child=_start)
_start()
"""
"""The `sitecustomize` of every Python process of the traced checkout."""

STREAM: Final = tuple(
    b"data: %s\n\n" % data
    for data in (
        b'{"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a marigold"}}]}',
        b'{"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
        b"[DONE]",
    )
)

CLIENT: Final = """
import os, sys, time, urllib.request
origin, *texts = sys.argv[1:]
for text in texts:
    if text.startswith("/"):
        open(text, "w").close()
        time.sleep(1)
        continue
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"a marigold %s"}]}' % text.encode()
    url = origin + "/v1/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).read()
"""
"""Makes one call for each word, and creates the files that begin and end a trace between them."""

HOST: Final = "http://model.example.com"
"""The host that the client calls; the settings map it to the model server."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the packages."""

    file: str
    name: str


@dataclass(frozen=True, slots=True)
class DataCall:
    """A call whose callee handles the data of the journey: it was given some, holds some or returns some."""

    caller: Function | None
    """None if an event loop or a thread is the caller."""

    callee: Function


@dataclass(frozen=True, slots=True)
class Trace:
    """The functions that ran for one call, in all processes."""

    functions: frozenset[Function]
    data_calls: frozenset[DataCall]

    def files(self) -> set[str]:
        """The files of its functions."""
        return {function.file for function in self.functions}

    def data_flows(self) -> dict[str, list[str]]:
        """Return, for each file that handles data, its callers that handle data, too."""
        handlers = {call.callee for call in self.data_calls}
        flows: defaultdict[str, set[str]] = defaultdict(set)
        for call in self.data_calls:
            callers = flows[call.callee.file]
            if call.caller in handlers and call.caller.file != call.callee.file:
                callers.add(call.caller.file)
        return {file: sorted(callers) for file, callers in sorted(flows.items())}


@dataclass(frozen=True, slots=True)
class Journey:
    """One call through running processes."""

    title: str
    """The heading of its section in ARCHITECTURE.md."""

    trace: Trace

    def row(self, root: Path) -> str:
        """Return the number of files, of their lines, of functions, and of files that handle data."""
        files = self.trace.files()
        lines = sum(len((root / file).read_text().splitlines()) for file in files)
        data = len(self.trace.data_flows())
        return f"{self.title:40} {len(files):10} {lines:8,} {len(self.trace.functions):10} {data:20}"


class Model(BaseHTTPRequestHandler):
    """A model server that streams."""

    def do_POST(self) -> None:
        """Answer any request with the same stream."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(sum(map(len, STREAM))))
        self.end_headers()
        for piece in STREAM:
            self.wfile.write(piece)
            time.sleep(PAUSE)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@dataclass(kw_only=True)
class Bench:
    """A checkout whose processes are traced."""

    root: Path
    scratch: Path
    marks: int = 0

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of its processes."""
        trace = {
            "PLAYHEAD_TRACE_ROOT": str(self.root),
            "PLAYHEAD_TRACE_OUT": str(self.scratch),
            "PLAYHEAD_TRACE_MARKER": MARKER,
        }
        return {**os.environ, "PYTHONPATH": str(self.scratch / "site"), **trace, **more}

    def next_mark(self) -> Path:
        """Return the file whose creation begins or ends a trace."""
        self.marks += 1
        return self.scratch / f"mark-{self.marks}"

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what runs inside the block."""
        for _ in range(2):
            self.next_mark().touch()
            time.sleep(1)
            if self.marks % 2:
                yield

    def trace(self) -> Trace:
        """The last trace."""
        functions, data_calls = set(), set()
        for path in self.scratch.glob(f"{self.marks}-*"):
            for line in path.read_text().splitlines():
                match line.split("\t"):
                    case ["ran", file, name]:
                        functions.add(Function(file, name))
                    case ["data", caller, caller_name, file, name]:
                        data_calls.add(
                            DataCall(Function(caller, caller_name) if caller else None, Function(file, name))
                        )
        return Trace(frozenset(functions), frozenset(data_calls))

    def playhead(self, *words: str) -> str:
        """Run a command of the checkout to its end, and return what it prints."""
        done = subprocess.run(
            [self.root / "playhead", *words],
            env=self.environment(PLAYHEAD_DATA=str(self.scratch / "data")),
            cwd=self.scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"playhead {' '.join(words)} failed: {done.stderr}")
        return done.stdout

    @contextmanager
    def up(self, *words: str) -> Iterator[str]:
        """Start `playhead up`; yield its proxy."""
        command = [str(self.root / "playhead"), "up", "--proxy-port", "0", "--api-port", "0", *words]
        env = self.environment(PLAYHEAD_DATA=str(self.scratch / "data"))
        with subprocess.Popen(command, env=env, cwd=self.scratch, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            try:
                yield next(word.removeprefix("proxy=") for word in ready if word.startswith("proxy="))
            finally:
                process.terminate()

    def call(self, proxy: str, text: str, run: str) -> None:
        """Make one streamed call through a proxy, in a run."""
        address = proxy.replace("http://", f"http://{run}:x@")
        subprocess.run(
            [sys.executable, "-c", CLIENT, HOST, text], env={**os.environ, "http_proxy": address}, check=True
        )

    def trace_call(self, proxy: str, run: str, *texts: str) -> Trace:
        """Return what runs for the last of several calls and does not run without one."""
        *before, last = texts
        for text in before:
            self.call(proxy, text, run)
        time.sleep(QUIET)
        with self.tracing():
            time.sleep(QUIET)
        idle = self.trace()
        with self.tracing():
            self.call(proxy, last, run)
            time.sleep(QUIET)
        busy = self.trace()
        return Trace(busy.functions - idle.functions, busy.data_calls)


def follow_journeys(root: Path) -> Iterator[Journey]:
    """Follow a recorded stream, a replayed call and a fork through a checkout."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # Postgres runs as another user, where we are root
        (Path(scratch) / "site").mkdir()
        (Path(scratch) / "site" / "sitecustomize.py").write_text(TRACER)
        settings = f'[upstreams]\n"model.example.com" = "http://127.0.0.1:{server.server_port}"\n'
        (Path(scratch) / "playhead.toml").write_text(settings)
        bench = Bench(root=root, scratch=Path(scratch))
        with bench.up() as proxy:
            yield Journey("A recorded stream, from socket to row", bench.trace_call(proxy, "one", "a", "b", "c"))
        bundle = Path(scratch) / "one.jsonl"
        bench.playhead("export", "one", "-o", str(bundle))
        with bench.up("--mode", "replay", "--replay", str(bundle)) as proxy:
            yield Journey("A replayed call", bench.trace_call(proxy, "one", "a", "b", "c"))
        client = Path(scratch) / "client.py"
        client.write_text(CLIENT)
        start, end = bench.next_mark(), bench.next_mark()
        # The run came through `up`, so its fork has proxy variables; the path described is that of a command without them.
        without_proxy = ("env", "-u", "http_proxy", "-u", "HTTP_PROXY")
        command = (*without_proxy, sys.executable, str(client), HOST, "a", str(start), "b", "c", str(end))
        option = "--after-step" if "--after-step" in bench.playhead("fork", "--help") else "--from"
        # One step is replayed, the next goes live.
        bench.playhead("fork", "one", option, "2", "--", *command)
        yield Journey("A fork", bench.trace())
    server.shutdown()
