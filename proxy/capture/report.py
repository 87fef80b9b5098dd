"""Count the connections that passed or were refused, for each destination."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

type Transport = Literal["tcp", "udp", "dns"]
type Outcome = Literal["passed", "refused"]

MAX_ENTRIES: Final = 256
"""Destinations that are counted separately. Later ones are counted together."""

OTHERS: Final = "other destinations"


class Entry(msgspec.Struct):
    """The counts of one kind of connection to one destination."""

    sent: int = 0
    received: int = 0
    count: int = 0

    @property
    def has_bytes(self) -> bool:
        """Whether either side has sent anything."""
        return self.sent > 0 or self.received > 0


class ConnectionKind(msgspec.Struct, frozen=True):
    """The attributes of connections that are counted together."""

    destination: str
    address: str
    protocol: Transport
    outcome: Outcome
    reason: str

    def describe(self) -> str:
        """Describe the connection for a message."""
        return f"{self.protocol.upper()} to {self.destination}"


class ConnectionReport:
    """The connections of one capture."""

    def __init__(self) -> None:
        self._entries: dict[ConnectionKind, Entry] = {}

    def add_connection(self, kind: ConnectionKind) -> Entry:
        """Count a connection of this kind. Its bytes are added to the returned entry as they pass."""
        if kind not in self._entries and len(self._entries) >= MAX_ENTRIES:
            kind = ConnectionKind(OTHERS, OTHERS, kind.protocol, kind.outcome, kind.reason)
        entry = self._entries.setdefault(kind, Entry())
        entry.count += 1
        return entry

    def is_new(self, kind: ConnectionKind) -> bool:
        """Whether no connection of this kind was counted yet, and it would be counted separately."""
        return kind not in self._entries and len(self._entries) < MAX_ENTRIES

    def as_json(self) -> list[Mapping[str, Any]]:
        """Return the report as JSON."""
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

    def passed_entries(self) -> list[tuple[ConnectionKind, Entry]]:
        """Return the entries of connections on which bytes passed without being recorded."""
        return [(kind, entry) for kind, entry in self._entries.items() if kind.outcome == "passed" and entry.has_bytes]

    def has_silent_entries(self) -> bool:
        """Whether connections passed on which neither side has sent anything yet."""
        return any(kind.outcome == "passed" and not entry.has_bytes for kind, entry in self._entries.items())
