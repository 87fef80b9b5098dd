"""Measure how much Playhead delays a call at 100 calls a second, beside nginx and no proxy: `python -m bench.delay`.

The same client calls the same upstream directly, through nginx, and through a recording worker with its store server
and Postgres, in turns. The delay of a call is the time that it is under way (`bench.delay_load`); what a proxy adds is
that minus the direct delay of the same turn. The upstream responds at once or after 20 ms, with a whole answer or with
a stream of six events. HTTPS is TLS on both sides, for Playhead in a CONNECT tunnel; HTTP uses a base URL. nginx
records nothing, and is left out if it is not installed.

Prints a table of the added delays. With `--cpu SECONDS`, further turns measure the CPU time of each call in Playhead's
processes (`bench.delay_cpu`). With `--trace FILE`, a traced worker serves a further turn, and FILE gets the steps of a
call's path, for `--plot` (an SVG).
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import delay_cpu
from bench.bench_setup import Process, make_certificates
from bench.delay_cpu import Processes
from bench.delay_path import call_path, plot_path
from bench.figures import Spread, machine, print_json, quantile
from bench.load_client import HOST
from bench.peers import Absent, find_program, free, server
from bench.table import place_table
from bench.wire import MeasurementFailed
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import load_settings

NGINX: Final = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; proxy_buffering off;
  client_body_buffer_size 64k;
  upstream api_tls {{ server 127.0.0.1:{tls}; keepalive 64; keepalive_requests 100000000; }}
  upstream api {{ server 127.0.0.1:{plain}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{https} ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};
    location / {{
      proxy_pass https://api_tls; proxy_ssl_verify on; proxy_ssl_trusted_certificate {ca}; proxy_ssl_name localhost;
    }}
  }}
  server {{ listen 127.0.0.1:{http}; location / {{ proxy_pass http://api; }} }}
}}
"""

WORKLOADS: Final = (
    ("https", "json", 0),
    ("https", "json", 20),
    ("https", "stream", 0),
    ("https", "stream", 20),
    ("http", "json", 0),
    ("http", "stream", 20),
)
"""Scheme, kind of answer, and milliseconds until the upstream responds."""

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
GOAL_MS: Final = 0.3
"""Milliseconds that Playhead may add to a call's median delay beyond what nginx adds."""

STORING_SECONDS: Final = 2.5
"""Seconds until the last calls of a turn are stored and processed by the consumers of the feed."""

MARKS: Final = ("<!-- bench.delay begins: not typed -->\n", "<!-- bench.delay ends -->\n")
"""The lines of a page between which `--into` writes."""

type Workload = tuple[str, str, int]
type Config = Mapping[str, Any]
type Delays = dict[str, float]
"""Delays in ms by part of the answer and quantile, such as `end p50`."""


@dataclass(kw_only=True)
class Delay:
    """The upstream, and the arms of the comparison: how the client reaches the upstream, by arm and scheme."""

    directory: Path
    stack: ExitStack
    ca: str
    certificate: str
    ports: tuple[int, int]
    """The upstream's ports with TLS and without."""

    arms: dict[tuple[str, str], Config]
    processes: dict[tuple[str, str], Processes] = field(default_factory=dict)
    """The processes of each arm whose CPU is measured."""

    def add_direct(self) -> None:
        """Add the arm in which the client contacts the upstream itself."""
        tls, plain = self.ports
        self.arms["direct", "https"] = {"proxy": None, "port": tls, "ca": self.ca}
        self.arms["direct", "http"] = {"proxy": None, "port": plain, "ca": None}

    def add_nginx(self, binary: str) -> None:
        """Start nginx as a reverse proxy. Raises Absent if it is not installed."""
        program, https, http = find_program(binary), free(), free()
        directory = self.directory / "nginx"
        directory.mkdir()
        config = directory / "nginx.conf"
        tls, plain = self.ports
        values = {"directory": directory, "tls": tls, "plain": plain, "https": https, "http": http}
        config.write_text(NGINX.format(certificate=self.certificate, ca=self.ca, **values))
        self.stack.enter_context(server([program, "-c", str(config), "-p", str(directory)], http))
        self.arms["nginx", "https"] = {"proxy": None, "port": https, "ca": self.ca}
        self.arms["nginx", "http"] = {"proxy": None, "port": http, "ca": None}

    def add_playhead(self, name: str, checkout: Path) -> None:
        """Start a checkout's store server with its Postgres, and a recording worker for each scheme."""
        processes = self._command_processes(name)
        store = self.stack.enter_context(
            Process("proxy.processes.store_server", {"data": str(processes.data.root)}, directory=checkout)
        )
        store.read_line()
        postgres = int((processes.data.postgres / "data" / "postmaster.pid").read_text().split()[0])
        for scheme, reverse in (("https", None), ("http", f"http://127.0.0.1:{self.ports[1]}")):
            self.arms[name, scheme], worker = self._start_worker(processes, checkout, reverse=reverse)
            self.processes[name, scheme] = Processes(worker=worker, store_server=store.pid, postgres=postgres)

    def _command_processes(self, name: str) -> CommandProcesses:
        upstreams = {HOST: f"https://localhost:{self.ports[0]}"}
        return CommandProcesses(load_settings({"data": self.directory / name, "upstreams": upstreams}, None))

    def _start_worker(
        self, processes: CommandProcesses, checkout: Path, reverse: str | None = None
    ) -> tuple[Config, int]:
        config = msgspec.to_builtins(processes.worker_config()) | {"upstream_ca": self.ca, "reverse": reverse}
        worker = self.stack.enter_context(Process("proxy.worker.process", config, directory=checkout))
        ready = worker.read_line()
        if reverse:
            return {"proxy": None, "port": ready["port"], "ca": None}, worker.pid
        return {"proxy": ready["port"], "port": self.ports[0], "ca": ready["ca"]}, worker.pid

    def trace(self, seconds: float) -> Mapping[str, Any]:
        """Have a traced worker serve a turn, and return the steps of a call's path."""
        notes = self.directory / "notes"
        processes = self._command_processes("trace")
        config = msgspec.to_builtins(processes.worker_config()) | {"upstream_ca": self.ca, "trace": str(notes)}
        with Process("bench.delay_trace", config) as worker:
            ready = worker.read_line()
            reach = {"proxy": ready["port"], "port": self.ports[0], "ca": ready["ca"]}
            calls = self.ask(reach, "json", 0, seconds, 0)["calls"]
        return call_path(calls, [tuple(json.loads(line)) for line in notes.read_text().splitlines()])

    def ask(self, reach: Config, kind: str, wait: int, seconds: float, first: int) -> dict[str, Any]:
        """Have the client make 100 calls a second, and return the times of each."""
        what = {"kind": kind, "wait": wait, "seconds": seconds, "first": first, "run": f"delay-{first}"}
        with Process("bench.delay_load", {**what, **reach, "rate": 100.0, "connections": 8}) as load:
            return load.read_line()


def summarize(calls: list[Mapping[str, int]], kind: str) -> Delays:
    """Return the delays in milliseconds of a turn's calls: to the first event and to the end of a stream, or to the end
    of an answer.
    """
    parts = {"end": [(call["read"] - call["sent"] + call["end"] - call["last"]) / 1e6 for call in calls]}
    if kind == "stream":
        parts["first event"] = [
            (call["read"] - call["sent"] + call["first"] - call["answered"]) / 1e6 for call in calls
        ]
    return {
        f"{part} {name}": quantile(sorted(values), share)
        for part, values in parts.items()
        for name, share in SHARES.items()
    }


def measure(
    delay: Delay, workloads: Sequence[Workload], rounds: int, seconds: float
) -> dict[Workload, dict[str, list[Delays]]]:
    """Measure all arms in turns, in an order that alternates; return the delays of each turn by workload and arm."""
    names = list(dict.fromkeys(name for name, _ in delay.arms))
    found: dict[Workload, dict[str, list[Delays]]] = {workload: {name: [] for name in names} for workload in workloads}
    first = 0
    for workload, name in take_turns("round", workloads, rounds, names):
        scheme, kind, wait = workload
        result = delay.ask(delay.arms[name, scheme], kind, wait, seconds, first)
        first += int(result["asked"])
        found[workload][name].append(summarize(result["calls"], kind))
    return found


def take_turns(
    title: str, workloads: Sequence[Workload], rounds: int, names: Sequence[str]
) -> Iterator[tuple[Workload, str]]:
    """Yield the workload and the arm of each turn, and print them. The order of the arms alternates."""
    for number in range(rounds):
        for workload in workloads:
            scheme, kind, wait = workload
            for name in names if number % 2 else names[::-1]:
                print(f"{title} {number + 1}: {scheme}, {kind} after {wait} ms, {name}", file=sys.stderr, flush=True)
                yield workload, name


def measure_cpu(
    delay: Delay, workloads: Sequence[Workload], rounds: int, seconds: float
) -> dict[Workload, dict[str, list[list[float]]]]:
    """Measure each checkout of Playhead in turns, and return the µs of CPU of a call in each of `delay_cpu.PARTS`, by
    workload and arm.

    A turn ends when the store server has stored its calls. The cost of connecting is part of the turn.
    """
    names = list(dict.fromkeys(name for name, _ in delay.processes))
    found: dict[Workload, dict[str, list[list[float]]]] = {
        workload: {name: [] for name in names} for workload in workloads
    }
    first = 10_000_000
    for workload, name in take_turns("CPU, round", workloads, rounds, names):
        scheme, kind, wait = workload
        before = delay.processes[name, scheme].read_cpu()
        calls = int(delay.ask(delay.arms[name, scheme], kind, wait, seconds, first)["asked"])
        time.sleep(STORING_SECONDS)
        after = delay.processes[name, scheme].read_cpu()
        first += calls
        found[workload][name].append([(late - early) / calls * 1e6 for early, late in zip(before, after, strict=True)])
    return found


def table(delays: Mapping[Workload, Mapping[str, list[Delays]]]) -> Iterator[str]:
    """Format what each proxy adds to the direct delay, and what Playhead adds beyond nginx."""
    arms = [name for name in next(iter(delays.values())) if name != "direct"]
    peers = [name for name in arms if name != "nginx"]
    yield (
        f"| ms | direct | {' | '.join(f'{name} adds' for name in arms)} |"
        + "".join(f" {name}, more than nginx | over nginx |" for name in peers if "nginx" in arms)
    )
    yield "| --- |" + " --- |" * (1 + len(arms) + (2 * len(peers) if "nginx" in arms else 0))
    for (scheme, kind, wait), turns in delays.items():
        for measure in turns["direct"][0]:
            direct = [turn[measure] for turn in turns["direct"]]
            added = {
                name: [turn[measure] - base for turn, base in zip(turns[name], direct, strict=True)] for name in arms
            }
            cells = [f"{scheme}, {kind} after {wait} ms, {measure}", f"{statistics.median(direct):.2f}"]
            cells += [f"{Spread.of(added[name]):.2f}" for name in arms]
            for name in peers if "nginx" in arms else ():
                pairs = list(zip(added[name], added["nginx"], strict=True))
                cells.append(f"{Spread.of(ours - theirs for ours, theirs in pairs):.2f}")
                cells.append(f"{statistics.median(added[name]) / statistics.median(added['nginx']):.1f}")
            yield f"| {' | '.join(cells)} |"


def goal_line(delays: Mapping[Workload, Mapping[str, list[Delays]]]) -> str:
    """Format for how many workloads Playhead meets the goal."""
    more = [
        statistics.median(
            ours[part] - theirs[part] for ours, theirs in zip(turns["Playhead"], turns["nginx"], strict=True)
        )
        for turns in delays.values()
        for part in turns["direct"][0]
        if part.endswith("p50")
    ]
    rows_within_goal = sum(one <= GOAL_MS for one in more)
    return f"Wanted: at most {GOAL_MS} ms more than nginx at p50. Kept in {rows_within_goal} of {len(more)} rows; the most is {max(more):.2f} ms."


def origin(began: Mapping[str, Any], rounds: int, seconds: float) -> str:
    """Format where and when this was measured."""
    return (
        f"Medians of {rounds} rounds of {seconds:g} s [lowest-highest]; {began['cores']} cores of {began['cpu']}, Linux "
        f"{began['kernel']}, Python {began['python']}, load average {began['load']:.1f} before, {time.strftime('%Y-%m-%d')}."
    )


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.delay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each turn (%(default)s)")
    parser.add_argument(
        "--only",
        choices=sorted({word for workload in WORKLOADS for word in workload[:2]}),
        help="only workloads with this word",
    )
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="another checkout of Playhead, in turns with it"
    )
    parser.add_argument(
        "--cpu", type=float, metavar="SECONDS", help="measure the CPU of each call too, in turns of so many seconds"
    )
    parser.add_argument("--nginx", default="nginx", metavar="PATH", help="its program, where it is not on the PATH")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="trace a call's path into FILE, as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the path that --trace found, as SVG")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the table between the marks of this page")
    parser.add_argument("--json", action="store_true", help="print the delays of each turn instead of the table")
    return parser


def main() -> int:
    """Measure, and print the table."""
    chosen = options().parse_args()
    began = machine()
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="bench-delay-") as name, ExitStack() as stack:
        # As root, Postgres runs as another user, who must be able to pass through.
        directory = Path(name)
        directory.chmod(0o711)
        certificate, ca = make_certificates(directory)
        upstream = stack.enter_context(Process("bench.delay_upstream", {"certificate": certificate}))
        tls, plain = upstream.read_line()["ports"]
        delay = Delay(directory=directory, stack=stack, ca=ca, certificate=certificate, ports=(tls, plain), arms={})
        delay.add_direct()
        try:
            delay.add_nginx(chosen.nginx)
        except Absent as absent:
            print(f"nginx takes no part: {absent}; apt-get install nginx-light, or --nginx PATH", file=sys.stderr)
        delay.add_playhead("Playhead", here)
        if chosen.against:
            delay.add_playhead("other", chosen.against.resolve())
        time.sleep(5)  # what was started has done its first work
        workloads = [workload for workload in WORKLOADS if not chosen.only or chosen.only in workload[:2]]
        found = measure(delay, workloads, chosen.rounds, chosen.seconds)
        cpu_workloads = [workload for workload in workloads if workload[0] == "https" and workload[2]]
        cpu_times = measure_cpu(delay, cpu_workloads, chosen.rounds, chosen.cpu) if chosen.cpu else {}
        path = delay.trace(4 * chosen.seconds) if chosen.trace or chosen.plot else None
    lines = [origin(began, chosen.rounds, chosen.seconds), "", *table(found)]
    if all("nginx" in turns for turns in found.values()):
        lines += ["", goal_line(found)]
    for (scheme, kind, wait), arms in cpu_times.items():
        lines += ["", *delay_cpu.table(arms, f"{scheme}, {kind} after {wait} ms: µs of CPU for each call")]
    if chosen.into:
        page = chosen.into.read_text("utf-8")
        chosen.into.write_text(place_table(page, "\n".join(lines), MARKS), "utf-8")
    elif chosen.json:
        print_json({" ".join(map(str, workload)): turns for workload, turns in found.items()} | {"machine": began})
    else:
        print("\n".join(lines))
    if path and chosen.trace:
        chosen.trace.write_text(json.dumps(path, indent=1) + "\n")
    if path and chosen.plot:
        chosen.plot.write_text(plot_path(path))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeasurementFailed as failed:
        sys.exit(str(failed))
