"""What a captive command costs, beside one that goes by proxy variables: `python -m bench.captive [--rounds N]`.

The same client, with the same upstream behind, is run by `playhead record --isolation require` and `--isolation off`. Both
wait on their stdin and ask in turns, on one connection and then with a connection for each call. What is counted is the CPU
of the client and of the proxy worker, by the kernel's own clock of each thread (schedstat): on a busy machine
it varies by hundredths where wall time varies by halves. What one round found captive is divided by what it found with
variables: the ratios' median and range are the result. Starting is counted by itself, in wall time and CPU.
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
    """A connection to the upstream, by the proxy where a variable names one."""
    proxy = urlsplit(os.environ.get("HTTPS_PROXY", ""))
    if not proxy.hostname:
        return http.client.HTTPSConnection(HOST, context=context)
    connection = http.client.HTTPSConnection(proxy.hostname, proxy.port, context=context)
    credentials = b64encode(f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}".encode()).decode()
    connection.set_tunnel(HOST, 443, {"Proxy-Authorization": f"Basic {credentials}"})
    return connection


def ask(connection: http.client.HTTPSConnection) -> None:
    """One call."""
    connection.request("POST", "/v1/json?size=2048", b'{"question": "how much?"}', {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise MeasurementFailed(f"the upstream answered {response.status}")


def load() -> None:
    """Be the command: for each line on stdin print the microseconds of CPU of a call of each kind."""
    context = ssl.create_default_context()
    first_connection = open_connection(context)

    def ask_anew() -> None:
        connection = open_connection(context)
        ask(connection)
        connection.close()

    kinds: dict[str, Callable[[], None]] = dict(zip(CALLS, (lambda: ask(first_connection), ask_anew), strict=True))
    for _ in sys.stdin:
        print(json.dumps({kind: _microseconds(call, CALLS[kind]) for kind, call in kinds.items()}), flush=True)


def _microseconds(call: Callable[[], None], times: int) -> float:
    """CPU for each, of this process and of the proxy worker."""
    for _ in range(WARM):
        call()
    workers = [*filter(_is_worker, _family(os.getppid()))]
    if len(workers) != 1:
        raise MeasurementFailed(f"the command has {len(workers)} proxy workers below its parent: {workers}")
    served_by = [os.getpid(), *workers]
    before = sum(map(cpu_ns, served_by))
    for _ in range(times):
        call()
    return (sum(map(cpu_ns, served_by)) - before) / 1000 / times


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return [pid, *(one for child in children for one in _family(child))]


def _is_worker(pid: int) -> bool:
    """Whether it is the fork of a command that `proxy.processes.early_worker` makes. Its command line is the command's."""
    return Path(f"/proc/{pid}/comm").read_text() == "playhead-worker\n"


def cpu_ns(pid: int) -> int:
    """The time for which the threads of a process have run so far. 0 for one that has ended."""
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def start_once(setup: BenchSetup, way: str) -> tuple[float, float]:
    """Milliseconds in which a command that does nothing is run, by the clock and of CPU."""
    # The command that waits there has started the store server.
    line = [*_record(setup.directory / way.replace(" ", "-"), way), "true"]
    before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(line, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return (time.perf_counter() - before) * 1000, cpu * 1000


def start_command(setup: BenchSetup, way: str) -> "subprocess.Popen[str]":
    """The command, recorded in one of the ways."""
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
    """What the command finds, told to ask."""
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
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument(LOAD, action="store_true", help="be the command (used by the script itself)")
    arguments = parser.parse_args()
    if arguments.load:
        load()
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
