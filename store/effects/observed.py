"""Effects as they are shown: each with its time and place, and a short text of what the program got."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from calls.effects.items import ABOUT_PROCESS, FIRST, Item
from calls.events import EffectBatch

WALL_CLOCKS: Final = ("time.time", "datetime.now")
"""Kinds whose results are times of day. Those of other clocks count from some moment."""

SHOWN: Final = 200
"""Characters of a result that are shown."""

NAMES: Final = 5
"""Results that are shown of an item, and names of each kind."""

_NAMING: Final = ("path", "name", "command", "prompt", "size", "k")
"""Arguments that say of what something was asked for."""

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEffect:
    """One effect, or several equal ones in a row: one item of a batch."""

    process: str
    task: str
    kind: str
    at: str
    """The file and line that asked."""

    args: Mapping[str, Any]
    happened_at: int
    count: int
    results: Sequence[Any]
    """What the program got, as JSON; of a clock, its nanoseconds as text, first and last; of a file, its content's digest and size."""

    text: str
    """The results, shortened."""

    error: Mapping[str, Any] | None
    is_redacted: bool
    by: str

    @property
    def name(self) -> str:
        """What was asked for: a path, the name of a variable, a command; empty where the kind says it all."""
        value = next((self.args[name] for name in _NAMING if name in self.args), "")
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(slots=True)
class EffectReader:
    """Reads the batches of one process, in order."""

    began: int = 0
    contents: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Digest, size and beginning of each content by its number."""

    def read(self, batch: EffectBatch) -> Iterator[ObservedEffect]:
        """Yield the effects of the next batch. Items that say something about the process are none."""
        for item in _decode(batch.items):
            kind = item["kind"]
            if kind == "process.start" and FIRST in item:
                self.began = int(item[FIRST])
            elif kind == "content":
                self.contents[item["content"]] = _content_facts(item)
            if kind not in ABOUT_PROCESS:
                yield self._read_item(batch, item)

    def _read_item(self, batch: EffectBatch, item: Item) -> ObservedEffect:
        results = self._results(item)
        error = item.get("error")
        return ObservedEffect(
            process=batch.process,
            task=item.get("task", ""),
            kind=item["kind"],
            at=item.get("at", ""),
            args=item.get("args", {}),
            happened_at=self.began + item.get("happened", 0) if self.began else batch.observed_at,
            count=_count(item),
            results=results,
            text=f"{error.get('type')}: {_plain_text(error.get('args'))}"[:SHOWN] if error else _text(item, results),
            error=error,
            is_redacted=bool(item.get("redactions")),
            by=item.get("by", ""),
        )

    def _results(self, item: Item) -> list[Any]:
        if FIRST in item:
            first = int(item[FIRST])
            return [item[FIRST], *([str(first + sum(item["ns"]))] if item.get("ns") else [])]
        results = list(item.get("results", ()))
        if item["kind"] == "open":
            return [self.contents.get(one, {}) if isinstance(one, int) else one for one in results]
        return results


_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


def _content_facts(item: Item) -> Mapping[str, Any]:
    data = (item.get("results") or [""])[0]
    text = data if isinstance(data, str) else ""
    return {"digest": item.get("digest", ""), "size": item.get("size", 0), "text": text[:SHOWN]}


def _count(item: Item) -> int:
    if FIRST in item:
        return 1 + len(item.get("ns", ()))
    return sum(item["counts"]) if item.get("counts") else max(len(item.get("results", ())), 1)


def _text(item: Item, results: Sequence[Any]) -> str:
    if FIRST in item:
        return " … ".join(clock_text(item["kind"], int(one)) for one in results)
    if not results:
        return ""
    if item["kind"] == "open" and isinstance(results[0], Mapping):
        facts = results[0]
        return f"{facts.get('size', 0):,} bytes, {str(facts.get('digest', ''))[:17]}: {facts.get('text', '')}"[:SHOWN]
    few = ", ".join(_plain_text(one) for one in results[:NAMES])
    return (few + (", …" if len(results) > NAMES else ""))[:SHOWN]


def clock_text(kind: str, ns: int) -> str:
    """Return a reading of a clock as text: a time of day in UTC, or seconds."""
    seconds, rest = divmod(ns, _SECOND)
    if kind in WALL_CLOCKS and 0 <= seconds < 253_402_300_800:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"
    return f"{seconds}.{rest:09} s"


def _plain_text(value: Any) -> str:
    """Return a value as a person would write it."""
    match value:
        case {"$float": str(text)} | {"$int": str(text)}:
            return text
        case {"$bytes": str(text)}:
            return base64.b64decode(text).hex()
        case str():
            return value
        case None:
            return "nothing"
        case _:
            return msgspec.json.encode(value).decode()
