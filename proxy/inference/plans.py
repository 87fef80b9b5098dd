"""The requests that a probe sends: three published designs, and one of Playhead's own that finds more.

- thinking-machines: one prompt many times, greedily (He et al., "Defeating Nondeterminism in LLM Inference", 2025).
- vllm: a needle at a random place in batches of random long prompts (vLLM, tests/v1/determinism/test_batch_invariance.py).
- sglang: one prompt at growing batch sizes; the same among others; prompts that share a prefix (sglang.test.test_deterministic).
- needle: our own. A needle of some 1,200 tokens among long neighbours, kept out of the prefix cache if the server supports
  that. On a CPU no other design found a variation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

type Preset = Literal["needle", "thinking-machines", "vllm", "sglang"]

PRESETS: Final[tuple[Preset, ...]] = ("needle", "thinking-machines", "vllm", "sglang")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """One request."""

    prompt: str
    subject: str | None = None
    """Requests with the same subject must get the same answer. None: a neighbour, whose answer is ignored."""
    tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)


type Wave = tuple[ProbeRequest, ...]
"""The requests that are sent at once. Their number is the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSize:
    """The size of a probe, where it differs from the preset's. None: as published."""

    requests: int | None = None
    concurrency: int | None = None
    tokens: int | None = None
    prompt: str | None = None


def waves(preset: Preset, size: ProbeSize, draw: Random) -> Iterator[Wave]:
    """Yield the waves of a preset, to be sent one after the other."""
    yield from {"needle": _needle, "thinking-machines": _thinking_machines, "vllm": _vllm, "sglang": _sglang}[preset](
        size, draw
    )


GREEDY: Final[Mapping[str, Any]] = {"temperature": 0}


def _thinking_machines(size: ProbeSize, _: Random) -> Iterator[Wave]:
    request = ProbeRequest(
        prompt=size.prompt or "Tell me about Richard Feynman",
        subject="prompt",
        tokens=size.tokens or 1000,
        sampling=GREEDY,
    )
    remaining, limit = size.requests or 1000, size.concurrency or 1000
    while remaining > 0:
        yield (request,) * min(remaining, limit)
        remaining -= limit


def _vllm(size: ProbeSize, draw: Random) -> Iterator[Wave]:
    """Send the needle alone, then 5 times in batches of 64 to 128."""
    tokens = size.tokens or 128
    sampling = {"temperature": 0, "top_p": 0.95, "seed": 20240919}
    needle = ProbeRequest(prompt=size.prompt or "There once was a ", subject="needle", tokens=tokens, sampling=sampling)
    yield (needle,)
    for _ in range(size.requests or 5):
        batch = [
            ProbeRequest(prompt=_random_words(draw, draw.randint(1024, 2048)), tokens=tokens, sampling=sampling)
            for _ in range(min(draw.randint(64, 128), size.concurrency or 128) - 1)
        ]
        batch.insert(draw.randint(0, len(batch)), needle)
        yield tuple(batch)


def _sglang(size: ProbeSize, draw: Random) -> Iterator[Wave]:
    """Yield the waves of `single`, `mixed` and `prefix` for each load."""
    tokens = size.tokens or 100
    sampling = {"temperature": 0, "seed": 42}
    long = _random_words(draw, 900)
    single = ProbeRequest(
        prompt=size.prompt or "Tell me about Richard Feynman: ", subject="single", tokens=tokens, sampling=sampling
    )
    short = ProbeRequest(prompt="Give me a short story", subject="mixed", tokens=tokens, sampling=sampling)
    prefixes = [
        ProbeRequest(prompt=long[:length], subject=f"prefix-{length}", tokens=tokens, sampling=sampling)
        for length in (1, 511, 2048, 4097)
    ]
    trials = [max(1, at * (size.concurrency or 50) // 50) for at in range(1, 51)]
    for load in trials[-size.requests :] if size.requests else trials:
        yield (single,) * load
        company = (ProbeRequest(prompt=long, tokens=tokens, sampling=sampling),) * (
            draw.randint(1, 10) if load > 10 else 0
        )
        yield (single, *((short,) * max(0, load - len(company) - 1)), *company)
        yield tuple(draw.choices(prefixes, k=load))


def _needle(size: ProbeSize, draw: Random) -> Iterator[Wave]:
    """Send the needles alone, then at growing loads: half of each wave needles, greedy and seeded, half neighbours."""
    tokens, limit = size.tokens or 16, size.concurrency or 16
    text = size.prompt or _random_words(draw, 450)
    samplings = {"greedy": GREEDY, "seeded": {"temperature": 0.8, "seed": 42}}
    requests = [
        ProbeRequest(prompt=text, subject=name, tokens=tokens, sampling=found) for name, found in samplings.items()
    ]
    remaining = size.requests or 40
    yield (requests[0],)
    yield (requests[1],)
    load = min(2, limit)
    while remaining > 0:
        needles = min(remaining, max(1, load // 2))
        lengths = [draw.randint(150, 500) for _ in range(load - needles)]
        company = [
            ProbeRequest(prompt=_random_words(draw, length), tokens=tokens, sampling=GREEDY) for length in lengths
        ]
        batch = [requests[(remaining + at) % 2] for at in range(needles)] + company
        draw.shuffle(batch)
        yield tuple(batch)
        remaining -= needles
        load = min(load * 2, limit)


_WORDS: Final = [
    "time",
    "river",
    "stone",
    "letter",
    "window",
    "garden",
    "engine",
    "morning",
    "silver",
    "answer",
    "winter",
    "market",
    "harbor",
    "signal",
    "copper",
    "mountain",
    "story",
    "paper",
    "island",
    "thunder",
    "question",
    "velvet",
    "bridge",
    "lantern",
    "orchard",
    "captain",
    "meadow",
    "puzzle",
    "railway",
    "cinder",
]


def _random_words(draw: Random, count: int) -> str:
    return " ".join(draw.choices(_WORDS, k=count))
