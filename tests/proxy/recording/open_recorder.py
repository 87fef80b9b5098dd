"""A recorder on a real spool, and its records read back from disk."""

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
class OpenRecorder:
    """A recorder and its spool."""

    directory: Path
    disk: FaultyDisk
    spool: Spool
    recorder: Recorder

    def begin(self, **fields: Any) -> ExchangeRecording:
        """Begin an exchange with default values for all fields that are not given."""
        defaults = {"run": "r", "method": "POST", "url": URL, "http_version": "HTTP/1.1", "headers": JSON}
        return self.recorder.begin(**{**defaults, **fields})

    def records(self) -> list[Record]:
        """Return all records of the spool. Close it or wait for it first."""
        reader = Reader(self.directory)
        found: list[Record] = []
        while frames := reader.read():
            found += [record for _, payload in frames for record in decode_records(payload)]
        assert reader.take_damage() == []
        reader.close()
        return found

    def exchanges(self) -> dict[str, Exchange]:
        """Build the exchanges of the records; every record must be legal where it is."""
        builders: dict[str, ExchangeBuilder] = {}
        for record in self.records():
            if not isinstance(record, Gap) and hasattr(record, "id"):
                builders.setdefault(record.id, ExchangeBuilder()).feed(record)
        assert [builder.ignored_events for builder in builders.values() if builder.ignored_events] == []
        return {name: builder.build() for name, builder in builders.items()}

    def gaps(self) -> list[Gap]:
        """Return the recorded gaps."""
        return [record for record in self.records() if isinstance(record, Gap)]

    def raw(self) -> bytes:
        """Return all bytes of the spool on disk."""
        return b"".join(path.read_bytes() for path in self.directory.rglob("*") if path.is_file())


@contextmanager
def open_recorder(directory: Path, **options: Any) -> Iterator[OpenRecorder]:
    """Record to a spool that is closed at the end of the block."""
    disk = FaultyDisk()
    spool_options = {name: options.pop(name) for name in ("max_bytes", "durability") if name in options}
    clock = count(1_700_000_000_000_000_000, 1_000_000)
    with Spool(directory, disk=disk, **spool_options) as spool:
        redactor = options.pop("redactor", None) or Redactor(key=KEY)
        recorder = Recorder(spool, redactor, now=lambda: next(clock), **options)
        yield OpenRecorder(directory, disk, spool, recorder)
