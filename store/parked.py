"""Open exchanges laid aside on disk: those that last so long, or grow so large, that they would hold up the rest.

An open exchange keeps its spool's segments from being deleted, and its bytes in memory. Parked, its events lie in a
file of their own in the spool's directory; so the spool can be forgotten up to any point. Each append says up to which
position of the spool the file is complete, so that events which are read again after a crash are known.

What is lost if we die now: nothing. A file is synced before the spool's cursor passes its events, and deleted after the
cursor passed the exchange's end.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from calls.events import Closed, Record
from store.spool import Position


class _Append(msgspec.Struct, array_like=True, frozen=True):
    """Some events of one exchange; the file now has all of them up to `position`."""

    position: Position
    events: list[Record]


_HEAD = 4
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Append)


@dataclass(slots=True)
class Parked:
    """The parked exchanges of one spool."""

    directory: Path
    _complete_to: dict[str, Position] = field(default_factory=dict)
    _unsynced: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    """Of those an earlier process left, the ones that are whole."""

    damaged: list[str] = field(default_factory=list)
    """And the ones that cannot be read."""

    @classmethod
    def found(cls, directory: Path) -> "Parked":
        """What an earlier process left behind."""
        parked = cls(directory)
        for path in sorted(directory.glob("*.parked")) if directory.is_dir() else ():
            parked._recover(path)
        return parked

    def _recover(self, path: Path) -> None:
        """Learn how far a file goes, and cut a torn end off: it was not synced, so the spool still has what it lacks."""
        appends: list[tuple[_Append, int]] = []
        try:
            appends += _appends(path)
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Left beside for whoever may still read it; what the spool has of it comes again.
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.stem)
            return
        if not appends:
            path.unlink()
            return
        last, whole = appends[-1]
        os.truncate(path, whole)
        self._complete_to[path.stem] = last.position
        if isinstance(last.events[-1], Closed):
            self.ended.append(path.stem)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._complete_to))

    def has(self, exchange: str, position: Position) -> bool:
        """Whether the file of the exchange has the event that ends there."""
        last = self._complete_to.get(exchange)
        return last is not None and position <= last

    def complete_to(self, exchange: str) -> Position:
        """Up to where in the spool the file has every event of the exchange."""
        return self._complete_to[exchange]

    def append(self, exchange: str, events: Iterable[Record], position: Position) -> None:
        """Lay more events aside; there are no others up to `position`. Raises OSError."""
        encoded = _encoder.encode(_Append(position, list(events)))
        self.directory.mkdir(exist_ok=True, mode=0o700)
        _append(self._path(exchange), len(encoded).to_bytes(_HEAD, "big") + encoded)
        self._complete_to[exchange] = position
        self._unsynced.add(exchange)

    def events(self, exchange: str) -> Iterator[Record]:
        """The events of an exchange, in their order."""
        for append, _ in _appends(self._path(exchange)):
            yield from append.events

    def sync(self) -> None:
        """Have on disk what was appended. Raises OSError."""
        for exchange in self._unsynced:
            _sync(self._path(exchange))
        if self._unsynced:
            _sync(self.directory)
        self._unsynced.clear()

    def drop(self, exchange: str) -> None:
        """Forget an exchange that is stored, and whose end the cursor has passed."""
        self._path(exchange).unlink(missing_ok=True)
        self._complete_to.pop(exchange, None)
        self._unsynced.discard(exchange)

    def _path(self, exchange: str) -> Path:
        return self.directory / f"{exchange}.parked"


def _append(path: Path, data: bytes) -> None:
    """Write all of it or nothing: on a full disk half an append would hide those that follow it."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            written = file.write(data)
        except OSError:
            written = 0
            raise
        finally:
            if written < len(data):
                os.ftruncate(file.fileno(), before)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _appends(path: Path) -> Iterator[tuple[_Append, int]]:
    """Each whole append and where it ends."""
    data = path.read_bytes()
    end = 0
    while (start := end + _HEAD) <= len(data):
        end = start + int.from_bytes(data[start - _HEAD : start], "big")
        if end > len(data):
            return
        yield _decoder.decode(memoryview(data)[start:end]), end


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
