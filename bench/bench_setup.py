"""Start the processes that a benchmark needs: an upstream with a private CA, proxies, store servers, and a load client."""

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

from bench.load_client import DOMAIN, HOST, HOST_H2, NEW_HOST
from bench.wire import MeasurementFailed
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api
from proxy.settings import load_settings

GRACE = 15.0
"""Seconds that a process may take to stop."""

ANSWER = 2048
"""Bytes of a response body."""

QUESTION = 1024
"""Bytes of a request body."""

NEW_HOSTS = 64
"""The number of hosts, each an upstream of its own, that are requested for the first time while connecting is measured.
"""

SPOOL = 64 << 30
"""Bytes that a spool may hold while no store server drains it. A full spool would make the worker refuse requests."""


class Process:
    """A subprocess `python -m MODULE`.

    It reads its configuration as one line of JSON from stdin, writes JSON lines to stdout, and ends when its stdin is
    closed.
    """

    def __init__(self, module: str, config: Mapping[str, Any], directory: Path | None = None) -> None:
        """Start the module. `directory` is the checkout that it belongs to, by default this one."""
        command = [sys.executable, "-m", module]
        # Its log is shown only if it fails.
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed when it is stopped
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, cwd=directory)
        self.module = module
        self.pid = self._process.pid
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(config).encode() + b"\n")
        self._process.stdin.flush()

    def read_line(self) -> dict[str, Any]:
        """Read one line of its output. Raises MeasurementFailed with its last log line if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise MeasurementFailed(f"{self.module} ended with {status}: {self.last_log_line()}")
        found: dict[str, Any] = json.loads(line)
        if "failed" in found:
            raise MeasurementFailed(found["failed"])
        return found

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def last_log_line(self) -> str:
        """Return the last line that it has logged."""
        self._log.seek(0)
        # Tracebacks of exception groups end in decoration.
        lines = [line.strip(" |+-") for line in self._log.read().splitlines()]
        return next(filter(None, reversed(lines)), "it logged nothing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close its stdin and wait until it has ended. A second call has no effect."""
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
    """A proxy under measurement, and how a client reaches it. Without a port the client connects to `upstream`
    directly.
    """

    name: str
    ca: str
    port: int | None = None
    process: Process | None = None
    """The process, if it is a module of this checkout."""

    pid: int | None = None
    """The process id, if it is another program."""

    client_options: Mapping[str, Any] = MappingProxyType({})
    """Options of `bench.load_client` for a worker that is not reached by CONNECT with the host's name."""

    @property
    def pids(self) -> dict[str, int]:
        """The processes whose CPU is counted for the worker."""
        pid = self.process.pid if self.process else self.pid
        return {} if pid is None else {"worker": pid}


@dataclass(kw_only=True)
class BenchSetup:
    """The upstream, a directory for all files, and the processes that are started for a benchmark."""

    directory: Path
    upstream: Process
    port: int
    """The upstream's port for HTTP/1.1."""

    port_h2: int
    """The upstream's port for HTTP/2."""

    ports: tuple[int, ...]
    """The upstream's further ports, one for each host of `NEW_HOST`."""

    ca: str
    certificate: str
    """The file with the upstream's certificate and key."""

    stack: ExitStack
    """Ends the processes."""

    first: int = field(default=0)
    """The number of the next request, which makes all request bodies distinct."""

    def start_process(self, module: str, config: Mapping[str, Any]) -> tuple[Process, dict[str, Any]]:
        """Start a module, and return it with what it writes once it is ready. It is stopped when the setup is closed."""
        process = self.stack.enter_context(Process(module, config))
        while (line := process.read_line()).keys() == {"progress"}:
            pass
        return process, line

    @contextmanager
    def open_round(self, name: str) -> Iterator["BenchSetup"]:
        """Yield a setup with the same upstream and a new directory. At the end of the block its processes are stopped
        and its files deleted.
        """
        directory = self.directory / name
        directory.mkdir()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory)
            yield replace(self, directory=directory, stack=stack, first=0)

    def direct_worker(self) -> Worker:
        """Return a worker that stands for no proxy: the client contacts the upstream."""
        return Worker(name="direct", ca=self.ca)

    def bare_mitmproxy(self, name: str = "bare") -> Worker:
        """Start a mitmproxy that records nothing (`bench.bare_mitmproxy`), with a directory of this name."""
        directory = self.directory / name
        directory.mkdir()
        upstreams = {HOST: self.port, HOST_H2: self.port_h2}
        config = {"directory": str(directory), "upstreams": upstreams, "upstream": self.port, "upstream_ca": self.ca}
        process, first_line = self.start_process("bench.bare_mitmproxy", config)
        return Worker(name="mitmproxy-bare", ca=first_line["ca"], port=first_line["port"], process=process)

    def start_store_server(self, name: str) -> tuple[Process, Api]:
        """Start a store server on the data directory of this name, and return it with a client of its API."""
        process, first_line = self.start_process(
            "proxy.processes.store_server", {"data": str(self.command_processes(name).data.root)}
        )
        return process, self.stack.enter_context(
            self.command_processes(name).api_client(f"http://127.0.0.1:{first_line['port']}")
        )

    def command_processes(self, name: str) -> CommandProcesses:
        """Return the settings and processes of the data directory of this name, which is created at its first use."""
        upstreams = {NEW_HOST.format(n): f"https://localhost:{port}" for n, port in enumerate(self.ports)}
        upstreams |= {HOST: f"https://localhost:{self.port}", HOST_H2: f"https://localhost:{self.port_h2}"}
        return CommandProcesses(
            load_settings({"data": self.directory / name, "upstreams": upstreams, "spool_limit": SPOOL}, None)
        )

    def start_worker(self, name: str, **differences: Any) -> Worker:
        """Start a Playhead worker on the data directory of this name. `differences` replace fields of its
        configuration.
        """
        config = (
            msgspec.to_builtins(self.command_processes(name).worker_config()) | {"upstream_ca": self.ca} | differences
        )
        process, first_line = self.start_process("proxy.worker.process", config)
        return Worker(name=name, ca=first_line["ca"], port=first_line["port"], process=process)

    def run_load(
        self, worker: Worker, *, pids: Mapping[str, int] = MappingProxyType({}), **what: Any
    ) -> dict[str, Any]:
        """Run `bench.load_client` against a worker with these options, and return what it measured."""
        if self.upstream.has_ended:
            raise RuntimeError(f"the upstream has failed: {self.upstream.last_log_line()}")
        watched = {"upstream": self.upstream.pid, **pids, **worker.pids}
        upstream = self.port_h2 if what.get("h2") else self.port
        options = {**DEFAULTS, "first": self.first, "proxy": worker.port, "ca": worker.ca, "upstream": upstream}
        options |= {"run": f"bench-{self.first}", **what, **worker.client_options, "pids": watched}
        with Process("bench.load_client", options) as load:
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
"""Options of `bench.load_client`, unless a benchmark sets them."""


@contextmanager
def open_bench_setup() -> Iterator[BenchSetup]:
    """Start an upstream. At the end of the block, stop all processes and delete all files."""
    # As root, Postgres runs as another user, who must be able to pass through.
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as stack:
        directory = Path(name)
        directory.chmod(0o711)
        certificate, ca = make_certificates(directory)
        config = {"certificate": certificate, "answer": ANSWER, "more": NEW_HOSTS}
        upstream = stack.enter_context(Process("bench.upstream", config))
        port, port_h2, *more = upstream.read_line()["ports"]
        yield BenchSetup(
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
    """Write a certificate with its key for the upstream's names, and the CA that signed it; return both files."""
    authority = trustme.CA()
    leaf, ca = directory / "upstream.pem", directory / "upstream-ca.pem"
    authority.issue_cert(f"*.{DOMAIN}", "localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(leaf)
    authority.cert_pem.write_to_path(ca)
    return str(leaf), str(ca)
