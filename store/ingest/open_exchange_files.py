"""Park open exchanges that last long or grow large in files, so that the spool's segments can be deleted.

An open exchange keeps its spool's segments from being deleted, and its bytes in memory. When it is parked, its events are
moved to a file of its own in the spool's directory, and the spool's cursor can pass them. Each append states up to which
position of the spool the file is complete, so that events that are read again after a crash are recognised.

What is lost if the process dies: nothing. A file is synced before the spool's cursor passes its events, and deleted after the
cursor has passed the exchange's end.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calls.events import SEVERAL_BELOW, ExchangeClosed, Record, RequestStarted
from store.spool import Position


class _Append(msgspec.Struct, array_like=True, frozen=True):
    """Some events of one exchange. After them, the file has all its events up to `position`."""

    position: Position
    events: list[Record]


_HEAD = 4
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Append)

# MessagePack: an array of two, and an array of one.
_TWO, _ONE = b"\x92", b"\x91"


@dataclass(slots=True)
class OpenExchangeFiles:
    """The parked exchanges of one spool."""

    directory: Path
    _complete_to: dict[str, Position] = field(default_factory=dict)
    _unsynced: set[str] = field(default_factory=set)
    complete_ids: list[str] = field(default_factory=list)
    """Recovered exchanges that have ended."""

    damaged_ids: list[str] = field(default_factory=list)
    """Exchanges whose files cannot be read."""

    @classmethod
    def recover(cls, directory: Path) -> "OpenExchangeFiles":
        """Find the files that an earlier process left. Raises OSError if the directory cannot be listed."""
        parked = cls(directory)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            return parked
        for name in names:
            if name.endswith(".parked"):
                parked._recover_file(directory / name)
        return parked

    def _recover_file(self, path: Path) -> None:
        """Find the last position of a file and cut off an incomplete append, whose events the spool still has."""
        last: _Append | None = None
        whole = 0
        try:
            for last, whole in _read_appends(path):  # noqa: B007 - only the last is used, and only one is in memory at a time
                pass
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Kept for manual inspection. Events that the spool still has are read again.
            path.rename(path.with_suffix(".damaged"))
            self.damaged_ids.append(path.stem)
            return
        if last is None:
            path.unlink()
            return
        os.truncate(path, whole)
        self._complete_to[path.stem] = last.position
        self._unsynced.add(path.stem)  # the earlier process may have ended because a sync failed
        if isinstance(last.events[-1], ExchangeClosed):
            self.complete_ids.append(path.stem)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._complete_to))

    def has_event(self, exchange: str, position: Position) -> bool:
        """Whether the file of an exchange has the event that ends at this position."""
        last = self._complete_to.get(exchange)
        # Compared without the count of records, which files of an older Playhead do not have.
        return last is not None and (position.segment, position.offset) <= (last.segment, last.offset)

    def complete_position(self, exchange: str) -> Position:
        """The position of the spool up to which the file has every event of the exchange."""
        return self._complete_to[exchange]

    def append(self, exchange: str, events: Iterable[Record], position: Position) -> None:
        """Append the exchange's next events, which are all up to `position`. Raises OSError."""
        self._append_encoded(exchange, _encoder.encode(_Append(position, list(events))), b"", position)

    def append_payload(self, exchange: str, payload: memoryview | bytes, position: Position) -> None:
        """Append a payload of the spool without decoding it; all its events are of this exchange. Raises OSError."""
        has_several = payload[1] < SEVERAL_BELOW
        self._append_encoded(
            exchange, _TWO + _encoder.encode(position) + (b"" if has_several else _ONE), payload, position
        )

    def events(self, exchange: str) -> Iterator[Record]:
        """The events of an exchange, in order."""
        return read_events(self.path(exchange))

    def size(self, exchange: str) -> int:
        """Bytes of the file of an exchange."""
        return self.path(exchange).stat().st_size

    def set_aside(self, exchange: str, directory: Path) -> None:
        """Move the file of an exchange that cannot be stored to `directory`. Raises OSError."""
        directory.mkdir(exist_ok=True, mode=0o700)
        self.path(exchange).rename(directory / f"{exchange}.parked")
        self._complete_to.pop(exchange, None)
        self._unsynced.discard(exchange)

    def sync(self) -> None:
        """Sync the files that were appended to. Raises OSError."""
        for exchange in self._unsynced:
            try:
                _sync(self.path(exchange))
            except OSError:
                # The kernel reports a failed write-back once, so a second sync of the same file would succeed wrongly.
                _rewrite(self.path(exchange))
        if self._unsynced:
            _sync(self.directory)
        self._unsynced.clear()

    def delete(self, exchange: str) -> None:
        """Delete the file of an exchange that is stored and whose end the cursor has passed."""
        self.path(exchange).unlink(missing_ok=True)
        self._complete_to.pop(exchange, None)
        self._unsynced.discard(exchange)

    def path(self, exchange: str) -> Path:
        """The file of an exchange."""
        return self.directory / f"{exchange}.parked"

    def _append_encoded(self, exchange: str, head: bytes, payload: memoryview | bytes, position: Position) -> None:
        size = len(head) + len(payload)
        self.directory.mkdir(exist_ok=True, mode=0o700)
        _append_pieces(self.path(exchange), (size.to_bytes(_HEAD, "big"), head, payload))
        self._complete_to[exchange] = position
        self._unsynced.add(exchange)


def read_events(path: Path) -> Iterator[Record]:
    """Read the events in the file of an exchange, with one append in memory at a time. Raises OSError."""
    for append, _ in _read_appends(path):
        yield from append.events


def read_request_event(path: Path) -> RequestStarted | None:
    """Read the first event in the file of an exchange; None if it is not the start of its request. Raises OSError."""
    first = next(read_events(path), None)
    return first if isinstance(first, RequestStarted) else None


def _append_pieces(path: Path, pieces: Sequence[memoryview | bytes]) -> None:
    """Write all pieces or none: an incomplete append would make those after it unreadable."""
    size = sum(map(len, pieces))
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            written = os.writev(file.fileno(), pieces)
        except OSError:
            written = 0
            raise
        finally:
            if written < size:
                os.ftruncate(file.fileno(), before)
        if written < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _read_appends(path: Path) -> Iterator[tuple[_Append, int]]:
    """Read each complete append and its end, one at a time, because the file may be far larger than memory."""
    with path.open("rb") as file:
        end = 0
        while len(head := file.read(_HEAD)) == _HEAD:
            size = int.from_bytes(head, "big")
            data = file.read(size)
            if len(data) < size:
                return
            end += _HEAD + size
            append = _decoder.decode(data)
            del data
            yield append, end


def _rewrite(path: Path) -> None:
    """Replace a file by a synced copy of it. Raises OSError."""
    copy = path.with_suffix(".new")
    shutil.copyfile(path, copy)
    _sync(copy)
    copy.rename(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
