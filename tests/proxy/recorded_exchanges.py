"""A recorder on a real spool, and what came out at the other end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from calls.events import Gap, Record, decode_records
from calls.exchange_builder import ExchangeBuilder
from calls.model import Exchange, Headers
from calls.redaction.redactor import Redactor
from proxy.recording.exchange_recording import ExchangeRecording
from proxy.recording.recorder import Recorder
from store.spool import Reader, Spool
from tests.calls.secrets import KEY
from tests.store.disks import FaultyDisk

JSON: Headers = (("Content-Type", "application/json"),)
URL = "https://api.openai.com/v1/chat/completions"


@dataclass(slots=True)
class Desk:
    """A recorder, and the spool that it writes."""

    directory: Path
    disk: FaultyDisk
    spool: Spool
    recorder: Recorder

    def begin(self, **told: Any) -> ExchangeRecording:
        """Begin an exchange, of which only what matters needs to be told."""
        given = {"run": "r", "method": "POST", "url": URL, "http_version": "HTTP/1.1", "headers": JSON}
        return self.recorder.begin(**{**given, **told})

    def records(self) -> list[Record]:
        """All that is in the spool. Close it first, or wait for it."""
        reader = Reader(self.directory)
        found: list[Record] = []
        while frames := reader.read():
            found += [record for _, payload in frames for record in decode_records(payload)]
        assert reader.take_damage() == []
        reader.close()
        return found

    def exchanges(self) -> dict[str, Exchange]:
        """The exchanges that the records fold to; every record legal at its place."""
        folds: dict[str, ExchangeBuilder] = {}
        for record in self.records():
            if not isinstance(record, Gap) and hasattr(record, "id"):
                folds.setdefault(record.id, ExchangeBuilder()).feed(record)
        assert [fold.ignored_events for fold in folds.values() if fold.ignored_events] == []
        return {name: fold.build() for name, fold in folds.items()}

    def gaps(self) -> list[Gap]:
        """What the record says is missing."""
        return [record for record in self.records() if isinstance(record, Gap)]

    def raw(self) -> bytes:
        """Every byte that lies on disk."""
        return b"".join(path.read_bytes() for path in self.directory.rglob("*") if path.is_file())


@contextmanager
def desk(directory: Path, **options: Any) -> Iterator[Desk]:
    """A desk for as long as it is used; closing the spool comes with it."""
    disk = FaultyDisk()
    spool_options = {name: options.pop(name) for name in ("max_bytes", "durability") if name in options}
    clock = count(1_700_000_000_000_000_000, 1_000_000)
    with Spool(directory, disk=disk, **spool_options) as spool:
        redactor = options.pop("redactor", None) or Redactor(key=KEY)
        recorder = Recorder(spool, redactor, now=lambda: next(clock), **options)
        yield Desk(directory, disk, spool, recorder)
