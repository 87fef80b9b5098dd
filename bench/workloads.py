"""The workloads of `bench.engines`, and the engines that take part in each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from bench.bench_setup import NEW_HOSTS

LANES: Final = ("lane-relay", "lane-record")
MITMPROXIES: Final = ("mitmproxy-bare", "mitmproxy-record")
OTHERS: Final = ("mitmdump", "hoverfly", "timefork")
REPLAYING: Final = ("lane-replay", "mitmproxy-replay")
STORED: Final = "lane-record-stored"
ORDER: Final = ("direct", "nginx", *LANES, STORED, "lane-replay", *MITMPROXIES, "mitmproxy-replay", *OTHERS)
"""The order of the engines in tables."""

CALLS: Final = 1000
"""The number of distinct calls that are replayed."""

STORED_CALLS: Final = 4000
"""The number of calls that are recorded to rows. The store server is slower than the worker, and the measurement waits
for all of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of the comparison."""

    unit: str
    """The unit of which CPU is given: call, event, connection or stream."""

    description: str
    engines: tuple[str, ...]
    """The engines that take part; `direct` is the upstream without a proxy, for its delays."""

    asks: Mapping[str, Any] = MappingProxyType({})
    """Options of `bench.load_client`."""

    at_most: int | None = None
    """The most rounds, for a workload that takes long and varies little."""

    @property
    def events_a_second(self) -> float | None:
        """Return the number of events that are sent a second over all streams, if events are the unit."""
        return self.asks["connections"] * self.asks["rate"] if self.unit == "event" else None


def _streams(count: int, engines: tuple[str, ...], warm: float, at_most: int | None = None) -> Workload:
    asks = {"workload": "events", "connections": count, "rate": 50, "warm": warm}
    description = f"{count} streams of 50 events of 200 bytes a second"
    return Workload(unit="event", description=description, engines=engines, asks=asks, at_most=at_most)


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        "small": Workload(
            unit="call",
            description="1 KB asked, 2 KB answered, as fast as 32 kept-alive connections go",
            engines=("direct", "nginx", *LANES, STORED, *MITMPROXIES, *OTHERS),
        ),
        "small-paced": Workload(
            unit="call",
            description="the same, 100 calls a second: what an engine adds to the delay when it has time",
            engines=("direct", "nginx", *LANES, *MITMPROXIES),
            asks={"rate": 100.0},
        ),
        "large": Workload(
            unit="call",
            description="20 KB asked, 4 KB answered, as fast as 32 kept-alive connections go",
            engines=("direct", "nginx", *LANES, *MITMPROXIES, *OTHERS),
            asks={"size": 20 << 10, "answer": 4 << 10},
            at_most=3,
        ),
        "sse50": _streams(50, ("direct", "nginx", *LANES, *MITMPROXIES, *OTHERS), 0.7),
        "sse200": _streams(200, ("direct", "nginx", *LANES), 1.0),
        "sse400": _streams(400, ("direct", "nginx", *LANES), 2.0, 3),
        "small-h2": Workload(
            unit="call",
            description="small over HTTP/2, a stream at a time on each of 32 connections; nginx speaks HTTP/1.1 upstream",
            engines=("direct", "nginx", *LANES, *MITMPROXIES),
            asks={"h2": True},
            at_most=3,
        ),
        "sse50-h2": Workload(
            unit="event",
            description="sse50 over HTTP/2, a stream on each of 50 connections; nginx speaks HTTP/1.1 upstream",
            engines=("direct", "nginx", *LANES, *MITMPROXIES),
            asks={"workload": "events", "connections": 50, "rate": 50, "warm": 0.7, "h2": True},
            at_most=3,
        ),
        "connect-known": Workload(
            unit="connection",
            description="opened for one small call, one after the other, to a host that was asked before",
            engines=("direct", "nginx", *LANES, *MITMPROXIES),
            asks={"workload": "connects", "calls": NEW_HOSTS},
        ),
        "connect-new": Workload(
            unit="connection",
            description="the same to hosts that nobody asked before, each with an upstream of its own",
            engines=("direct", *LANES, *MITMPROXIES),
            asks={"workload": "connects", "calls": NEW_HOSTS, "new": True},
        ),
        "replay": Workload(
            unit="call",
            description=f"{CALLS:,} distinct small calls answered from a recording, at once, again and again",
            engines=("direct", *REPLAYING),
            asks={"distinct": CALLS, "first": 0},
        ),
        "replay-changed": Workload(
            unit="call",
            description="the same asked with another value in a field that the profile calls transient",
            engines=REPLAYING,
            asks={"distinct": CALLS, "first": 0, "changed": True},
        ),
        "memory": Workload(
            unit="stream",
            description="memory that 200 open streams of one event a second add to a fresh worker",
            engines=("nginx", *LANES, *MITMPROXIES),
            asks={"workload": "events", "connections": 200, "rate": 1, "warm": 1.0, "seconds": 2.0},
            at_most=2,
        ),
    }
)

QUICK: Final = ("small", "sse50", "replay")
