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
"""The header that connects a request in the record with the one in the ledger. Recorders keep it unchanged."""


PROMISES = ("lost", "silent", "doubled", "changed", "overstated", "invented", "unknown", "disordered")
"""The kinds of broken promises, each a list of names in a `Comparison`."""


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """One request as its agent saw it end."""

    name: str
    """`AGENT.N`: the nth request of the agent."""

    run: str
    expected: bytes
    """The whole body that the upstream sends for it."""

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    end: End = "cut"
    refused: bool = False
    """Whether Playhead answered in place of the upstream."""


@dataclass(slots=True)
class Ledger:
    """All requests of the agents, in the order in which they ended."""

    seen: list[SeenRequest] = field(default_factory=list)

    @property
    def whole(self) -> list[SeenRequest]:
        """Return the requests that the upstream answered completely."""
        return [seen for seen in self.seen if seen.end == "whole" and not seen.refused]

    def compare(self, recorded: Sequence[Exchange], asked: Sequence[str] = ()) -> "Comparison":
        """Compare the ledger with the exchanges of the record, in their order. `asked` are the names of the requests
        that the upstream received.
        """
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
    """The names of requests, by the fault of their record."""

    counts: Counter[str]
    recorded: int
    complete: int
    lost: list[str]
    """The agent saw the request end, but it is not recorded."""

    silent: list[str]
    """The upstream received the request, but it is not recorded."""

    doubled: list[str]
    changed: list[str]
    """The agent saw the request end, but the record has other bytes, another status or no end."""

    overstated: list[str]
    """The request is recorded as completed, but not all of it is recorded."""

    invented: list[str]
    """The record contains bytes that the upstream never sent."""

    unknown: list[str]
    disordered: list[str]
    shorter: list[str]
    """Less of the response is recorded than the agent received. Only a killed worker may cause this, for a response
    that did not end.
    """

    @property
    def sound(self) -> bool:
        """Whether no promise was broken."""
        return not any(getattr(self, promise) for promise in PROMISES)

    def __str__(self) -> str:
        ledger = ", ".join(f"{count} {end}" for end, count in sorted(self.counts.items()))
        lists = {name: getattr(self, name) for name in (*PROMISES, "shorter")}
        wrong = ", ".join(f"{len(names)} {name} {names[:5]}" for name, names in lists.items())
        return f"ledger: {ledger}; record: {self.recorded}, {self.complete} complete; {wrong}"


def name_of(exchange: Exchange) -> str:
    """Return the name of an exchange's request."""
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
    """Yield the requests that are recorded before an earlier one of the same agent."""
    last: dict[str, int] = {}
    for name in names:
        agent, _, number = name.rpartition(".")
        if not number.isdigit():
            continue
        if int(number) < last.get(agent, -1):
            yield name
        last[agent] = int(number)
