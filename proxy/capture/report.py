"""What became of the connections that were neither recorded nor answered: counted for each destination."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

type Transport = Literal["tcp", "udp", "dns"]
type Outcome = Literal["passed", "refused"]

MAX_ENTRIES: Final = 256
"""Destinations that are told apart; what comes after them is counted together."""

OTHERS: Final = "other destinations"


@dataclass(slots=True)
class Entry:
    """Connections of one kind to one destination."""

    sent: int = 0
    received: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """What is counted together."""

    destination: str
    address: str
    protocol: Transport
    outcome: Outcome
    reason: str

    def described(self) -> str:
        """The destination, for a sentence."""
        return f"{self.protocol.upper()} to {self.destination}"


class ConnectionReport:
    """The connections of one capture."""

    def __init__(self) -> None:
        self._entries: dict[Kind, Entry] = {}

    def entry(self, kind: Kind) -> Entry:
        """Where one more connection of this kind is counted; its bytes may be added as they pass."""
        if kind not in self._entries and len(self._entries) >= MAX_ENTRIES:
            kind = Kind(OTHERS, OTHERS, kind.protocol, kind.outcome, kind.reason)
        entry = self._entries.setdefault(kind, Entry())
        entry.count += 1
        return entry

    def is_new(self, kind: Kind) -> bool:
        """Whether no connection of this kind was counted yet, and there is room for it."""
        return kind not in self._entries and len(self._entries) < MAX_ENTRIES

    def as_json(self) -> list[Mapping[str, Any]]:
        """For the control socket."""
        return [
            {
                "destination": kind.destination,
                "address": kind.address,
                "protocol": kind.protocol,
                "outcome": kind.outcome,
                "reason": kind.reason,
                "sent": entry.sent,
                "received": entry.received,
                "count": entry.count,
            }
            for kind, entry in self._entries.items()
        ]

    def passed(self) -> list[tuple[Kind, Entry]]:
        """What passed without being recorded."""
        return [(kind, entry) for kind, entry in self._entries.items() if kind.outcome == "passed"]
