"""Measure the layout, the names and the journeys through the code: `python -m bench.structure [--checkout DIR]`.

A journey is one call that goes through running processes: the files of which a function runs for it, what runs anyway while nothing
happens left out. `--checkout` measures another checkout, with this script and that checkout's `.venv`.
"""

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.support.names import is_bare_participle

PACKAGES: Final = ("calls", "store", "replay", "proxy")
ROOT: Final = Path(__file__).resolve().parent.parent
QUIET: Final = 3.0
"""Seconds after a call until its rows are written, and in which what runs anyway is seen."""

TRACER: Final = """
import os, sys, threading, time
_root, _out = os.environ["PLAYHEAD_TRACE_ROOT"] + "/", os.environ["PLAYHEAD_TRACE_OUT"]
_places = tuple(_root + package + "/" for package in ("calls", "store", "replay", "proxy"))
_ran = set()
_tool = sys.monitoring.PROFILER_ID
def _note(code, _offset):
    if code.co_filename.startswith(_places) and not code.co_qualname.startswith("<module>"):
        _ran.add((code.co_filename[len(_root):], code.co_qualname))
    return sys.monitoring.DISABLE
sys.monitoring.use_tool_id(_tool, "journeys")
sys.monitoring.register_callback(_tool, sys.monitoring.events.PY_START, _note)
sys.monitoring.set_events(_tool, sys.monitoring.events.PY_START)
def _watch():
    mark = 0
    while True:
        time.sleep(0.02)
        if os.path.exists(f"{_out}/mark-{mark + 1}"):
            mark += 1
            ran = list(_ran)
            _ran.clear()
            sys.monitoring.restart_events()
            with open(f"{_out}/{mark}-{os.getpid()}", "w") as out:
                out.writelines(f"{file}\\t{name}\\n" for file, name in ran)
threading.Thread(target=_watch, daemon=True).start()
"""
"""Runs in every Python process of the traced checkout, as its `sitecustomize`."""

STREAM: Final = b"".join(
    b"data: %s\n\n" % data
    for data in (
        b'{"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}',
        b'{"id":"1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
        b"[DONE]",
    )
)


@dataclass(frozen=True, slots=True)
class Journey:
    """The functions that ran for one call."""

    name: str
    functions: frozenset[tuple[str, str]]
    """File and qualified name."""

    def row(self, root: Path) -> str:
        """Files, lines of these files, and functions."""
        files = {file for file, _ in self.functions}
        lines = sum(len((root / file).read_text().splitlines()) for file in files)
        return f"{self.name:34} {len(files):5} {lines:8,} {len(self.functions):10}"


class Model(BaseHTTPRequestHandler):
    """A model that streams."""

    def do_POST(self) -> None:
        """Answer any request with the same stream."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(STREAM)))
        self.end_headers()
        self.wfile.write(STREAM)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


CLIENT: Final = """
import os, sys, time, urllib.request
origin, *texts = sys.argv[1:]
for text in texts:
    if text.startswith("/"):
        open(text, "w").close()
        time.sleep(1)
        continue
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % text.encode()
    url = origin + "/v1/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).read()
"""
"""Asks for one answer for each word, and touches the files among them."""

HOST: Final = "http://model.example.com"
"""What the client asks; the settings say where that is."""


@dataclass(kw_only=True)
class Bench:
    """A checkout whose processes are traced."""

    root: Path
    scratch: Path
    marks: int = 0

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of its processes."""
        trace = {"PLAYHEAD_TRACE_ROOT": str(self.root), "PLAYHEAD_TRACE_OUT": str(self.scratch)}
        return {**os.environ, "PYTHONPATH": str(self.scratch / "site"), **trace, **more}

    def mark(self) -> frozenset[tuple[str, str]]:
        """The functions that ran since the last mark, in all processes."""
        self.next_mark().touch()
        time.sleep(0.5)
        return self.between_marks(self.marks)

    def next_mark(self) -> Path:
        """The file whose making is the next mark."""
        self.marks += 1
        return self.scratch / f"mark-{self.marks}"

    def between_marks(self, number: int) -> frozenset[tuple[str, str]]:
        """The functions that ran in all processes before a mark and after the one before it."""
        found = (path.read_text().splitlines() for path in self.scratch.glob(f"{number}-*"))
        return frozenset((line.split("\t")[0], line.split("\t")[1]) for lines in found for line in lines)

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
        """A running `playhead up`; its proxy."""
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
        """One streamed call through a proxy, under the name of a run."""
        address = proxy.replace("http://", f"http://{run}:x@")
        subprocess.run(
            [sys.executable, "-c", CLIENT, HOST, text], env={**os.environ, "http_proxy": address}, check=True
        )

    def traced_call(self, proxy: str, run: str, *texts: str) -> frozenset[tuple[str, str]]:
        """What runs for the last of some calls, and not while nothing happens."""
        *before, last = texts
        for text in before:
            self.call(proxy, text, run)
        time.sleep(QUIET)
        self.mark()
        time.sleep(QUIET)
        idle = self.mark()
        self.call(proxy, last, run)
        time.sleep(QUIET)
        return self.mark() - idle


def journeys(root: Path) -> Iterator[Journey]:
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
            yield Journey("a recorded stream, socket to row", bench.traced_call(proxy, "one", "a", "b", "c"))
        bundle = Path(scratch) / "one.jsonl"
        bench.playhead("export", "one", "-o", str(bundle))
        with bench.up("--mode", "replay", "--replay", str(bundle)) as proxy:
            yield Journey("a replayed call", bench.traced_call(proxy, "one", "a", "b", "c"))
        client = Path(scratch) / "client.py"
        client.write_text(CLIENT)
        start, end = bench.next_mark(), bench.next_mark()
        command = (sys.executable, str(client), HOST, "a", str(start), "b", "c", str(end))
        option = "--after-step" if "--after-step" in bench.playhead("fork", "--help") else "--from"
        bench.playhead("fork", "one", option, "2", "--", *command)
        yield Journey("a fork: one step replayed, one live", bench.between_marks(bench.marks))
    server.shutdown()


def definitions(root: Path) -> Iterator[tuple[str, ast.AST]]:
    """Every function and class of the packages, and its file."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield str(path.relative_to(root)), node


def layout(root: Path) -> Mapping[str, str]:
    """The traits of names and folders, as redesign.md measured them."""
    siblings = Counter(
        str(path.parent.relative_to(root)) for package in PACKAGES for path in (root / package).rglob("*.py")
    )
    functions: list[str] = []
    classes: defaultdict[str, set[str]] = defaultdict(set)
    for file, node in definitions(root):
        if isinstance(node, ast.ClassDef):
            classes[node.name].add(file)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            functions.append(node.name.strip("_"))
    words = sum("_" not in name for name in functions)
    participles = sum(is_bare_participle(name) for name in functions)
    shared = sorted((name for name, files in classes.items() if len(files) > 1), key=lambda name: -len(classes[name]))
    often = Counter(functions).most_common(4)
    return {
        "files in the largest folders": ", ".join(f"{folder} {count}" for folder, count in siblings.most_common(4)),
        "one-word function names": f"{words / len(functions):.1%} of {len(functions)}",
        "functions named by a bare participle": f"{participles / len(functions):.1%} ({participles})",
        "median length of a function's name": str(statistics.median(map(len, functions))),
        "class names with several definitions": ", ".join(f"{name} {len(classes[name])}" for name in shared[:6])
        or "none",
        "names defined most often": ", ".join(f"{name} {count}" for name, count in often),
        "files": str(sum(siblings.values())),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--layout-only", action="store_true", help="start nothing")
    parser.add_argument("--json", action="store_true", help="the files of each journey, as JSON")
    options = parser.parse_args(words)
    root = options.checkout.resolve()
    for trait, value in layout(root).items():
        print(f"{trait:38} {value}")
    if options.layout_only:
        return
    print(f"\n{'journey':34} {'files':>5} {'lines':>8} {'functions':>10}")
    for journey in journeys(root):
        print(journey.row(root), flush=True)
        if options.json:
            print(json.dumps(sorted(journey.functions)))


if __name__ == "__main__":
    main()
