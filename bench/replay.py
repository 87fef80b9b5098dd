"""Measure what it costs to begin a replay of a long recording: `python -m bench.replay --start CALLS`.

Prints one line of JSON, whose figures `bench.replay_start` describes. The cost of each replayed call is measured by
`bench.engines`, with the recording that `record_calls` makes.
"""

import argparse
from pathlib import Path

from bench.bench_setup import BenchSetup
from bench.replay_start import measure_start
from bench.wire import MeasurementFailed
from bench.workloads import CALLS


def record_calls(setup: BenchSetup) -> Path:
    """Record a thousand calls, and return their bundle."""
    worker = setup.start_worker("recorded")
    _, api = setup.start_store_server("recorded")
    setup.first = 0
    setup.run_load(worker, run="recorded", connections=4, calls=CALLS, seconds=120.0, warm=0.0)
    api.get("/runs/recorded/calls", settled="true", limit=1)
    found = api.get("/runs/recorded")["exchanges"]
    if found != CALLS:
        raise MeasurementFailed(f"of {CALLS} calls {found} were recorded")
    bundle = setup.directory / "recorded.playhead"
    with bundle.open("wb") as file:
        file.writelines(api.stream_bytes("/runs/recorded/bundle"))
    return bundle


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--start", type=int, metavar="CALLS", required=True, help="how many the recording has")
    measure_start(parser.parse_args().start)


if __name__ == "__main__":
    main()
