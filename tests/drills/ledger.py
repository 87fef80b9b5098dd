"""What agents saw, compared with what the record says of it afterwards.

The promises that a drill tries to break: what an agent saw end is in the record exactly once and byte for byte; nothing
is shown as complete that was not; nothing is in the record that nobody asked; the order is the order of asking.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from calls.model import Exchange, header

type End = Literal["whole", "cut", "left"]
"""The answer came to its end; it broke off (or never came); the agent itself went away."""

NAME = "x-request-id"
"""The header by which a request in the record is known to be the one in the ledger: recorders keep it as it is."""


PROMISES = ("lost", "silent", "doubled", "changed", "overstated", "invented", "unknown", "disordered")
"""What must not be, each a list of names in a `Comparison`."""


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """One request as its agent saw it end."""

    name: str
    """`AGENT.N`: the agent's nth request."""

    run: str
    expected: bytes
    """All of the body that the upstream has for it."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    end: End = "cut"
    refused: bool = False
    """Whether it was Playhead that answered, in the upstream's place."""


@dataclass(slots=True)
class Ledger:
    """Everything that agents saw, in the order in which it ended."""

    seen: list[SeenRequest] = field(default_factory=list)

    @property
    def whole(self) -> list[SeenRequest]:
        """What was answered to its end, by the upstream."""
        return [seen for seen in self.seen if seen.end == "whole" and not seen.refused]

    def compare(self, recorded: Sequence[Exchange], asked: Sequence[str] = ()) -> "Comparison":
        """Hold it against the exchanges of the record, in their order; `asked` is whose requests the upstream got."""
        found: dict[str, Exchange] = {name_of(exchange): exchange for exchange in recorded}
        known = {seen.name for seen in self.seen}
        twice = Counter(map(name_of, recorded)) + Counter(exchange.id for exchange in recorded)
        return Comparison(
            counts=Counter(seen.end for seen in self.seen),
            recorded=len(recorded),
            complete=sum(exchange.outcome == "completed" for exchange in recorded),
            lost=[seen.name for seen in self.whole if seen.name not in found],
            silent=[name for name in asked if name not in found],
            doubled=[name for name, count in twice.items() if count > 1],
            changed=[seen.name for seen in self.whole if seen.name in found and not _same(seen, found[seen.name])],
            overstated=[s.name for s in self.seen if s.name in found and _is_overstated(s, found[s.name])],
            invented=[s.name for s in self.seen if s.name in found and not s.expected.startswith(_body(found[s.name]))],
            unknown=sorted(found.keys() - known),
            disordered=list(_find_disorder(list(map(name_of, recorded)))),
            shorter=[s.name for s in self.seen if len(s.body) > len(_body(found.get(s.name))) and not s.refused],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Names of requests, by what is wrong with their record."""

    counts: Counter[str]
    recorded: int
    complete: int
    lost: list[str]
    """The agent saw it end; the record does not have it."""

    silent: list[str]
    """The upstream was asked; the record does not say so."""

    doubled: list[str]
    changed: list[str]
    """The agent saw it end; the record has other bytes, another status, or no end."""

    overstated: list[str]
    """Recorded as completed, with less than all of it."""

    invented: list[str]
    """Recorded with bytes that the upstream never had."""

    unknown: list[str]
    disordered: list[str]
    shorter: list[str]
    """The record has less of the answer than the agent got: only a killed worker may do that, to what did not end."""

    @property
    def sound(self) -> bool:
        """Whether every promise was kept."""
        return not any(getattr(self, promise) for promise in PROMISES)

    def __str__(self) -> str:
        ledger = ", ".join(f"{count} {end}" for end, count in sorted(self.counts.items()))
        lists = {name: getattr(self, name) for name in (*PROMISES, "shorter")}
        wrong = ", ".join(f"{len(names)} {name} {names[:5]}" for name, names in lists.items())
        return f"ledger: {ledger}; record: {self.recorded}, {self.complete} complete; {wrong}"


def name_of(exchange: Exchange) -> str:
    """Which request it was."""
    return header(exchange.request.headers, NAME) or exchange.id


def _body(exchange: Exchange | None) -> bytes:
    return exchange.response.body.data if exchange and exchange.response else b""


def _same(seen: SeenRequest, exchange: Exchange) -> bool:
    response = exchange.response
    ended = exchange.ended_at is not None and not exchange.is_truncated
    return ended and response is not None and (response.status, _body(exchange)) == (seen.status, seen.body)


def _is_overstated(seen: SeenRequest, exchange: Exchange) -> bool:
    return exchange.outcome == "completed" and not exchange.is_truncated and _body(exchange) != seen.expected


def _find_disorder(names: Sequence[str]) -> Iterator[str]:
    """Requests that are recorded before an earlier one of the same agent, who asks one after the other."""
    last: dict[str, int] = {}
    for name in names:
        agent, _, number = name.rpartition(".")
        if not number.isdigit():
            continue
        if int(number) < last.get(agent, -1):
            yield name
        last[agent] = int(number)
