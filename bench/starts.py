"""Measure the start of the store server, a proxy worker and commands: `python -m bench.starts [--against CHECKOUT]`.

Prints for each the CPU of the process and its children until they end or are ready, and the time that a user waits. The
CPU of a command includes that of the processes which stay ready for the next command. With `--against`, both checkouts
are measured in turns in one run, and the last column is the ratio of CPU, round by round. For comparison: `true`,
Python and mitmdump.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import peers
from bench.figures import Spread, cpu, cpu_with_children
from bench.wire import MeasurementFailed
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import load_settings
from store.active_profiles import load_profiles
from store.embedded.postgres import ensure_server

HERE: Final = Path(__file__).parent.parent

type Cost = tuple[float, float]
"""Seconds of CPU, and seconds that passed."""

WORKER_CONFIG: Final = """
import sys, msgspec
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import load_settings
print(msgspec.json.encode(CommandProcesses(load_settings({"data": sys.argv[1]}, None)).worker_config()).decode())
"""

ALONE: Final = {"PLAYHEAD_STORE_IDLE": "0", "PLAYHEAD_DATA": "alone-data"}
"""Settings with which a command keeps no process ready and finds none."""

READY_MODULES: Final = (b"proxy.worker.template", b"proxy.processes.store_server")
"""The modules of the processes that stay ready between commands."""

COMMAND: Final = (
    "import importlib.util, sys; sys.argv[0] = 'playhead';"
    " from importlib import import_module;"
    " import_module('proxy.main' if importlib.util.find_spec('proxy.main') else 'proxy.cli').main()"
)
"""Runs the console script, whose module differs between checkouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One checkout, with data directories of its own."""

    name: str
    checkout: Path
    directory: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment in which its packages are found first."""
        own = {"PYTHONPATH": str(self.checkout), "PLAYHEAD_DATA": str(self.directory / "data"), "CI": ""}
        return {**os.environ, **own}

    def python(self, *arguments: str) -> list[str]:
        """Return a Python command that imports nothing from the working directory."""
        return [sys.executable, "-P", *arguments]

    def playhead(self, *arguments: str) -> list[str]:
        """Return a Playhead command."""
        return self.python("-c", COMMAND, *arguments)

    def ready_processes(self) -> dict[int, float]:
        """Return the CPU, by process id, of this side's processes that stay ready between commands, with their
        descendants.
        """
        ours, found = f"PLAYHEAD_DATA={self.environment['PLAYHEAD_DATA']}\0".encode(), {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command = (place / "cmdline").read_bytes()
                if any(one in command for one in READY_MODULES) and ours in (place / "environ").read_bytes():
                    # Workers have the command line of the process that has forked them, and are counted with it.
                    parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                    if READY_MODULES[0] not in Path(f"/proc/{parent}/cmdline").read_bytes():
                        found[int(place.name)] = cpu_with_children(int(place.name))
            except OSError:
                pass  # it has ended, or is another user's
        return found

    def run(self, command: list[str], **environment: str) -> Cost:
        """Run a command to its end."""
        ready = self.ready_processes()
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ran = subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        wall, spent = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        beside = sum(now - ready.get(pid, 0.0) for pid, now in self.ready_processes().items())
        # A replay of a run without calls has no verdict, and ends with 3.
        if ran.returncode not in (0, 3):
            raise MeasurementFailed(f"{command[3:]} ended with {ran.returncode}: {ran.stderr}")
        return spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime + beside, wall

    def begin(self, *arguments: str, **environment: str) -> Cost:
        """Run a Playhead command to its end; the time is that until the user's command begins."""
        file = self.directory / "began"
        began = time.time_ns()
        used, _ = self.run(self.playhead(*arguments, "--", "sh", "-c", f"date +%s%N > {file}"), **environment)
        return used, (int(file.read_text()) - began) / 1e9

    def start_up(self, *, is_new: bool) -> Cost:
        """Start an `up`, wait until it is ready, and stop it. The CPU is that of all its processes until they have
        ended.
        """
        data = self.directory / "up"
        if is_new:
            shutil.rmtree(data, ignore_errors=True)
        used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = self.playhead("up", "--data", str(data), "--proxy-port", "0", "--api-port", "0")
        with (
            (self.directory / "log").open("ab") as log,
            subprocess.Popen(
                command, env=self.environment, cwd=self.directory, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            assert process.stdout is not None
            line = process.stdout.readline()
            while line and not line.startswith(b"ready"):
                line = process.stdout.readline()
            wall = time.perf_counter() - began
            process.send_signal(signal.SIGTERM)
        if not line:
            raise MeasurementFailed(f"up did not start; see {self.directory / 'log'}")
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime, wall

    def worker_config(self, data: Path) -> dict[str, Any]:
        """Return the configuration of a worker of this checkout, whose fields may differ from those of this one."""
        command = self.python("-c", WORKER_CONFIG, str(data))
        done = subprocess.run(command, env=self.environment, cwd=self.directory, capture_output=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ready(self, module: str, config: Mapping[str, Any]) -> Cost:
        """Start one of its processes and wait until it is ready."""
        began = time.perf_counter()
        with (
            (self.directory / "log").open("ab") as log,
            subprocess.Popen(
                self.python("-m", module),
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            cost = cpu(process.pid), time.perf_counter() - began
            process.communicate(b"stop\n")
        if b'"ready"' not in line:
            raise MeasurementFailed(f"{module}: {line!r}; see {self.directory / 'log'}")
        return cost


@contextmanager
def running_up(side: Side) -> Iterator[None]:
    """Start an `up` of that checkout with one recorded run, `first`."""
    command = side.playhead("up", "--proxy-port", "0", "--api-port", "0")
    with (side.directory / "log").open("ab") as log:
        up = subprocess.Popen(command, env=side.environment, cwd=side.directory, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not (side.directory / "data" / "up.json").exists():
            if up.poll() is not None or time.monotonic() > deadline:
                raise MeasurementFailed(f"up did not start; see {side.directory / 'log'}")
            time.sleep(0.05)
        yield
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(30)


def write_recording(side: Side) -> str:
    """Write a recording of five calls; return its file."""
    from bench.first_request import write_runs

    return str(write_runs(side.directory, 1, load_profiles(None))[0])


def start_mitmdump(side: Side) -> Cost:
    """Start mitmdump and wait until it answers."""
    port, began = peers.free(), time.perf_counter()
    confdir = f"confdir={side.directory / 'mitmproxy'}"
    program = peers.find_program(str(Path(sys.executable).parent / "mitmdump"))
    with peers.server([program, "-q", "--listen-port", str(port), "--set", confdir], port) as pid:
        return cpu(pid), time.perf_counter() - began


def processes(side: Side, dsn: str) -> Iterator[tuple[str, Callable[[], Cost]]]:
    """Yield the measurements without a running `up`."""
    ours = CommandProcesses(load_settings({"data": side.directory / "alone"}, None))
    store = {"data": str(ours.data.root), "database_url": dsn}
    recording = side.worker_config(ours.data.root)
    replaying = {**recording, "mode": "replay", "spooled": False, "replay_options": {"id": "r"}, "replay": []}
    yield "true", lambda: side.run(["true"])
    yield "python -c pass", lambda: side.run(side.python("-c", "pass"))
    yield "mitmdump, until it answers", lambda: start_mitmdump(side)
    yield "playhead --help", lambda: side.run(side.playhead("--help"))
    yield "store server, until it is ready", lambda: side.ready("proxy.processes.store_server", store)
    yield "proxy worker that records", lambda: side.ready("proxy.worker.process", recording)
    yield "proxy worker that replays", lambda: side.ready("proxy.worker.process", replaying)
    file, quick = write_recording(side), ("--isolation", "off", "--watch", "off", "--no-git")
    yield "record -- true, no up", lambda: side.run(side.playhead("record", "--", "true"))
    yield "record -- true, not isolated", lambda: side.run(side.playhead("record", *quick, "--", "true"))
    yield "replay FILE -- true, no up", lambda: side.run(side.playhead("replay", "--allow-unused", file, "--", "true"))
    yield "ls, no up", lambda: side.run(side.playhead("ls"))
    yield (
        "replay FILE -- true, alone",
        lambda: side.run(side.playhead("replay", "--allow-unused", file, "--", "true"), **ALONE),
    )
    yield "record, until it begins, alone", lambda: side.begin("record", **ALONE)
    yield (
        "replay FILE, until it begins, alone",
        lambda: side.begin("replay", "--allow-unused", file, **ALONE),
    )
    yield "record -- true, alone", lambda: side.run(side.playhead("record", "--", "true"), **ALONE)
    yield "up, until ready, new directory", lambda: side.start_up(is_new=True)
    yield "up, until ready, again", lambda: side.start_up(is_new=False)


def commands(side: Side) -> Iterator[tuple[str, Callable[[], Cost]]]:
    """Yield the measurements beside a running `up`."""
    yield "ls, beside up", lambda: side.run(side.playhead("ls"))
    yield "show last, beside up", lambda: side.run(side.playhead("show", "first"))
    yield "record -- true, beside up", lambda: side.run(side.playhead("record", "--", "true"))
    yield "replay RUN -- true, beside up", lambda: side.run(side.playhead("replay", "first", "--", "true"))


def measure(sides: list[Side], rounds: int, only: str) -> dict[str, dict[str, list[Cost]]]:
    """Return the costs of each round by row and side."""
    costs: dict[str, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-pg-") as place, ExitStack() as stack:
        Path(place).chmod(0o711)
        dsns = {}
        for side in sides:
            server = stack.enter_context(ensure_server(Path(place) / side.name))
            dsns[side.name] = f"{server.dsn}"
        _repeat(costs, {side.name: dict(processes(side, dsns[side.name])) for side in sides}, rounds, only)
        if any(only in name for name, _ in commands(sides[0])):
            for side in sides:
                stack.enter_context(running_up(side))
                side.run(side.playhead("record", "--run", "first", "--", "true"))
            _repeat(costs, {side.name: dict(commands(side)) for side in sides}, rounds, only)
    return costs


def _repeat(
    costs: dict[str, dict[str, list[Cost]]],
    rows: Mapping[str, Mapping[str, Callable[[], Cost]]],
    rounds: int,
    only: str,
) -> None:
    for name in next(iter(rows.values())):
        if only not in name:
            continue
        # The first round fills the caches of files and of compiled modules, and creates what is created once.
        for number in range(rounds + 1):
            for side, measured in rows.items():
                cost = measured[name]()
                if number:
                    costs.setdefault(name, {}).setdefault(side, []).append(cost)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.starts", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose modules are compiled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the name of the rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-starts-") as name:
        Path(name).chmod(0o711)
        checkouts = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
        sides = []
        for side, checkout in checkouts.items():
            directory = Path(name) / side
            directory.mkdir(mode=0o711)
            sides.append(Side(name=side, checkout=checkout, directory=directory))
        found = measure(sides, options.rounds, options.only)
    print(f"| {'ms of CPU / ms until then':32} | {' | '.join(checkouts)} | CPU over the other's |")
    print("| --- " * (len(checkouts) + 2) + "|")
    for row, costs in found.items():
        cells = [
            f"{Spread.of(each[0] * 1000 for each in costs[side]):.0f} / {Spread.of(each[1] * 1000 for each in costs[side]):.0f}"
            for side in checkouts
        ]
        if "other" in costs:
            ratios = Spread.of(mine[0] / theirs[0] for mine, theirs in zip(costs["this"], costs["other"], strict=True))
            cells.append(f"{ratios:.2f}")
        print(f"| {row:32} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
