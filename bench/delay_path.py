"""Compute the steps of one call's path through a recording worker from the notes of `bench.delay_trace`, and draw them
as an SVG.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from bench.wire import MeasurementFailed


class Step(NamedTuple):
    """A step of the path. It ends when the worker writes `note`, or at a time that the client knows (`call …`)."""

    note: str
    kind: str
    """The kind of work, a key of `KINDS`."""

    description: str


KINDS: Final = {
    "wire": "sockets, and the wake-up of a process",
    "tls": "TLS and sockets",
    "http": "HTTP",
    "record": "recording",
    "disk": "write(2) to the spool",
}

STEPS: Final = (
    Step("request read", "wire", "the client sends; the worker wakes up"),
    Step("request decrypted", "tls", "decrypt"),
    Step("head read", "http", "recognise the head"),
    Step("request begun", "record", "redact the head, begin the exchange"),
    Step("request redacted", "record", "search the body for secrets, encode"),
    Step("write begins", "http", "go on, now or in the next turn"),
    Step("write ends", "disk", "write the request to the spool"),
    # One step: the upstream, on another core, has often read the request before the worker notes that it has sent it.
    Step("call read", "tls", "take a connection, encrypt, send; it is read"),
    Step("call answered", "", ""),
    Step("answer read", "wire", "the upstream sends; the worker wakes up"),
    Step("answer decrypted", "tls", "decrypt"),
    Step("answer parsed", "http", "parse the head"),
    Step("answer redacted", "record", "search head and body for secrets, encode"),
    Step("write begins", "http", "go on, now or in the next turn"),
    Step("write ends", "disk", "write the answer to the spool"),
    Step("answer sent", "tls", "encrypt, send"),
    Step("call end", "wire", "the client wakes up and decrypts"),
)

type Note = tuple[int, str]


def call_path(calls: Sequence[Mapping[str, int]], notes: Sequence[Note]) -> dict[str, Any]:
    """Return the median of each step in µs over the calls that overlapped with no other, and over those that overlapped
    with a sync of the spool.
    """
    paths: list[list[int]] = []
    whole: dict[bool, list[float]] = {True: [], False: []}
    position = 0
    for number, call in enumerate(calls):
        while position < len(notes) and notes[position][0] < call["sent"]:
            position += 1
        if any(
            _overlap(call, other) for other in (*calls[max(number - 2, 0) : number], *calls[number + 1 : number + 3])
        ):
            continue
        own: list[Note] = []
        at = position
        while at < len(notes) and notes[at][0] <= call["end"]:
            own.append(notes[at])
            at += 1
        if (path := _times(call, own)) is not None:
            paths.append(path)
            is_met = any(step == "sync begins" for _, step in own)
            whole[is_met].append((call["read"] - call["sent"] + call["end"] - call["answered"]) / 1000)
    if not paths:
        raise MeasurementFailed("no traced call had the machine to itself: trace longer")
    steps = [
        {
            "step": step.description,
            "kind": step.kind,
            "us": statistics.median(path[n + 1] - path[n] for path in paths) / 1000,
        }
        for n, step in enumerate(STEPS)
        if step.kind
    ]
    return {
        "steps": steps,
        "calls": len(paths),
        "alone_us": statistics.median(whole[False]) if whole[False] else None,
        "beside_a_sync_us": statistics.median(whole[True]) if whole[True] else None,
        "beside_a_sync": len(whole[True]),
    }


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return one["sent"] <= other["end"] and other["sent"] <= one["end"]


def _times(call: Mapping[str, int], own: Sequence[Note]) -> list[int] | None:
    """Return when each step of a call ended, since the call began; None if a step is missing."""
    times = [call["sent"]]
    at = 0
    for step in STEPS:
        if step.note.startswith("call "):
            times.append(call[step.note.removeprefix("call ")])
            continue
        while at < len(own) and own[at][1] != step.note:
            at += 1
        if at == len(own):
            return None
        times.append(own[at][0])
        at += 1
    # Another core's process may read what was sent before the sender notes that it has sent it.
    return [max(times[: n + 1]) for n in range(len(times))]


WIDTH, LEFT, RIGHT, LINE, TOP = 860, 330, 60, 22, 74

# CSS in the picture itself: where an <img> shows it, the page's own styles do not reach in.
STYLE: Final = """
text{fill:#1f2328;font:12px system-ui,sans-serif}.back{fill:#fff}.grid{stroke:#d8dee4}.soft{fill:#59636e}
.head{font-weight:600;font-size:13px}.wire{fill:#8b949e}.tls{fill:#8c5a12}.http{fill:#2f6fb7}.record{fill:#0b6e4f}.disk{fill:#a4133c}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}.soft{fill:#9198a1}
.wire{fill:#8b949e}.tls{fill:#e3a750}.http{fill:#6cb0f5}.record{fill:#4ac29a}.disk{fill:#ff7a9a}}
"""
TITLE: Final = "The path of one call through a recording worker, µs"


def plot_path(path: Mapping[str, Any]) -> str:
    """Draw the steps below each other, each beginning where the one before it ends."""
    steps = path["steps"]
    total = sum(step["us"] for step in steps)
    scale = (WIDTH - LEFT - RIGHT) / max(total, 1)
    height = TOP + LINE * len(steps) + 34
    drawn = [
        _text(16, 24, TITLE, "head"),
        _text(16, 42, _subtitle(path, total), "soft"),
        *_key(),
        *_grid(total, scale, height),
    ]
    done = 0.0
    for number, step in enumerate(steps):
        y = TOP + LINE * number
        x, width = LEFT + done * scale, max(step["us"] * scale, 1)
        drawn.append(_text(LEFT - 10, y + 11, step["step"], "", "end"))
        drawn.append(f'<rect class="{step["kind"]}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="14" rx="2"/>')
        drawn.append(_text(x + width + 6, y + 11, f"{step['us']:.0f}", "soft"))
        done += step["us"]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}">'
        f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>{"".join(drawn)}</svg>\n'
    )


def _subtitle(path: Mapping[str, Any], total: float) -> str:
    return f"1 KB asked, 2 KB answered over HTTPS, 100 calls a second; medians of {path['calls']} calls; together {total:.0f} µs"


def _key() -> Iterator[str]:
    x = 16.0
    for kind, description in KINDS.items():
        yield f'<rect class="{kind}" x="{x:.0f}" y="52" width="10" height="10" rx="2"/>{_text(x + 15, 61, description, "soft")}'
        x += 32 + 6.3 * len(description)


def _grid(total: float, scale: float, height: float) -> Iterator[str]:
    distance = next(step for step in (50, 100, 200, 500, 1000, 2000, 5000, 10**6) if total / step < 9)
    for at in range(0, int(total) + 1, distance):
        x = LEFT + at * scale
        yield f'<path class="grid" d="M{x:.1f} {TOP - 4}V{height - 28}"/>{_text(x, height - 12, f"{at:,}", "soft", "middle")}'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
