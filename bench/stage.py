"""The processes that a benchmark needs: an upstream with a private CA, the workers that are compared, and who asks them."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec
import trustme

from bench.load import DOMAIN, HOST, HOST_H2, NEW_HOST
from bench.wire import MeasurementFailed
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api
from proxy.settings import load_settings

GRACE = 15.0
"""Seconds that a process of ours may take to stop."""

ANSWER = 2048
"""Bytes of an answer."""

QUESTION = 1024
"""Bytes of a request."""

NEW_HOSTS = 64
"""Hosts that nobody has asked before, each an upstream of its own."""

SPOOL = 64 << 30
"""Bytes that may wait where no store server runs: a worker that refuses would be measured refusing."""


class Process:
    """`python -m MODULE`, told one line of JSON on stdin; it says one line on stdout and ends with its stdin."""

    def __init__(self, module: str, config: Mapping[str, Any], directory: Path | None = None) -> None:
        """`directory`: a checkout whose module it is; None: this one."""
        command = [sys.executable, "-m", module]
        # What it logs is told only when it fails.
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed when it is stopped
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, cwd=directory)
        self.module = module
        self.pid = self._process.pid
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(config).encode() + b"\n")
        self._process.stdin.flush()

    def read_line(self) -> dict[str, Any]:
        """The line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise MeasurementFailed(f"{self.module} ended with {status}: {self.last_words()}")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise MeasurementFailed(found["failed"])
        return found

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The end of what it has logged."""
        self._log.seek(0)
        # Tracebacks of exception groups end in decoration.
        lines = [line.strip(" |+-") for line in self._log.read().splitlines()]
        return next(filter(None, reversed(lines)), "it said nothing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it by closing its stdin; twice is once."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise MeasurementFailed(f"{self.module} did not stop within {GRACE:.0f} s") from None
        finally:
            self._log.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What stands between who asks and the upstream. Without a port: nothing."""

    name: str
    ca: str
    port: int | None = None
    process: Process | None = None
    pid: int | None = None
    """Of a process that is not a module of ours."""

    how: Mapping[str, Any] = MappingProxyType({})
    """What who asks is told to reach it, where that is not CONNECT to the host."""

    @property
    def pids(self) -> dict[str, int]:
        """Whose CPU is the worker's."""
        pid = self.process.pid if self.process else self.pid
        return {} if pid is None else {"worker": pid}


@dataclass(kw_only=True)
class Stage:
    """The upstream, a directory for everything, and a number that makes all requests distinct."""

    directory: Path
    upstream: Process
    port: int
    port_h2: int
    """The same in HTTP/2."""

    ports: tuple[int, ...]
    """Further ones that it listens on, for hosts that are asked once."""

    ca: str
    certificate: str
    """The upstream's own, with its key."""

    stack: ExitStack
    first: int = field(default=0)

    def process(self, module: str, config: Mapping[str, Any]) -> tuple[Process, dict[str, Any]]:
        """Start one, to be stopped with the stage, and wait until it is ready."""
        process = self.stack.enter_context(Process(module, config))
        return process, process.read_line()

    @contextmanager
    def round(self, name: str) -> Iterator["Stage"]:
        """The same upstream with a directory of that name, which goes with the processes that are started in it."""
        directory = self.directory / name
        directory.mkdir()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory)
            yield replace(self, directory=directory, stack=stack, first=0)

    def direct(self) -> Worker:
        """No worker at all."""
        return Worker(name="direct", ca=self.ca)

    def bare(self, name: str = "bare") -> Worker:
        """The peer, with a directory of that name."""
        directory = self.directory / name
        directory.mkdir()
        upstreams = {HOST: self.port, HOST_H2: self.port_h2}
        config = {"directory": str(directory), "upstreams": upstreams, "upstream": self.port, "upstream_ca": self.ca}
        process, first_line = self.process("bench.bare", config)
        return Worker(name="mitmproxy-bare", ca=first_line["ca"], port=first_line["port"], process=process)

    def store_server(self, name: str) -> tuple[Process, Api]:
        """The store server of that data directory, and its API."""
        process, first_line = self.process("proxy.processes.store_server", {"data": str(self.house(name).data.root)})
        return process, self.stack.enter_context(self.house(name).api_client(f"http://127.0.0.1:{first_line['port']}"))

    def house(self, name: str) -> CommandProcesses:
        """A data directory of ours, new unless it was asked for before."""
        upstreams = {NEW_HOST.format(n): f"https://localhost:{port}" for n, port in enumerate(self.ports)}
        upstreams |= {HOST: f"https://localhost:{self.port}", HOST_H2: f"https://localhost:{self.port_h2}"}
        return CommandProcesses(
            load_settings({"data": self.directory / name, "upstreams": upstreams, "spool_limit": SPOOL}, None)
        )

    def ours(self, name: str, **differences: Any) -> Worker:
        """Our own worker, with a data directory of that name, told as the house tells it."""
        config = msgspec.to_builtins(self.house(name).worker_config()) | {"upstream_ca": self.ca} | differences
        process, first_line = self.process("proxy.worker.process", config)
        return Worker(name=name, ca=first_line["ca"], port=first_line["port"], process=process)

    def ask(self, worker: Worker, *, pids: Mapping[str, int] = MappingProxyType({}), **what: Any) -> dict[str, Any]:
        """Have a process ask for as long as `what` says; what it found."""
        if self.upstream.has_ended:
            raise RuntimeError(f"the upstream has failed: {self.upstream.last_words()}")
        watched = {"upstream": self.upstream.pid, **pids, **worker.pids}
        upstream = self.port_h2 if what.get("h2") else self.port
        options = {**DEFAULTS, "first": self.first, "proxy": worker.port, "ca": worker.ca, "upstream": upstream}
        options |= {"run": f"bench-{self.first}", **what, **worker.how, "pids": watched}
        with Process("bench.load", options) as load:
            found = load.read_line()
        self.first += int(found.get("asked", options["connections"]))
        return found


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "workload": "json",
        "connections": 32,
        "size": QUESTION,
        "answer": ANSWER,
        "path": "/v1/json",
        "seconds": 4.0,
        "warm": 0.3,
        "rate": None,
        "calls": None,
        "distinct": None,
        "changed": False,
        "new": False,
        "h2": False,
        "authority": None,
        "plain": False,
        "verified": True,
    }
)


@contextmanager
def open_stage() -> Iterator[Stage]:
    """An upstream, and a directory that goes when all processes have."""
    # As root, Postgres runs as another user, who must be able to pass through.
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o711)
        certificate, ca = make_certificates(directory)
        config = {"certificate": certificate, "answer": ANSWER, "more": NEW_HOSTS}
        upstream = stack.enter_context(Process("bench.upstream", config))
        port, port_h2, *more = upstream.read_line()["ports"]
        yield Stage(
            directory=directory,
            upstream=upstream,
            port=port,
            port_h2=port_h2,
            ports=tuple(more),
            ca=ca,
            certificate=certificate,
            stack=stack,
        )


def make_certificates(directory: Path) -> tuple[str, str]:
    """A certificate with its key for whatever name the upstream is asked by, and the CA that signed it."""
    authority = trustme.CA()
    leaf, ca = directory / "upstream.pem", directory / "upstream-ca.pem"
    authority.issue_cert(f"*.{DOMAIN}", "localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(leaf)
    authority.cert_pem.write_to_path(ca)
    return str(leaf), str(ca)
