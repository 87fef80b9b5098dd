"""Keep open exchanges on disk that last long or grow large, so that they do not hold up the rest.

An open exchange keeps its spool's segments from being deleted, and its bytes in memory. Parked, its events lie in a
file of their own in the spool's directory; so the spool can be forgotten up to any point. Each append says up to which
position of the spool the file is complete, so that events which are read again after a crash are known.

What is lost if we die now: nothing. A file is synced before the spool's cursor passes its events, and deleted after the
cursor passed the exchange's end.
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
    """Some events of one exchange; the file now has all of them up to `position`."""

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
    ended: list[str] = field(default_factory=list)
    """Of those an earlier process left, the ones that are whole."""

    damaged: list[str] = field(default_factory=list)
    """And the ones that cannot be read."""

    @classmethod
    def found(cls, directory: Path) -> "OpenExchangeFiles":
        """What an earlier process left behind. Raises OSError where that cannot be seen: `glob` would find nothing."""
        parked = cls(directory)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            return parked
        for name in names:
            if name.endswith(".parked"):
                parked._recover(directory / name)
        return parked

    def _recover(self, path: Path) -> None:
        """Learn how far a file goes, and cut a torn end off: it was not synced, so the spool still has what it lacks."""
        last: _Append | None = None
        whole = 0
        try:
            for last, whole in _appends(path):  # noqa: B007 - one is held at a time, and the last is what counts
                pass
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Left beside for whoever may still read it; what the spool has of it comes again.
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.stem)
            return
        if last is None:
            path.unlink()
            return
        os.truncate(path, whole)
        self._complete_to[path.stem] = last.position
        self._unsynced.add(path.stem)  # whoever left it may have ended because it could not be synced
        if isinstance(last.events[-1], ExchangeClosed):
            self.ended.append(path.stem)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._complete_to))

    def has(self, exchange: str, position: Position) -> bool:
        """Whether the file of the exchange has the event that ends there."""
        last = self._complete_to.get(exchange)
        # By place alone: what an older Playhead laid aside has no count.
        return last is not None and position[:2] <= last[:2]

    def complete_to(self, exchange: str) -> Position:
        """Up to where in the spool the file has every event of the exchange."""
        return self._complete_to[exchange]

    def append(self, exchange: str, events: Iterable[Record], position: Position) -> None:
        """Lay more events aside; there are no others up to `position`. Raises OSError."""
        self._append(exchange, _encoder.encode(_Append(position, list(events))), b"", position)

    def append_payload(self, exchange: str, payload: memoryview | bytes, position: Position) -> None:
        """Lay a payload of the spool aside as it is, without opening it: all its events are of this exchange. Raises OSError."""
        several = payload[1] < SEVERAL_BELOW
        self._append(exchange, _TWO + _encoder.encode(position) + (b"" if several else _ONE), payload, position)

    def events(self, exchange: str) -> Iterator[Record]:
        """The events of an exchange, in their order."""
        return events_in(self.path(exchange))

    def size(self, exchange: str) -> int:
        """How long the file of an exchange is."""
        return self.path(exchange).stat().st_size

    def set_aside(self, exchange: str, directory: Path) -> None:
        """Move the file of an exchange that cannot be stored to where people look for it. Raises OSError."""
        directory.mkdir(exist_ok=True, mode=0o700)
        self.path(exchange).rename(directory / f"{exchange}.parked")
        self._complete_to.pop(exchange, None)
        self._unsynced.discard(exchange)

    def sync(self) -> None:
        """Have on disk what was appended. Raises OSError."""
        for exchange in self._unsynced:
            try:
                _sync(self.path(exchange))
            except OSError:
                # What could not be synced once is forgotten by the system, and a second sync would say that all is well.
                _rewrite(self.path(exchange))
        if self._unsynced:
            _sync(self.directory)
        self._unsynced.clear()

    def drop(self, exchange: str) -> None:
        """Forget an exchange that is stored, and whose end the cursor has passed."""
        self.path(exchange).unlink(missing_ok=True)
        self._complete_to.pop(exchange, None)
        self._unsynced.discard(exchange)

    def path(self, exchange: str) -> Path:
        """The file of an exchange."""
        return self.directory / f"{exchange}.parked"

    def _append(self, exchange: str, head: bytes, payload: memoryview | bytes, position: Position) -> None:
        size = len(head) + len(payload)
        self.directory.mkdir(exist_ok=True, mode=0o700)
        _append(self.path(exchange), (size.to_bytes(_HEAD, "big"), head, payload))
        self._complete_to[exchange] = position
        self._unsynced.add(exchange)


def events_in(path: Path) -> Iterator[Record]:
    """The events in the file of one exchange, in their order; one append is in memory at a time. Raises OSError."""
    for append, _ in _appends(path):
        yield from append.events


def beginning_of(path: Path) -> RequestStarted | None:
    """The first event in the file of an exchange, if the file begins with its request. Raises OSError."""
    first = next(events_in(path), None)
    return first if isinstance(first, RequestStarted) else None


def _append(path: Path, pieces: Sequence[memoryview | bytes]) -> None:
    """Write all of it or nothing: on a full disk half an append would hide those that follow it."""
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


def _appends(path: Path) -> Iterator[tuple[_Append, int]]:
    """Each whole append and where it ends. The file may be far larger than memory, so they are read one by one."""
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
    """Have the same content on disk in a new file. Raises OSError."""
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
