"""Measure what recording and replaying effects costs: `python -m bench.effects [--calls 200000]`.

Each kind of effect is called in a loop in a new interpreter: without the hook, with the hook recording, and with the
hook replaying what was recorded. The three run one after another, and the least of three rounds counts. Prints the
nanoseconds of CPU of a call.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from calls.events import EffectBatch
from calls.redaction.redactor import Redactor
from proxy.capture.control_path import effects_path
from proxy.effects.channel import EffectsChannel
from proxy.effects.launch import EffectsOptions, effects_environment
from proxy.recording.recorder import Recorder
from proxy.wire.access import Access
from replay.effects import EffectsReplay
from replay.replays import Replays

ROUNDS: Final = 3

KINDS: Final = {
    "time.time": "time.time()",
    "datetime.now": "datetime.datetime.now()",
    "random.random": "random.random()",
    "uuid.uuid4": "uuid.uuid4()",
    "os.environ": "os.environ.get('HOME')",
    "open, 100 bytes": "open(path).read()",
}
"""The name of each kind of effect, and the call."""

PROGRAM: Final = """
import datetime, os, random, sys, time, uuid
path, calls = "small.txt", int(sys.argv[1])
before = time.process_time_ns()
for _ in range(calls):
    CALL
sys.stderr.write(f"{(time.process_time_ns() - before) / calls:.0f}")
"""


class MemoryWorker:
    """A worker's channel whose recorder keeps batches in memory."""

    redactor = Redactor(key=b"k" * 32)

    def __init__(self, place: Path) -> None:
        self.place = place
        self.batches: list[EffectBatch] = []
        self.replay: EffectsReplay | None = None

    def record_effects(self, run: str, process: str, number: int, count: int, items: bytes) -> None:
        """Keep a batch."""
        self.batches.append(EffectBatch(run, "", 0, process, number, count, items))

    def record_gap(self, run: str, reason: str) -> None:
        """Fail: this benchmark must lose nothing."""
        raise AssertionError(f"{run}: {reason}")

    async def effects_of(self, _run: str) -> EffectsReplay | None:
        """Return the effects to replay."""
        return self.replay

    @asynccontextmanager
    async def serving(self) -> Any:
        """Serve the channel."""
        recorder, replays = cast("Recorder", self), cast("Replays", self)
        async with EffectsChannel(Access(), recorder, replays).serve(effects_path(self.place / "w.sock")):
            yield


async def measure(worker: MemoryWorker, call: str, calls: int, *, with_hook: bool) -> int:
    """Return the nanoseconds of CPU of one call."""
    base = {name: os.environ[name] for name in ("PATH", "HOME")}
    options = EffectsOptions(pinned={"PYTHONHASHSEED": "0"})
    environment = effects_environment(base, base, str(worker.place / "w.sock"), "bench", None, options)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM.replace("CALL", call), str(calls)),
        cwd=worker.place,
        env=environment if with_hook else base,
        stderr=asyncio.subprocess.PIPE,
    )
    _, output = await process.communicate()
    return int(output)


async def compare(name: str, call: str, calls: int) -> str:
    """Return the row of one kind."""
    with tempfile.TemporaryDirectory() as place:
        await asyncio.to_thread((Path(place) / "small.txt").write_text, "x" * 100)
        plain, recorded, replayed = [], [], []
        for _ in range(ROUNDS):
            worker = MemoryWorker(Path(place))
            plain.append(await measure(worker, call, calls, with_hook=False))
            async with worker.serving():
                recorded.append(await measure(worker, call, calls, with_hook=True))
                worker.replay = EffectsReplay(batches=worker.batches)
                replayed.append(await measure(worker, call, calls, with_hook=True))
    return f"| {name} | {min(plain):,} | {min(recorded):,} | {min(replayed):,} |"


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200_000)
    calls = parser.parse_args().calls
    print("| ns per call | plain | recorded | replayed |\n|---|---|---|---|")
    for name, call in KINDS.items():
        print(await compare(name, call, calls // (20 if name.startswith("open") else 1)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
