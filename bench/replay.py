"""What it costs to begin a replay of so many calls: `python -m bench.replay --start CALLS`.

What a replayed call costs is among what `bench.engines` measures, from the recording that is made here.
"""

import argparse
from pathlib import Path

from bench.stage import Stage
from bench.starting import start
from bench.wire import MeasurementFailed
from bench.workloads import CALLS


def record_calls(stage: Stage) -> Path:
    """A bundle with the first thousand calls."""
    worker = stage.ours("recorded")
    _, api = stage.store_server("recorded")
    stage.first = 0
    stage.ask(worker, run="recorded", connections=4, calls=CALLS, seconds=120.0, warm=0.0)
    api.get("/runs/recorded/calls", settled="true", limit=1)
    found = api.get("/runs/recorded")["exchanges"]
    if found != CALLS:
        raise MeasurementFailed(f"of {CALLS} calls {found} were recorded")
    bundle = stage.directory / "recorded.playhead"
    with bundle.open("wb") as file:
        file.writelines(api.stream_bytes("/runs/recorded/bundle"))
    return bundle


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--start", type=int, metavar="CALLS", required=True, help="how many the recording has")
    start(parser.parse_args().start)


if __name__ == "__main__":
    main()
