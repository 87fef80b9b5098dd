"""Write the reports of replays, and report those of a killed worker as interrupted.

A worker keeps the position of a replay in memory, so the successor of a killed worker does not know which answers were
given. Therefore a replay that a worker of `up` begins has a file until the worker ends cleanly. A worker that finds such
a file reports that replay as interrupted, and answers nothing from it.
"""

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Any

from calls.events import ReplayReported, encode_records
from calls.project_runs import split_run_name
from replay.replays import Replays
from replay.report import interrupted_report as as_interrupted
from store.report_sequence import ReportSequence
from store.spool import Spool, SpoolError

WRITE_INTERVAL = 0.2
"""Seconds between two writes of a report, however fast it changes."""

SPARES = 32
"""Files that are kept ready for replays that begin between two writes."""

SPARE_CONTENT = b" " * 4096
"""What they have: to write over it takes a tenth of the time of writing to an empty file. JSON may be followed by spaces."""


class ReplayReports:
    """Writes reports to a file for the command that waits for a replay, and to the spool for everything else."""

    def __init__(self, *, file: Path | None, spool: Spool | None, directory: Path, up: int) -> None:
        self._file = file
        self._spool = spool
        self._directory = directory
        self._up = f"{up:x}"
        self._begun_files: dict[str, Path] = {}
        self._spare_files: list[tuple[Path, int]] = []
        """Empty files for replays that begin, with their descriptors."""

        self._interrupted: set[str] = set()
        self._sequence = ReportSequence(spool.directory) if spool else None
        self._changed: set[str] = set()
        self._has_changes = asyncio.Event()

    def report_interrupted_replays(self) -> None:
        """Report the replays of killed workers as interrupted. They cannot be continued while this `up` runs."""
        for path in self._directory.glob("*.begun"):
            report = _read_report(path)
            if report is not None:
                self._append_to_spool(as_interrupted(report))
            if report is None or path.name.partition("-")[0] != self._up:
                path.unlink()
            else:
                self._interrupted.add(str(report["id"]))
                self._begun_files[str(report["id"])] = path

    def begin(self, replay: str, report: dict[str, Any]) -> bool:
        """Begin a replay. Returns False if it was interrupted, and so cannot begin here."""
        if replay in self._interrupted:
            return False
        if self._file is None and replay not in self._begun_files:
            # The first request waits for this. If this process dies meanwhile, nothing was answered yet.
            path, file = self._spare_files.pop() if self._spare_files else (self._new_begun_path(), None)
            self._begun_files[replay] = path
            data = json.dumps(report).encode()
            try:
                if file is None:
                    path.write_bytes(data)
                else:
                    try:
                        os.pwrite(file, data, 0)
                    finally:
                        os.close(file)
            except OSError:
                pass  # it is written again with every change of the report
        return True

    def mark_changed(self, replay: str) -> None:
        """Note that a report has changed. It is written soon, and requests for it wait (store/report_sequence.py)."""
        if self._sequence:
            self._sequence.count_change()
        self._changed.add(replay)
        self._has_changes.set()

    async def keep_writing(self, replays: Replays) -> None:
        """Write changed reports a few times a second, until cancelled."""
        while True:
            if self._file is None:
                await asyncio.to_thread(self._make_spare_files)
            await self._has_changes.wait()
            await self.write_changes(replays)
            await asyncio.sleep(WRITE_INTERVAL)

    async def write_changes(self, replays: Replays) -> None:
        """Write changed reports. They stay marked as changed if the spool or the file cannot take them."""
        self._has_changes.clear()
        changed_replays, self._changed = self._changed, set()
        changes = self._sequence.changes if self._sequence else 0
        try:
            positions = [self._write_report(replays.report(replay)) for replay in changed_replays]
            if self._spool and positions:
                await self._spool.wait_until_durable(max(positions))
        except (SpoolError, OSError):
            self._changed |= changed_replays & {str(report["id"]) for report in replays.reports()}
            self._has_changes.set()
        else:
            if self._sequence:
                self._sequence.mark_written(changes)

    def write_final_reports(self, replays: Replays, *, interrupted: bool) -> None:
        """Write changed reports, or every report if none has changed. Raises SpoolError and OSError.

        `interrupted`: the process that started the worker was killed, and so its replays were interrupted.
        """
        for report in replays.reports():
            if interrupted:
                self._write_report(as_interrupted(report))
            elif not self._changed or report["id"] in self._changed:
                self._write_report(report)

    def _write_report(self, report: dict[str, Any]) -> int:
        """Write one report. Returns its position in the spool; 0 without a spool."""
        if self._file is None:
            # This field is long. It is written where it is needed (store/generations/auto_sessions.py).
            report.pop("answered_by", None)
        if self._file:
            project = split_run_name(str(report["id"]))[0]
            _write_file(self._file, _encode_report(report | {"project": project}))
        if (file := self._begun_files.get(str(report["id"]))) is not None:
            _write_file(file, json.dumps(report).encode())
        return self._append_to_spool(report)

    def forget(self, replay: str) -> None:
        """Forget a replay that is over: the next one of that name is another replay."""
        self._changed.discard(replay)
        self._interrupted.discard(replay)
        if (file := self._begun_files.pop(replay, None)) is not None:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the files of all replays, because the worker ends cleanly."""
        for spare, file in self._spare_files:
            os.close(file)
            spare.unlink(missing_ok=True)
        for path in self._begun_files.values():
            path.unlink(missing_ok=True)

    def _new_begun_path(self) -> Path:
        return self._directory / f"{self._up}-{secrets.token_hex(12)}.begun"

    def _make_spare_files(self) -> None:
        """Create files for the next replays that begin: to create one takes much longer than to write to it."""
        try:
            while len(self._spare_files) < SPARES:
                path = self._new_begun_path()
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._spare_files.append((path, file))
                os.write(file, SPARE_CONTENT)
        except OSError:
            pass  # a replay that begins creates its own, or goes on without

    def _append_to_spool(self, report: dict[str, Any]) -> int:
        record = ReplayReported(str(report["id"]), _encode_report(report))
        return self._spool.append(encode_records(record)) if self._spool else 0


def _encode_report(report: dict[str, Any]) -> bytes:
    """Encode a report for users: they know the replay by its id within its project."""
    return json.dumps(report | {"id": split_run_name(str(report["id"]))[1]}).encode()


def _write_file(path: Path, report: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(report)
    part.replace(path)


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        return None
    return report if isinstance(report.get("id"), str) else None
