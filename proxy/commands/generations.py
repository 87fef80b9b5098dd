"""Record what a replay misses as a new generation of its run, which takes effect only if it is complete.

Live calls are recorded as a separate run, the candidate. If the command succeeded and no call failed or was cut, they and the
recorded answers that were used become the next generation in one step: a bundle file is replaced; a run in the store gets a label
that names the run to replay instead. Otherwise the run stays as it was.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Self

from calls.derive import deriver
from calls.keys.divergence import shorten_pointer
from calls.redaction.redactor import create_redactor
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, path_segment, resolve_run_name
from proxy.recording_file import FileReplacement, lock_for_replacement
from proxy.run_names import recording_path
from proxy.terminal.text import count_text, printable
from replay.forks.generation import generation_bundle, kept_exchanges, recording_flaw
from store.active_profiles import load_profiles
from store.bundle import rows_bundle as packed
from store.bundle.bundle import Bundle, bundle_lines, load_bundle
from store.foreign.contents import NotReadable
from store.foreign.read import open_source
from store.generations.auto_session_file import name_digest
from store.generations.build import FLAWED
from store.generations.names import GENERATION_LABEL, GENERATION_OF, parse_generation
from store.generations.names import next_generation as next_name
from store.lock import Lock, LockTaken


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The outcome, and a sentence for the user."""

    text: str
    is_whole: bool


def next_generation_name(run: str, newest: str) -> str:
    """Return the name of the next generation. Raise Failure if it would be too long."""
    if (name := next_name(run, newest)) is None:
        raise Failure(
            f"the name of run {run} is too long for another generation; export it, and import it with a shorter --run ID"
        )
    return name


@dataclass(frozen=True, slots=True)
class Generations:
    """Records the next generation of one recording."""

    processes: CommandProcesses
    api: Api
    candidate: str
    recording: str
    """A file, or a run by its id: `last` would name the candidate once that exists."""

    claimed: FileReplacement | None
    """The lock to replace the file with; None for a run."""

    @classmethod
    async def begin(cls, processes: CommandProcesses, replay: str, recording: str, stack: AsyncExitStack) -> Self:
        """Prepare to record during a replay. Raise Failure if its recording cannot have another generation.

        Until `stack` is closed no other command of this kind takes the same recording.
        """
        if not _is_replaceable(file := recording_path(recording)):
            raise Failure(
                f"{recording} is not a bundle, so it cannot be replaced; import it first: playhead import {recording}"
            )
        try:
            claimed = stack.enter_context(lock_for_replacement(file)) if file else None
        except OSError as error:
            raise Failure(f"{recording} could not be replaced: {error.strerror} ({error.filename})") from error
        api = await processes.connect_store_server(may_create=True)
        processes.require_same_profiles(own_worker=True)
        if file is None:
            recording = resolve_run_name(api, recording)
            stack.enter_context(_hold_run(processes, recording))
        return cls(processes, api, replay, recording, claimed)

    async def settle(self, bundle: Path, report: Mapping[str, Any] | None, code: int) -> GenerationResult | None:
        """Put the new generation into effect, or say why not. Return None if nothing was recorded."""
        if report is None or not report["live"]:
            return None
        # The store server may have belonged to another command that has ended.
        return await replace(self, api=await self.processes.connect_store_server(may_create=True))._settle_recorded(
            bundle, report, code
        )

    async def _settle_recorded(self, bundle: Path, report: Mapping[str, Any], code: int) -> GenerationResult:
        new = await self._fetch_recorded()
        profiles = load_profiles(self.processes.profiles_toml())
        redactor = create_redactor(self.processes.settings.redaction, self.processes.data.redaction_key())
        derive = deriver(profiles, redactor.redact_text)
        old = await asyncio.to_thread(packed.load_recording, bundle)
        if why := _flaw_reason(report, code, new) or recording_flaw(new, derive):
            labels = {GENERATION_OF: _generation_names(old)[0], FLAWED: shorten_pointer(printable(why))}
            self.api.patch(f"/runs/{path_segment(self.candidate)}", {"labels": labels})
            return GenerationResult(
                f"nothing was replaced: {why}; what went out is kept as run {self.candidate}", is_whole=False
            )
        exchanges = [
            *kept_exchanges(old, set(report.get("answered_by", ())), unused=report["allow_unused"]),
            *new.exchanges,
        ]
        name = None if self.claimed else next_generation_name(*_generation_names(old))
        new_generation = await asyncio.to_thread(generation_bundle, old.run, profiles.digest, exchanges, derive)
        if self.claimed:
            self.claimed.replace(bundle_lines(new_generation))
        if name:
            self._promote(new_generation, name)
        self._delete_candidate()
        return GenerationResult(_result_text(report, self.recording, name), is_whole=True)

    async def _fetch_recorded(self) -> Bundle:
        """Fetch the candidate once it is completely stored."""
        # The worker has ended, but the store server may still be reading its spool.
        await asyncio.to_thread(self.api.get, f"/runs/{path_segment(self.candidate)}/calls", settled="true", limit=1)
        rows_file = self.processes.data.replays / f"{self.candidate}.live.jsonl"
        try:
            with rows_file.open("wb") as file:
                file.writelines(self.api.stream_bytes(f"/runs/{path_segment(self.candidate)}/bundle", proof="false"))
            return await asyncio.to_thread(load_bundle, rows_file)
        finally:
            rows_file.unlink(missing_ok=True)

    def _promote(self, bundle: Bundle, name: str) -> None:
        """Store the generation, then set the label that puts it into effect."""
        run = name.rpartition(":")[0]
        self.api.post("/import", params={"as": name}, content=b"".join(bundle_lines(bundle)))
        self.api.patch(f"/runs/{path_segment(name)}", {"labels": {GENERATION_OF: run}})
        self.api.patch(f"/runs/{path_segment(run)}", {"labels": {GENERATION_LABEL: name}})

    def _delete_candidate(self) -> None:
        """Delete the candidate, whose calls are now in the generation."""
        try:
            self.api.delete(f"/runs/{path_segment(self.candidate)}")
        except NotFound:
            return


@contextmanager
def _hold_run(processes: CommandProcesses, run: str) -> Iterator[None]:
    """Lock a run against other commands that would record its next generation. Raise Failure if one holds it."""
    lock = Lock(processes.data.replays / f"{name_digest(run)}.lock")
    try:
        with lock.hold():
            yield
    except LockTaken as error:
        raise Failure(
            f"another command is recording the next generation of run {run}: wait until it has ended, or replay without --on-miss record"
        ) from error


def _is_replaceable(file: Path | None) -> bool:
    """Whether a recording is a bundle, or a run of the store. Raise Failure if the file cannot be read."""
    try:
        return file is None or open_source(file).form == "bundle"
    except (NotReadable, OSError) as error:
        raise Failure(f"{file}: {error}") from error


def _flaw_reason(report: Mapping[str, Any], code: int, new: Bundle) -> str | None:
    """Return why the new generation is not complete, or None if it is."""
    if code:
        return f"the command ended with {code}"
    if report["missed"] or report["interrupted"]:
        return "the replay did not come to a good end"
    if len(new.entries) != report["live"]:
        return f"of {report['live']} calls that went out {len(new.entries)} were recorded"
    return None


def _result_text(report: Mapping[str, Any], recording: str, name: str | None) -> str:
    unused_count = report["unused"] if not report["allow_unused"] else 0
    note = f", without {count_text(unused_count, 'call')} that the command did not make" if unused_count else ""
    holds = f"{count_text(report['live'], 'new call')} beside {report['served']} that answered{note}"
    where = f"{recording} now holds" if name is None else f"generation {name} of the run holds"
    return f"{where} {holds}\n          prove it: playhead replay {quote(recording)} -- CMD"


def _generation_names(old: Bundle) -> tuple[str, str]:
    """Return the name of a run and that of its newest generation."""
    newest = str(old.run["id"])
    return parse_generation(newest)[0], newest
