"""Read the exchanges that a trial leaves in its spool, also while it runs."""

from pathlib import Path

from calls.events import Gap, ReplayReported, decode_records
from calls.exchange_builder import ExchangeBuilder
from calls.model import Exchange
from store.spool import Reader


class SpoolFollower:
    """Reads one spool from its beginning."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader: Reader | None = None
        self._builders: dict[str, ExchangeBuilder] = {}

    def read_more(self) -> None:
        """Read what was written since the last call. Raises OSError."""
        if self._reader is None:
            if not self._directory.is_dir():
                return
            self._reader = Reader(self._directory)
        while found := self._reader.read():
            for _, payload in found:
                self._feed(payload)

    def _feed(self, payload: bytes | memoryview) -> None:
        for record in decode_records(payload):
            if not isinstance(record, Gap | ReplayReported):
                self._builders.setdefault(record.id, ExchangeBuilder()).feed(record)

    def ended_exchanges(self) -> dict[str, Exchange]:
        """Return the exchanges that have ended, by id."""
        return {name: builder.build() for name, builder in self._builders.items() if builder.is_closed}

    def exchanges(self) -> tuple[Exchange, ...]:
        """Return all exchanges as far as they have come, in step order."""
        found = (builder.build() for builder in self._builders.values() if builder.has_begun)
        return tuple(sorted(found, key=lambda each: (each.started_at, each.id)))

    def close(self) -> None:
        """Close the spool."""
        if self._reader is not None:
            self._reader.close()
