"""Write the reports of replays, and recover those of a killed worker.

A worker keeps the position of a replay in memory: who takes over from a killed one does not know which answers were given.
So a replay that a worker of `up` has begun leaves a file until the worker ends cleanly. A worker that finds one says of that
replay that it was interrupted, and answers nothing more in its name.
"""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from calls.events import ReplayNoted, encode
from replay.replays import Replays
from replay.report import interrupted as as_interrupted
from store.report_sequence import News
from store.spool import Spool, SpoolError

NOTED_EACH = 0.2
"""Seconds between two notes of a replay's report, however fast it changes."""


class ReplayReports:
    """A file for the command that waits for a replay; the spool for everybody else."""

    def __init__(self, *, file: Path | None, spool: Spool | None, place: Path, up: int) -> None:
        self._file = file
        self._spool = spool
        self._place = place
        self._up = f"{up:x}"
        self._begun: dict[str, Path] = {}
        self._lost: set[str] = set()
        self._news = News(spool.directory) if spool else None
        self._changed: set[str] = set()
        self._any = asyncio.Event()

    def inherit(self) -> None:
        """Say of what a killed worker has left that it was interrupted. Its replays cannot go on while this `up` lasts."""
        for path in self._place.glob("*.begun"):
            report = _read(path)
            if report is not None:
                self._tell(str(report["id"]), json.dumps(as_interrupted(report)).encode())
            if report is None or path.name.partition("-")[0] != self._up:
                path.unlink()
            else:
                self._lost.add(str(report["id"]))
                self._begun[str(report["id"])] = path

    def begin(self, replay: str, report: dict[str, Any]) -> bool:
        """Whether a replay may begin here. False where another worker had begun it."""
        if replay in self._lost:
            return False
        if self._file is None and replay not in self._begun:
            name = hashlib.sha256(replay.encode()).hexdigest()[:24]
            self._begun[replay] = self._place / f"{self._up}-{name}.begun"
            try:
                _write(self._begun[replay], json.dumps(report).encode())
            except OSError:
                pass  # it is written again with every change of the report
        return True

    def changed(self, replay: str) -> None:
        """A report has changed; it is written soon. Who asks for it meanwhile waits (store/report_sequence.py)."""
        if self._news:
            self._news.changed()
        self._changed.add(replay)
        self._any.set()

    async def keep(self, replays: Replays) -> None:
        """Write what has changed, a few times a second, until cancelled."""
        while True:
            await self._any.wait()
            await self.note(replays)
            await asyncio.sleep(NOTED_EACH)

    async def note(self, replays: Replays) -> None:
        """Write what has changed. Where the spool cannot take it, nobody is told, and it is tried again."""
        self._any.clear()
        changed, self._changed = self._changed, set()
        changes = self._news.changes if self._news else 0
        try:
            told = [self._write(replays.report(replay)) for replay in changed]
            if self._spool and told:
                await self._spool.reached(max(told))
        except (SpoolError, OSError):
            self._changed |= changed & {str(report["id"]) for report in replays.reports()}
            self._any.set()
        else:
            if self._news:
                self._news.told(changes)

    def end(self, replays: Replays, *, interrupted: bool) -> None:
        """The worker ends: write what has changed, and where nothing ever has, every report. Raises SpoolError and OSError.

        `interrupted`: whoever started the worker was killed, and its replays with it.
        """
        for report in replays.reports():
            if interrupted:
                self._write(as_interrupted(report))
            elif not self._changed or report["id"] in self._changed:
                self._write(report)

    def _write(self, report: dict[str, Any]) -> int:
        """Its place in the spool; 0 where there is none."""
        if self._file is None:
            # It is long, and written whole where it is needed (store/generations/auto_sessions.py).
            report.pop("answered_by", None)
        replay, data = str(report["id"]), json.dumps(report).encode()
        if self._file:
            _write(self._file, data)
        if (begun := self._begun.get(replay)) is not None:
            _write(begun, data)
        return self._tell(replay, data)

    def forget(self, replay: str) -> None:
        """It is over, whoever began it: the next one of that name is another one."""
        self._changed.discard(replay)
        self._lost.discard(replay)
        if (begun := self._begun.pop(replay, None)) is not None:
            begun.unlink(missing_ok=True)

    def close(self) -> None:
        """The worker ends cleanly: all has been told."""
        for path in self._begun.values():
            path.unlink(missing_ok=True)

    def _tell(self, replay: str, report: bytes) -> int:
        return self._spool.append(encode(ReplayNoted(replay, report))) if self._spool else 0


def _write(path: Path, report: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(report)
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        return None
    return report if isinstance(report.get("id"), str) else None
