"""What a replayed call costs: `python -m bench.replay [--quick] [--json] [--rounds N] [--seconds S] [--start CALLS]`.

A thousand distinct calls are recorded, kept, exported as a bundle and answered from it, each as often as it is asked, at
pace instant. Beside it the bare engine that passes the same calls on, and nothing at all.
"""

import argparse
from pathlib import Path

from bench.figures import Row, finish, machine, print_json
from bench.recording import compared, measure
from bench.stage import Door, Stage, staged
from bench.starting import start
from bench.wire import Broken

CALLS = 1000
REPLAY = "mitmproxy-replay"
WORKLOADS = ("json", "json-paced")


def recorded(stage: Stage) -> Path:
    """A bundle with the first thousand calls."""
    door = stage.ours("recorded")
    _, api = stage.keeper("recorded")
    stage.first = 0
    stage.ask(door, run="recorded", connections=4, calls=CALLS, seconds=120.0, warm=0.0)
    api.get("/runs/recorded/calls", settled="true", limit=1)
    found = api.get("/runs/recorded")["exchanges"]
    if found != CALLS:
        raise Broken(f"of {CALLS} calls {found} were recorded")
    bundle = stage.directory / "recorded.playhead"
    with bundle.open("wb") as file:
        file.writelines(api.raw("/runs/recorded/bundle"))
    return bundle


def replaying(stage: Stage) -> Door:
    """A door that answers from it."""
    options = {"after_last": "repeat-last"}
    return stage.ours(REPLAY, mode="replay", replay=[str(recorded(stage))], replay_options=options)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, within a minute")
    parser.add_argument("--json", action="store_true", help="one row a line")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each window")
    parser.add_argument(
        "--start", type=int, metavar="CALLS", help="instead: what it costs to begin a replay of so many"
    )
    told = parser.parse_args()
    if told.start:
        start(told.start)
        return
    rounds, seconds = (2, 1.0) if told.quick else (told.rounds, told.seconds)
    rows: list[Row] = []
    began = machine()
    with staged() as stage:
        doors = [stage.direct(), stage.bare(), replaying(stage)]
        for number in range(rounds):
            for workload in WORKLOADS:
                found = measure(stage, doors, workload, number, seconds, distinct=CALLS, first=0)
                rows += found
                for row in found if told.json else ():
                    print_json(row)
    finish(rows, began, compared(rows), as_json=told.json)


if __name__ == "__main__":
    main()
