"""Compare the cost of a captive command with that of one that uses proxy variables: `python -m bench.captive [--rounds
N]`.

`playhead record --isolation require` and `--isolation off` run the same client with the same upstream. Both clients
wait on stdin and make their calls in turns, first on one connection and then with a new connection for each call.
Counted is the CPU of the client and of the proxy worker, by the kernel's clock of each thread (schedstat): on a busy
machine CPU varies by a few percent where wall time varies by half.

Prints the CPU of a call in both ways and the ratio of each round, and how much longer a captive command takes to start,
in wall time and CPU; medians and ranges.
"""

import argparse
import http.client
import json
import os
import resource
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.bench_setup import BenchSetup, open_bench_setup
from bench.figures import Spread
from bench.load_client import HOST
from bench.wire import MeasurementFailed

CALLS = {"one connection": 100, "a connection for each call": 20}
WARM = 5
WAYS = {"captive": "require", "proxy variables": "off"}
LOAD = "--load"


def open_connection(context: ssl.SSLContext) -> http.client.HTTPSConnection:
    """Open a connection to the upstream, through the proxy if a variable names one."""
    proxy = urlsplit(os.environ.get("HTTPS_PROXY", ""))
    if not proxy.hostname:
        return http.client.HTTPSConnection(HOST, context=context)
    connection = http.client.HTTPSConnection(proxy.hostname, proxy.port, context=context)
    credentials = b64encode(f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()).decode()
    connection.set_tunnel(HOST, 443, {"Proxy-Authorization": f"Basic {credentials}"})
    return connection


def ask(connection: http.client.HTTPSConnection) -> None:
    """Make one call."""
    connection.request("POST", "/v1/json?size=2048", b'{"question": "how much?"}', {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise MeasurementFailed(f"the upstream answered {response.status}")


def serve_rounds() -> None:
    """Run as the recorded command: for each line of stdin, print the microseconds of CPU of each kind of call."""
    context = ssl.create_default_context()
    first_connection = open_connection(context)

    def ask_on_new_connection() -> None:
        connection = open_connection(context)
        ask(connection)
        connection.close()

    kinds: dict[str, Callable[[], None]] = dict(
        zip(CALLS, (lambda: ask(first_connection), ask_on_new_connection), strict=True)
    )
    for _ in sys.stdin:
        print(json.dumps({kind: _microseconds(call, CALLS[kind]) for kind, call in kinds.items()}), flush=True)


def _microseconds(call: Callable[[], None], times: int) -> float:
    """Return the CPU of each call in this process and in the proxy worker."""
    for _ in range(WARM):
        call()
    workers = [*filter(_is_worker, _process_tree(os.getppid()))]
    if len(workers) != 1:
        raise MeasurementFailed(f"the command has {len(workers)} proxy workers below its parent: {workers}")
    served_by = [os.getpid(), *workers]
    before = sum(map(cpu_ns, served_by))
    for _ in range(times):
        call()
    return (sum(map(cpu_ns, served_by)) - before) / 1000 / times


def _process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [pid, *(one for child in children for one in _process_tree(child))]


def _is_worker(pid: int) -> bool:
    """Whether the process is a worker forked by `proxy.processes.early_worker`, which has the command line of the
    command.
    """
    return Path(f"/proc/{pid}/comm").read_text() == "playhead-worker\n"


def cpu_ns(pid: int) -> int:
    """Return the CPU time of the threads of a process; 0 if it has ended."""
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def start_once(setup: BenchSetup, way: str) -> tuple[float, float]:
    """Return the milliseconds, in wall time and CPU, that a command takes which does nothing."""
    # The command that waits there has started the store server.
    line = [*_record(setup.directory / way.replace(" ", "-"), way), "true"]
    before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return (time.perf_counter() - before) * 1000, cpu * 1000


def start_command(setup: BenchSetup, way: str) -> "subprocess.Popen[str]":
    """Start the recorded command in one of the ways."""
    directory = setup.directory / way.replace(" ", "-")
    directory.mkdir(mode=0o711)
    config = directory / "playhead.toml"
    config.write_text(f'upstream_ca = "{setup.ca}"\n[upstreams]\n"{HOST}" = "https://localhost:{setup.port}"\n')
    command = [sys.executable, "-m", "bench.captive", LOAD]
    return subprocess.Popen(
        [*_record(directory, way), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Otherwise a process forks the worker that stays ready for other commands, and is not below this one.
        env={**os.environ, "PLAYHEAD_STORE_IDLE": "0"},
    )


def _record(directory: Path, way: str) -> list[str]:
    place = ["--data", str(directory / "data"), "--config", str(directory / "playhead.toml")]
    playhead = str(Path(sys.executable).parent / "playhead")
    return [playhead, "record", *place, "--isolation", WAYS[way], "--watch", "off", "--"]


def measure_command(process: "subprocess.Popen[str]") -> dict[str, float]:
    """Have the command make its calls, and return its figures."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("ask\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise MeasurementFailed(f"the recorded command ended with {process.wait()}")
    found: dict[str, float] = json.loads(line)
    return found


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument(LOAD, action="store_true", help="run as the recorded command (used by the script itself)")
    arguments = parser.parse_args()
    if arguments.load:
        serve_rounds()
        return
    rounds: list[dict[str, dict[str, float]]] = []
    starts: list[dict[str, tuple[float, float]]] = []
    with open_bench_setup() as setup, ExitStack() as stack:
        processes = {way: stack.enter_context(start_command(setup, way)) for way in WAYS}
        for process in processes.values():
            measure_command(process)
        for number in range(arguments.rounds):
            turn = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
            rounds.append({way: measure_command(processes[way]) for way in turn})
        for number in range(arguments.starts + 1):
            turn = list(WAYS) if number % 2 == 0 else list(reversed(WAYS))
            starts.append({way: start_once(setup, way) for way in turn})
    first, second = WAYS
    for kind in CALLS:
        columns = [Spread.of([each[way][kind] for each in rounds]) for way in WAYS]
        ratios = Spread.of([each[first][kind] / each[second][kind] for each in rounds])
        print(f"{kind}: {first} {columns[0]:.0f} µs of CPU, {second} {columns[1]:.0f} µs, ratio {ratios:.2f}")
    for index, unit in enumerate(("", " of CPU")):
        # The first start of each made its data directory.
        more = Spread.of([each[first][index] - each[second][index] for each in starts[1:]])
        print(f"starting: {first} {more:.0f} ms{unit} more than {second}")


if __name__ == "__main__":
    main()
