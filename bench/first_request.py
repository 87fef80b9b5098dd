"""Compare the first request of a replay with later ones: `python -m bench.first_request [--against CHECKOUT]`.

A `playhead up --mode replay` answers many small runs from its store, one after another: the first request of a run
loads it, and four more follow, the last of them on another connection. Small runs are loaded ahead, which the script
waits for. CPU is that of the store server and of the worker for each run loaded. With `--against`, both checkouts run
in turns. Prints a row of medians for each figure, in groups:

`stored_…` are runs of a `--database-url`: other programs may write to it, so the worker asks for each run whether it
has changed since it was loaded.

`late_…` are old runs, which do not fit into the memory of what is loaded ahead; `stored_late_…` are such runs of a
`--database-url`, and `tunnel_late_…` are such runs for clients with tunnels and TLS.

`ahead_…`, `large_…` and `created_…` are for clients with tunnels and TLS, which agents use: runs that are loaded ahead,
runs of a thousand calls, and replays created over REST, which are loaded at once. `stored_created_…` are such replays
with a `--database-url`, and `forked_…` are forks created over REST in mode auto, whose requests are all answered from
the record.

`command_…` are workers as `playhead replay FILE` starts them: the first request, over TLS and half a second after the
worker is ready (an agent takes longer to start), beside one on a later connection and later ones on the same
connection.
"""

import argparse
import base64
import http.client
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bench.figures import Spread, cpu
from bench.starts import COMMAND, HERE, Side
from bench.suite import CALLS, recorded_exchange
from bench.wire import MeasurementFailed
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from proxy.processes.http_client import HttpClient
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.datadir import open_data_dir
from store.embedded.postgres import ensure_server

URL: Final = "http://api.openai.test/v1/chat/completions"
TLS_URL: Final = "https://api.openai.test/v1/chat/completions"

AGENT_START: Final = 0.5
"""Seconds that an agent takes to start."""


LARGE: Final = 1000
"""Calls of a large run."""

LARGE_RUNS: Final = 4
"""Large runs of a round. More do not fit into the memory of what is loaded ahead."""

FILLING: Final = 2000
FILLING_RUNS: Final = 5
FILLING_FIRST: Final = 1_000_000
"""The first of the newest runs, which fill the memory of what is loaded ahead; `FILLING` is the calls of each and
`FILLING_RUNS` their number.
"""

LOADING_TIME: Final = 2.0
"""Seconds from when replays and forks are created until their agents ask."""

CASES: Final = ("up", "stored", "late", "tunnels", "created", "command")


def write_runs(
    directory: Path, runs: int, profiles: Profiles, url: str = URL, *, calls: int = CALLS, first: int = 0
) -> list[Path]:
    """Write recordings of five calls, or of as many as given, for this number of runs."""
    files = []
    for number in range(first, first + runs * (calls // CALLS), calls // CALLS):
        exchanges = [recorded_exchange(number, step) for step in range(calls)]
        plain = [replace(one, run=f"run-{number}", request=replace(one.request, url=url)) for one in exchanges]
        entries = tuple(Entry(exchange=one, call={"key": make_key(one.request, profiles).key}) for one in plain)
        files.append(directory / f"run-{number}.jsonl")
        with files[-1].open("wb") as file:
            file.writelines(
                bundle_lines(Bundle(run={"id": f"run-{number}"}, profiles=profiles.digest, entries=entries))
            )
    return files


@contextmanager
def replaying(
    checkout: Path, data: Path, files: list[Path], database: str | None = None, mode: str = "replay"
) -> Iterator[tuple[int, dict[str, int]]]:
    """Start an `up` that replays these runs from its store; yield the port of its proxy, and its processes."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PLAYHEAD_DATA": str(data)}
    if database is not None:
        environment["PLAYHEAD_DATABASE_URL"] = database
    playhead = [sys.executable, "-P", "-c", COMMAND]
    subprocess.run(
        [*playhead, "import", *map(str, files)], env=environment, cwd=data.parent, capture_output=True, check=True
    )
    command = [*playhead, "up", "--mode", mode, "--proxy-port", "0", "--api-port", "0"]
    with subprocess.Popen(
        command, env=environment, cwd=data.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as up:
        assert up.stdout is not None
        try:
            line = up.stdout.readline().decode()
            if not line.startswith("ready"):
                raise MeasurementFailed(f"up did not start in {data}")
            processes = find_processes(up.pid)
            await_rest(processes["store"])
            yield int(line.split("proxy=http://127.0.0.1:")[1].split()[0]), processes
        finally:
            up.send_signal(signal.SIGTERM)


def await_rest(pid: int) -> None:
    """Wait until a process uses hardly any CPU: consumers process what was imported, and runs are loaded ahead."""
    used, rests = cpu(pid), 0
    for _ in range(90):
        time.sleep(1)
        rests = rests + 1 if (now := cpu(pid)) - used < 0.02 else 0
        if rests == 2:
            return
        used = now


def find_processes(parent: int) -> dict[str, int]:
    """Find the store server and the worker of an `up`."""
    children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    modules = {"store": "proxy.processes.store_server", "worker": "proxy.worker.process"}
    return {name: next(pid for pid in commands if module in commands[pid]) for name, module in modules.items()}


def ask(port: int, run: int) -> list[float]:
    """Make the calls of one run, the last one on a connection of its own; return the seconds of each."""
    credentials = base64.b64encode(f"run-{run}:".encode()).decode()
    headers = {"Content-Type": "application/json", "Proxy-Authorization": f"Basic {credentials}"}
    seconds = []
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for step in range(CALLS):
        body = recorded_exchange(run, step).request.body.data
        if step == CALLS - 1:
            connection.close()  # the next request opens another one
        began = time.perf_counter()
        connection.request("POST", URL, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        seconds.append(time.perf_counter() - began)
        if answer.status != 200:
            raise MeasurementFailed(f"run {run}, step {step}: {answer.status} {content[:300]!r}")
    connection.close()
    return seconds


def measure(port: int, processes: dict[str, int], first: int, runs: int) -> dict[str, float]:
    """Ask for runs that are not loaded yet."""
    used = {name: cpu(pid) for name, pid in processes.items()}
    run_seconds = [ask(port, run) for run in range(first, first + runs)]
    found = {f"{name}_cpu_ms": (cpu(pid) - used[name]) * 1000 / runs for name, pid in processes.items()}
    found["first_ms"] = statistics.median(one[0] for one in run_seconds) * 1000
    # A connection to Postgres used to plan its first five reads anew.
    found["first_five_ms"] = statistics.median(one[0] for one in run_seconds[:5]) * 1000
    found["later_ms"] = statistics.median(later for one in run_seconds for later in one[1:-1]) * 1000
    found["next_connection_ms"] = statistics.median(one[-1] for one in run_seconds) * 1000
    found["first_over_later"] = found["first_ms"] / found["later_ms"]
    found["first_over_next_connection"] = found["first_ms"] / found["next_connection_ms"]
    return found


def measure_command(side: Side, file: Path) -> dict[str, float]:
    """Start a worker that replays a file, and ask it."""
    replaying: dict[str, Any] = {"mode": "replay", "spooled": False, "replay": [str(file)]}
    replaying["replay_options"] = {"id": "r", "report": str(side.directory / "report.json")}
    config = {**side.worker_config(side.directory / "command"), **replaying}
    with subprocess.Popen(
        side.python("-m", "proxy.worker.process"),
        env=side.environment,
        cwd=side.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(config).encode() + b"\n")
        worker.stdin.flush()
        ready = json.loads(worker.stdout.readline())
        trusted = ssl.create_default_context(cafile=ready["ca"])
        time.sleep(AGENT_START)
        first, *later = ask_tls(ready["port"], trusted, "r", 0, range(3))
        connected, *_ = ask_tls(ready["port"], trusted, "r", 0, range(3, CALLS))
        worker.communicate(b"stop\n")
    return {
        "command_first_ms": first,
        "command_next_connection_ms": connected,
        "command_later_ms": statistics.median(later),
        "command_first_over_next_connection": first / connected,
    }


def ask_tls(port: int, trusted: ssl.SSLContext, name: str, run: int, steps: Iterable[int]) -> list[float]:
    """Make these calls of a run on one connection through a tunnel; return the milliseconds of each."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted)
    credentials = base64.b64encode(f"{name}:".encode()).decode()
    connection.set_tunnel("api.openai.test", 443, {"Proxy-Authorization": f"Basic {credentials}"})
    milliseconds = []
    for step in steps:
        body, began = recorded_exchange(run, step).request.body.data, time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        milliseconds.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise MeasurementFailed(f"{name}, step {step}: {answer.status}")
    connection.close()
    return milliseconds


def measure_commands(checkouts: Mapping[str, Path], place: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Measure workers of each checkout in turns. The first ones are not counted, because they load the client's own
    TLS.
    """
    (place / "command").mkdir()
    file, *_ = write_runs(place / "command", 1, load_profiles(None), TLS_URL)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(rounds + 1):
        for name, checkout in checkouts.items():
            side = Side(name=name, checkout=checkout, directory=place / name)
            side.directory.mkdir(mode=0o711, exist_ok=True)
            cost = measure_command(side, file)
            if number:
                found[name].append(cost)
    return found


def measure_rounds(
    checkouts: Mapping[str, Path],
    place: Path,
    files: list[Path],
    runs: int,
    *,
    has_url: bool = False,
    filling: Sequence[Path] = (),
) -> dict[str, list[dict[str, float]]]:
    """Measure each checkout's `up` in turns, with this number of runs in each round.

    `has_url` gives it a `--database-url`. `filling` loads newer runs ahead instead of these.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(len(files) // runs):
        for side, checkout in checkouts.items():
            directory = place / side
            directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            with ExitStack() as stack:
                database = stack.enter_context(ensure_server(directory / "pg")).dsn if has_url else None
                imported = [*files, *filling] if number == 0 else files[:1]
                port, processes = stack.enter_context(replaying(checkout, directory / "data", imported, database))
                found[side].append(measure(port, processes, number * runs, runs))
    return found


def measure_tunnels(
    port: int, data: Path, runs: Mapping[str, Mapping[str, int]], *, warms: bool = True
) -> dict[str, float]:
    """Request runs and replays through tunnels, by kind and name; return the medians of each kind."""
    trusted = ssl.create_default_context(cafile=data / "keys" / "ca.pem")
    if warms:
        # The certificate of the host is made, and the client's own code loaded.
        ask_tls(port, trusted, "run-0", 0, range(1))
    found: dict[str, float] = {}
    for kind, numbers in runs.items():
        firsts, connected = [], []
        for name, number in numbers.items():
            first, *_ = ask_tls(port, trusted, name, number, range(3))
            after, *_ = ask_tls(port, trusted, name, number, range(3, CALLS))
            firsts.append(first)
            connected.append(after)
        found[f"{kind}_first_ms"] = statistics.median(firsts)
        found[f"{kind}_next_connection_ms"] = statistics.median(connected)
        found[f"{kind}_first_over_next_connection"] = statistics.median(firsts) / statistics.median(connected)
    return found


def create_replays(data: Path, runs: Mapping[str, int], *, are_forks: bool = False) -> dict[str, int]:
    """Create a replay of each run over REST, or a fork that answers all steps from the record; return their runs."""
    directory = open_data_dir(data)
    notice = directory.read_notice("up")
    if notice is None:
        raise MeasurementFailed(f"no up runs in {data}")
    api = HttpClient(notice["api"], params={}, headers={"authorization": f"Bearer {directory.api_token()}"})
    for run in runs:
        replay = {"run": run, "id": f"again-{run}"}
        path, options = (f"/v1/runs/{run}/forks", {"id": f"again-{run}"}) if are_forks else ("/v1/replays", replay)
        answer = api.request("POST", path, json=options, timeout=60)
        if answer.status_code != 201:
            raise MeasurementFailed(f"a replay of {run} was not created: {answer.status_code}")
    return {f"again-{run}": number for run, number in runs.items()}


def measure_tunnel_rounds(
    checkouts: Mapping[str, Path], place: Path, runs: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure the latencies of clients with tunnels, each checkout in turns."""
    profiles, half = load_profiles(None), runs // 2
    place.mkdir(mode=0o711)
    small = write_runs(place, rounds * runs + 1, profiles, TLS_URL)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(rounds):
        first_large = 100_000 * (number + 1)
        large = write_runs(place, LARGE_RUNS, profiles, TLS_URL, calls=LARGE, first=first_large)
        for side, checkout in checkouts.items():
            data = place / side
            imported = [*(small if number == 0 else []), *large]
            begin = number * runs + 1
            ahead = {f"run-{one}": one for one in range(begin, begin + half)}
            again = {f"run-{one}": one for one in range(begin + half, begin + runs)}
            many = {file.stem: int(file.stem.partition("-")[2]) for file in large}
            with replaying(checkout, data, imported) as (port, _):
                created = create_replays(data, again)
                found[side].append(measure_tunnels(port, data, {"ahead": ahead, "large": many, "created": created}))
    return found


def measure_late_tunnel_rounds(
    checkouts: Mapping[str, Path], place: Path, runs: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure the latencies of clients with tunnels that request old runs, each checkout in turns."""
    profiles = load_profiles(None)
    place.mkdir(mode=0o711)
    old = write_runs(place, rounds * runs + 1, profiles, TLS_URL)
    filling = write_runs(place, FILLING_RUNS, profiles, TLS_URL, calls=FILLING, first=FILLING_FIRST)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(rounds):
        chosen = {f"run-{one}": one for one in range(number * runs + 1, (number + 1) * runs + 1)}
        for side, checkout in checkouts.items():
            data = place / side
            with replaying(checkout, data, [*old, *filling] if number == 0 else old[:1]) as (port, _):
                found[side].append(measure_tunnels(port, data, {"tunnel_late": chosen}))
    return found


def measure_created_rounds(
    checkouts: Mapping[str, Path], place: Path, runs: int, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure replays with a `--database-url`, and forks, created over REST, each checkout in turns."""
    place.mkdir(mode=0o711)
    files = write_runs(place, rounds * runs + 1, load_profiles(None), TLS_URL)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for number in range(rounds):
        chosen = {f"run-{one}": one for one in range(number * runs + 1, (number + 1) * runs + 1)}
        for side, checkout in checkouts.items():
            cost: dict[str, float] = {}
            for kind, mode in (("stored_created", "replay"), ("forked", "auto")):
                directory, are_forks = place / side / kind, kind == "forked"
                directory.mkdir(mode=0o711, parents=True, exist_ok=True)
                (place / side).chmod(0o711)
                with ExitStack() as stack:
                    database = None if are_forks else stack.enter_context(ensure_server(directory / "pg")).dsn
                    data = directory / "data"
                    imported = files if number == 0 else files[:1]
                    port, _ = stack.enter_context(replaying(checkout, data, imported, database, mode))
                    created = create_replays(data, chosen, are_forks=are_forks)
                    time.sleep(LOADING_TIME)
                    cost |= measure_tunnels(port, data, {kind: created}, warms=not are_forks)
            found[side].append(cost)
    return found


def add_prefix(prefix: str, costs: Mapping[str, list[dict[str, float]]]) -> dict[str, list[dict[str, float]]]:
    """Prefix the names of the rows of a case."""
    return {
        side: [{f"{prefix}_{name}": value for name, value in one.items()} for one in of] for side, of in costs.items()
    }


def print_rows(costs_by_side: Mapping[str, list[dict[str, float]]]) -> None:
    """Print a row for each figure, with a column for each checkout."""
    for row in costs_by_side["this"][0]:
        print(
            f"| {row} | {' | '.join(f'{Spread.of(one[row] for one in costs):.2f}' for costs in costs_by_side.values())} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_request", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose modules are compiled")
    parser.add_argument("--runs", type=int, default=40, help="runs of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CASES, help="these rows")
    options = parser.parse_args()
    checkouts = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
    print(f"| | {' | '.join(checkouts)} |\n| --- {'| --- ' * len(checkouts)}|")
    with tempfile.TemporaryDirectory(prefix="bench-first-") as name:
        place = Path(name)
        place.chmod(0o711)
        if options.only in (None, "tunnels"):
            print_rows(measure_tunnel_rounds(checkouts, place / "tunnels", options.runs, options.rounds))
        if options.only in (None, "command"):
            print_rows(measure_commands(checkouts, place, options.rounds * 5))
        if options.only in (None, "created"):
            print_rows(measure_created_rounds(checkouts, place / "created", options.runs // 2, options.rounds))
        if options.only in ("tunnels", "created", "command"):
            return
        files = write_runs(place, options.runs * options.rounds, load_profiles(None))
        if options.only in (None, "up"):
            print_rows(measure_rounds(checkouts, place / "ahead", files, options.runs))
        if options.only in (None, "stored"):
            stored = measure_rounds(checkouts, place / "stored", files, options.runs, has_url=True)
            print_rows(add_prefix("stored", stored))
        if options.only in (None, "late"):
            filling = write_runs(place, FILLING_RUNS, load_profiles(None), calls=FILLING, first=FILLING_FIRST)
            late = measure_rounds(checkouts, place / "late", files, options.runs, filling=filling)
            print_rows(add_prefix("late", late))
            stored = measure_rounds(
                checkouts, place / "late-stored", files, options.runs, has_url=True, filling=filling
            )
            print_rows(add_prefix("stored_late", stored))
            print_rows(measure_late_tunnel_rounds(checkouts, place / "late-tunnel", options.runs, options.rounds))


if __name__ == "__main__":
    main()
