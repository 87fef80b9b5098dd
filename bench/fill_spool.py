"""Fill a spool with the real recorder and without a worker, so that a store server can drain it at full speed."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.sample_bodies import Bodies, agent, talk
from calls.redaction.redactor import Redactor
from proxy.recording.recorder import Recorder
from store.spool import Spool

REQUEST_HEADERS = (
    ("Host", "api.openai.com"),
    ("Accept", "application/json"),
    ("Content-Type", "application/json"),
    ("User-Agent", "OpenAI/Python 3.54.0"),
    ("Authorization", "Bearer sk-bench-0f9d2c4b8a7e61350f9d2c4b8a7e6135"),
    ("X-Stainless-Lang", "python"),
    ("X-Stainless-Retry-Count", "0"),
)
RESPONSE_HEADERS = (
    ("Date", "Sat, 21 Nov 2026 20:00:00 GMT"),
    ("Content-Type", "application/json"),
    ("Server", "cloudflare"),
    ("X-Request-Id", "req_4f1c2a90d7"),
    ("Openai-Processing-Ms", "412"),
)
CALLS_A_RUN = 50
TURNS = 20


type Turns = Callable[[int, int], Iterator[tuple[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One call that is recorded."""

    run: str
    url: str
    request: bytes
    response: bytes


def small(first: int, count: int) -> Iterator[Sample]:
    """Yield tool calls with 1 KB of request and 2 KB of response, all distinct, fifty in each run."""
    requests, responses = Bodies(1024, seed=1), Bodies(2048, seed=2)
    for number in range(first, first + count):
        url = "https://tools.example.com/v2/search"
        yield Sample(f"tools-{number // CALLS_A_RUN}", url, requests[number], responses[number])


def talks(first: int, count: int) -> Iterator[Sample]:
    """Yield the model calls of conversations with a person."""
    return _runs("talk", talk, first, count)


def agents(first: int, count: int) -> Iterator[Sample]:
    """Yield the model calls of agents that call tools."""
    return _runs("agent", agent, first, count)


def _runs(kind: str, turns: Turns, first: int, count: int) -> Iterator[Sample]:
    for run in range(first // TURNS, (first + count) // TURNS):
        for request, response in turns(run, TURNS):
            yield Sample(f"{kind}-{run}", "https://api.openai.com/v1/chat/completions", request, response)


async def fill(directory: Path, samples: Iterable[Sample]) -> tuple[int, int]:
    """Record all samples; return their number and the bytes of their bodies."""
    count = size = 0
    with Spool(directory, max_bytes=8 << 30, durability="process") as spool:
        recorder = Recorder(spool, Redactor(key=b"bench"), now=time.time_ns)
        for sample in samples:
            # Without a pause in which it is written, all of it would be in memory.
            if not await _record(recorder, sample):
                raise RuntimeError("the spool could not keep it")
            count += 1
            size += len(sample.request) + len(sample.response)
    return count, size


async def _record(recorder: Recorder, sample: Sample) -> bool:
    recording = recorder.begin(
        run=sample.run,
        run_evidence=(("credentials", sample.run),),
        step=None,
        actor=None,
        method="POST",
        url=sample.url,
        http_version="HTTP/1.1",
        headers=REQUEST_HEADERS,
    )
    recording.record_data("request", sample.request, 20_000)
    recording.record_end("request", 30_000)
    recording.record_response_head(900_000, 200, "OK", "HTTP/1.1", RESPONSE_HEADERS)
    recording.record_data("response", sample.response, 950_000)
    recording.record_end("response", 960_000)
    recording.record_close(970_000, "completed")
    return await recording.wait_until_recorded()
