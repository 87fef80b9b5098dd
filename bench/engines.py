"""What each engine costs for each request and event: `python -m bench.engines [--quick] [--json] [--rounds N] [--seconds S]`.

Every engine is asked the same in turn, round after round, on one machine that others use too: compare rows of one run, and
ratios rather than figures. nginx, where there is one on the PATH, is a reverse proxy with TLS on both sides that records
nothing. The keeper runs for `end-to-end` only: all else is the door.
"""

import argparse
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.figures import Row, Spread, finish, machine, print_json, ratios
from bench.replay import CALLS, recorded
from bench.stage import Door, Stage, staged
from proxy.ports import free

NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream api {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};
    location / {{
      proxy_pass https://api; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate {ca}; proxy_ssl_name localhost; proxy_ssl_session_reuse on;
      proxy_buffering off; client_max_body_size 0;
    }}
  }}
}}
"""

WORKLOADS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "small": ("call", {}),
        "small-paced": ("call", {"rate": 500.0}),
        "large": ("call", {"size": 20 << 10, "path": "/json?4096"}),
        "sse50": ("event", {"workload": "events", "connections": 50, "rate": 50, "warm": 1.0}),
        "sse200": ("event", {"workload": "events", "connections": 200, "rate": 50, "warm": 2.0}),
        "sse400": ("event", {"workload": "events", "connections": 400, "rate": 50, "warm": 4.0}),
        "replay": ("call", {"distinct": CALLS, "first": 0}),
    }
)
QUICK = ("small", "sse50", "replay")


@dataclass(frozen=True, kw_only=True)
class Nginx:
    """A reverse proxy in front of the upstream."""

    pid: int
    port: int


@dataclass(kw_only=True)
class Engines:
    """The engines of one run, each started when it is first asked for."""

    stage: Stage

    def ask(self, name: str, **what: Any) -> dict[str, Any]:
        """Have an engine asked; what was found."""
        if name == "nginx":
            nginx = self._nginx
            door = replace(self.stage.direct(), name=name)
            return self.stage.ask(door, pids={"door": nginx.pid}, **what, upstream=nginx.port)
        return self.stage.ask(self._door(name), **what)

    @cached_property
    def _nginx(self) -> Nginx:
        return self.stage.stack.enter_context(nginx(self.stage))

    @cached_property
    def _recorded(self) -> Path:
        return recorded(self.stage)

    @cached_property
    def _doors(self) -> dict[str, Door]:
        return {}

    def _door(self, name: str) -> Door:
        if name not in self._doors:
            self._doors[name] = MAKERS[name](self, name)
        return self._doors[name]

    def ours(self, name: str, engine: str, **differences: Any) -> Door:
        """A door of ours."""
        return self.stage.ours(name, engine=engine, **differences)

    def replaying(self, name: str, engine: str) -> Door:
        """A door that answers from a recording."""
        options = {"after_last": "repeat-last"}
        return self.ours(name, engine, mode="replay", replay=[str(self._recorded)], replay_options=options)


type Maker = Callable[[Engines, str], Door]

MAKERS: Mapping[str, Maker] = MappingProxyType(
    {
        "direct": lambda engines, _: engines.stage.direct(),
        "lane-relay": lambda engines, name: engines.ours(name, "lane", mode="passthrough"),
        "lane-record": lambda engines, name: engines.ours(name, "lane"),
        "mitmproxy-bare": lambda engines, _: engines.stage.bare(),
        "mitmproxy-record": lambda engines, name: engines.ours(name, "mitmproxy"),
        "lane-replay": lambda engines, name: engines.replaying(name, "lane"),
        "mitmproxy-replay": lambda engines, name: engines.replaying(name, "mitmproxy"),
    }
)
REPLAYING = ("lane-replay", "mitmproxy-replay")


@contextmanager
def nginx(stage: Stage) -> Iterator[Nginx]:
    """nginx in front of the stage's upstream, as one process."""
    directory = stage.directory / "nginx"
    directory.mkdir()
    port = free("127.0.0.1", 0)
    config = directory / "nginx.conf"
    certificate = stage.directory / "upstream.pem"
    told = {"directory": directory, "upstream": stage.port, "port": port, "certificate": certificate, "ca": stage.ca}
    config.write_text(NGINX.format(**told))
    with subprocess.Popen(["nginx", "-c", str(config), "-p", str(directory)], stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port)
            yield Nginx(pid=process.pid, port=port)
        finally:
            process.terminate()


def _wait(port: int) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def asked(workload: str, engines: Sequence[str]) -> list[str]:
    """Who takes part: those that answer from a recording where one is answered from, and nobody else does."""
    return [name for name in engines if name == "direct" or (name in REPLAYING) == (workload == "replay")]


def options() -> argparse.ArgumentParser:
    there = [name for name in ("nginx",) if shutil.which(name)]
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each window")
    parser.add_argument("--engines", nargs="+", default=[*there, *MAKERS], choices=["nginx", *MAKERS])
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS))
    return parser


def measure(engines: Engines, names: Sequence[str], workload: str, number: int, seconds: float) -> list[Row]:
    """One round of one workload. The order turns round, so that nobody always goes first."""
    order = asked(workload, names)
    unit, what = WORKLOADS[workload]
    rows = []
    for name in order if number % 2 else order[::-1]:
        found = engines.ask(name, seconds=seconds, **what)
        rows.append(_row(name, workload, unit, number, found))
    return rows


def _row(name: str, workload: str, unit: str, number: int, found: Mapping[str, Any]) -> Row:
    used = found["cpu"].get("door")
    return Row(
        engine=name,
        workload=workload,
        unit=unit,
        round=number,
        n=found["n"],
        per_s=found["n"] / found["seconds"],
        cpu_us=used / found["n"] * 1e6 if used is not None else None,
        mean_ms=found["mean_ms"],
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
    )


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, Spread]]:
    """The targets: recording beside an nginx that does not, and beside the engine that speaks everything."""
    for workload in dict.fromkeys(row.workload for row in rows):
        for ours, peer in (("lane-relay", "nginx"), ("lane-record", "nginx"), ("mitmproxy-bare", "lane-record")):
            if ratio := ratios(rows, workload, ours, peer):
                yield f"CPU of {ours} over {peer}, {workload}", ratio


def main() -> None:
    told = options().parse_args()
    rounds, seconds = (1, 1.5) if told.quick else (told.rounds, told.seconds)
    rows: list[Row] = []
    began = machine()
    with staged() as stage:
        engines = Engines(stage=stage)
        for number in range(rounds):
            for workload in told.workloads or (QUICK if told.quick else WORKLOADS):
                found = measure(engines, told.engines, workload, number, seconds)
                rows += found
                for row in found if told.json else ():
                    print_json(row)
    finish(rows, began, compared(rows), as_json=told.json)


if __name__ == "__main__":
    main()
