"""Measure how long a long recording takes until it answers and until it explains a miss; run by `bench.replay`.

`store_wall_ms` and `bundle_wall_ms` are the times from `playhead replay` to the first line of the command, beyond the
same for a recording of one call (the interpreter, the imports, the worker). The other figures are CPU: `store_ms` and
`bundle_ms` of all processes of that command; `load_ms` and `index_ms` of reading a bundle; `rows_store_server_ms`,
`rows_load_ms` and `rows_index_ms` of reading the same run from the store; `hit_ms`, `first_miss_ms` and `next_miss_ms`
of answering.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from bench.bench_setup import open_bench_setup
from bench.figures import cpu
from bench.wire import MeasurementFailed
from calls.codec.json import dumps
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import Body, Chunk, Exchange, Json, Request, Response
from replay.recording import Recording, build_recording, pause_gc
from replay.replay_options import ReplayOptions
from replay.session import Session
from store.active_profiles import load_profiles
from store.bundle import rows_bundle as packed
from store.bundle.bundle import Bundle, Entry, bundle_lines, load_bundle

SECOND = 1_000_000_000
CHANGED = 5
"""Requests that were not recorded, each slightly different from a recorded one."""

HEADERS = 12
"""Headers that an SDK adds to each request."""

SINGLE = "single"
OTHERS = 1_000_000
ROUNDS = 3


def measure_start(calls: int) -> None:
    """Print the cost of beginning a replay of so many calls."""
    profiles = load_profiles(None)
    with tempfile.TemporaryDirectory() as directory:
        bundle = Path(directory) / "start.jsonl"
        with bundle.open("wb") as file:
            file.writelines(bundle_lines(_run(calls, profiles)))
        figures = {"calls": calls, "bundle_mb": round(bundle.stat().st_size / 1e6, 1)}
        with _note_time(figures, "load_ms"), pause_gc():
            run = load_bundle(bundle)
        with _note_time(figures, "index_ms"):
            ready = build_recording(run, profiles)
        single = Path(directory) / "single.jsonl"
        with single.open("wb") as file:
            file.writelines(bundle_lines(_run(1, profiles, SINGLE)))
        _measure_store(bundle, single, figures, profiles)
    figures["rss_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    asyncio.run(_answer_changed(ready, figures))
    print(json.dumps(figures))


def _measure_store(bundle: Path, single: Path, figures: dict[str, float], profiles: Profiles) -> None:
    """Measure the same from the store: the store server, the whole command, and what the worker computes."""
    with open_bench_setup() as setup:
        process, api = setup.start_store_server("start")
        data = setup.command_processes("start").data
        data.announce("store", {"api": api.url})
        for file in (bundle, single):
            api.post("/import", content=file.read_bytes())
        used = cpu(process.pid)
        content = b"".join(api.stream_bytes("/runs/start/rows"))
        figures["rows_store_server_ms"] = round((cpu(process.pid) - used) * 1000, 2)
        for name, long, short in (("store", "start", SINGLE), ("bundle", str(bundle), str(single))):
            rounds = [(_measure_command(data.root, long), _measure_command(data.root, short)) for _ in range(ROUNDS)]
            for place, what in enumerate(("wall_ms", "ms")):
                least = [min(one[which][place] for one in rounds) for which in (0, 1)]
                figures[f"{name}_{what}"] = round((least[0] - least[1]) * 1000, 2)
    with _note_time(figures, "rows_load_ms"), pause_gc():
        run = packed.read_rows(content)
    with _note_time(figures, "rows_index_ms"):
        build_recording(run, profiles)


def _measure_command(data: Path, name: str) -> tuple[float, float]:
    """Return the seconds until a replay of this recording begins its command, and the CPU of all processes."""
    command = [sys.executable, "-c", "from proxy.cli import main; main()", "replay", "--data", str(data), name, "--"]
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time_ns()
    ran = subprocess.run([*command, "date", "+%s%N"], capture_output=True, check=False)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not ran.stdout:
        raise MeasurementFailed(ran.stderr.decode())
    return (int(ran.stdout) - began) / 1e9, spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime


async def _answer_changed(ready: Recording, figures: dict[str, float]) -> None:
    session = Session("start", ready, ReplayOptions(), lambda _: None)
    middle = ready.index.entries[len(ready.index.entries) // 2].exchange.request
    with _note_time(figures, "hit_ms"):
        await session.answer(middle)
    for number in range(CHANGED):
        body = json.loads(middle.body.data)
        body["messages"][0]["content"] += f" in other words {number}"
        changed = replace(middle, body=replace(middle.body, data=dumps(body)))
        with _note_time(figures, "first_miss_ms" if number == 0 else "next_miss_ms"):
            await session.answer(changed)


@contextmanager
def _note_time(figures: dict[str, float], name: str) -> Iterator[None]:
    began = time.process_time()
    yield
    figures[name] = round((time.process_time() - began) * 1000, 2)


def _run(calls: int, profiles: Profiles, name: str = "start") -> Bundle:
    first = 1 if name == "start" else OTHERS
    exchanges = (replace(_exchange(number), run=name) for number in range(first, first + calls))
    entries = tuple(Entry(exchange=each, call={"key": make_key(each.request, profiles).key}) for each in exchanges)
    return Bundle(run={"id": name}, profiles=profiles.digest, entries=entries)


def _exchange(number: int) -> Exchange:
    """A chat completion with five tools, 1.7 KB in all."""
    tool: Json = {"name": "look", "description": "looks " * 20, "parameters": {"type": "object"}}
    prompt: Json = {"role": "user", "content": f"question {number}, {number * 7919 % 10007}: " + "and so on " * 20}
    request_body = dumps({"model": "m", "messages": [prompt], "tools": [{"type": "function", "function": tool}] * 5})
    message: Json = {"role": "assistant", "content": f"answer {number} " + "and so on " * 20}
    answer_body = dumps(
        {"id": f"c{number}", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    )
    media = (("Content-Type", "application/json"),)
    asks = (*media, *((f"X-Stainless-{n}", f"as an SDK tells it, {n}") for n in range(HEADERS)))
    url = "https://api.openai.com/v1/chat/completions"
    return Exchange(
        id=f"0199aaaa-0000-7000-8000-{number:012d}",
        run="start",
        request=Request(method="POST", url=url, headers=asks, body=_body(request_body)),
        response=Response(status=200, reason="OK", headers=media, body=_body(answer_body)),
        outcome="completed",
        started_at=number * SECOND,
        first_byte_at=1,
        ended_at=2,
    )


def _body(data: bytes) -> Body:
    return Body(data=data, chunks=(Chunk(1, 0, len(data)),), size=len(data))
