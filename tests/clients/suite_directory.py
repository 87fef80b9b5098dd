"""A foreign test suite, its upstream, and pytest as a command."""

import json
import marshal
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import urlsplit

from proxy.demo import model
from proxy.demo.servers import Handler

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "clients" / "pytest-playhead" / "src"
PLAYHEAD = str(Path(sys.executable).parent / "playhead")
FORKING = Path(__file__).with_name("forking.py")
CALLING = Path(__file__).with_name("calling.py")
TIME_LIMIT = 100
"""Of a pytest run, in seconds."""

CONFIG = """
[upstreams]
"api.openai.com" = "http://127.0.0.1:{port}"
"tickets.example.com" = "http://127.0.0.1:{port}"
"*.elsewhere.example" = "http://127.0.0.1:{port}"
"""


class Upstream(Handler):
    """Every API of the suite. Its answers change with each request, so that a replay differs from it."""

    def do_GET(self) -> None:  # noqa: N802 - the name that the base class looks for
        asked = self._note()
        match urlsplit(self.path).path.split("/"):
            case ["", "status", code]:
                self.answer(int(code), b'{"error": {"message": "no"}}')
            case _:
                self.answer(200, json.dumps({"path": self.path, "asked": asked, "total": 3}).encode())

    def do_POST(self) -> None:  # noqa: N802 - likewise
        self._note()
        asked = self.read_json()
        if not self.path.endswith("/chat/completions"):
            return self.answer(201, json.dumps({"got": asked}).encode())
        said = model.next_reply(asked["messages"])
        if asked.get("stream"):
            return self.answer_in_pieces(self._lingering(model.streamed_answer(said, 40, with_usage=True)), 0)
        return self.answer(200, model.whole_answer(said, 40))

    def _lingering(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Send the end of the HTTP message after that of the stream, at which OpenAI's SDK leaves."""
        yield from pieces
        select.select([self.connection], [], [], 0.05)

    def _note(self) -> int:
        asked: list[str] = self.server.asked  # type: ignore[attr-defined]
        # The name of the run is for the proxy only.
        named = " NAMED" if any(name.lower().startswith("x-playhead-") for name in self.headers) else ""
        asked.append(f"{self.command} {self.path}{named}")
        return len(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a pytest run."""

    code: int
    out: str

    @property
    def counts(self) -> dict[str, int]:
        """`{"passed": 1}`, of pytest's last line. What it cannot tell follows."""
        last = next(line for line in reversed(self.out.splitlines()) if not line.startswith("playhead: "))
        return {
            thing.rstrip("s"): int(number) for number, thing in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])
        }

    def __contains__(self, words: str) -> bool:
        return words in self.out


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteDirectory:
    """The suite's directory and its upstream."""

    directory: Path
    server: ThreadingHTTPServer
    data: Path
    forks: Path
    """A directory with the sockets of `tests/clients/forking.py`."""

    playhead: Path
    """A `playhead` whose process is a fork in the namespaces of whoever starts it (`tests/support/shells.py`)."""

    @property
    def upstream_requests(self) -> list[str]:
        """The requests that reached the upstream."""
        found: list[str] = self.server.asked  # type: ignore[attr-defined]
        return found

    def write(self, name: str, content: str) -> Path:
        """Write a file of the suite."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(content))
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a shell: Playhead on the PATH, without variables of this session or plugins of this checkout."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PLAYHEAD_", "PYTEST_", "COV_"))
        }
        return {
            **kept,
            "PYTHONPATH": str(SOURCES),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # A test that writes a suite again within a second would be given the old one where both are of one length.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PLAYHEAD_COMMAND": PLAYHEAD,
            "PLAYHEAD_DATA": str(self.data),
            # Beside another pytest that starts at the same time, it would warn of directories that both remove.
            "PYTEST_DEBUG_TEMPROOT": str(self.forks),
            "OPENAI_API_KEY": "sk-none",
            **more,
        }

    def pytest(
        self,
        *arguments: str,
        plugins: Sequence[str] = (),
        forked: bool = True,
        has_child: bool = False,
        **environment: str,
    ) -> Ran:
        """Run pytest on the suite: as a fork with its Playhead as another one, or as processes that import everything.

        Isolation and xdist start pytest again by the command line of its process, and further plugins have their assertions
        rewritten when they are imported, so they need the latter. Their Playhead may be a fork all the same, but not where a
        test looks for it among the children of pytest (`has_child`); in isolation it is one that starts pytest in turn.
        """
        loaded = [part for name in ("pytest_playhead", *plugins) for part in ("-p", name)]
        is_isolated = "--block-network" in arguments
        words = [*loaded, "-p", "no:cacheprovider", "--rootdir", ".", *arguments]
        if not has_child:
            playhead = str(self.playhead) if is_isolated else self.forked_playhead
            environment = {"PLAYHEAD_COMMAND": playhead, **environment}
        around = self.environment(**environment)
        if forked and not plugins and not is_isolated:
            return run_fork(self.forks / "pytest", words, self.directory, around)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=self.directory,
            env=around,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
        return Ran(code=done.returncode, out=done.stdout + done.stderr)

    @property
    def forked_playhead(self) -> str:
        """A command that does what `playhead` does, as a fork."""
        return shlex.join([sys.executable, "-IS", str(CALLING), str(self.forks / "playhead")])

    def recording(self, place: str) -> list[dict[str, Any]]:
        """The exchanges in a recording."""
        lines = (self.directory / place).read_bytes().splitlines()
        return [parsed["exchange"] for line in lines if "exchange" in (parsed := json.loads(line))]


def run_fork(path: Path, arguments: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Ran:
    """Run a program of `tests/clients/forking.py`, and take down what it and its children say until the last has ended."""
    ends = time.monotonic() + TIME_LIMIT
    reading, writing = zip(os.pipe(), os.pipe(), strict=True)
    said: dict[int, bytes] = dict.fromkeys(reading, b"")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, open(os.devnull) as nothing:
        server.connect(str(path))
        request = {"directory": str(directory), "environment": dict(environment), "arguments": list(arguments)}
        socket.send_fds(server, [marshal.dumps(request)], [nothing.fileno(), *writing])
        for file in writing:
            os.close(file)
        open_files = set(reading)
        while open_files:
            ready, _, _ = select.select(open_files, [], [], max(0, ends - time.monotonic()))
            assert ready, f"pytest did not end in {TIME_LIMIT} s: {b''.join(said.values()).decode()}"
            for file in ready:
                piece = os.read(file, 1 << 16)
                said[file] += piece
                if not piece:
                    open_files.remove(file)
                    os.close(file)
        server.settimeout(max(1, ends - time.monotonic()))
        return Ran(code=int(server.recv(16)), out=b"".join(said.values()).decode())
