"""Record what a replay is missing: a new generation of its run, which counts only when it is whole.

What goes live is recorded as a run of its own. When the command has ended well and nothing of it failed or was cut, that
and what answered from the record become the next generation, in one step: a bundle file is replaced, a run in the store
is given a label that names the run to replay in its place. Else the run stays as it was.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Self

from calls.keys.divergence import readable
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, meant, segment
from proxy.recording_file import Claim, claim
from proxy.run_names import file_of
from proxy.terminal.text import counted, printable
from replay.forks.generation import flaw, generation, kept
from store.active_profiles import shipped
from store.bundle import rows_bundle as packed
from store.bundle.bundle import Bundle, load, write
from store.foreign.contents import NotReadable
from store.foreign.read import opened
from store.generations.auto_session_file import digest
from store.generations.build import FLAWED
from store.generations.names import LABEL, OF, numbered
from store.generations.names import following as next_name
from store.ingest.derive_call import deriver
from store.lock import Lock, LockTaken


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What became of it, in a sentence for the person."""

    words: str
    whole: bool


def following(run: str, newest: str) -> str:
    """The name of the next generation. Raises Failure where there is no room for it."""
    if (name := next_name(run, newest)) is None:
        raise Failure(f"run {run} has too long a name for another generation; export it, and import it --as another")
    return name


@dataclass(frozen=True, slots=True)
class Generations:
    """The recording of what one replay lacks."""

    house: CommandProcesses
    api: Api
    candidate: str
    recording: str
    """A file, or a run by its own name: what is recorded beside its replay becomes the last."""

    claimed: Claim | None
    """The right to replace the file; none where it is a run."""

    @classmethod
    async def begun(cls, house: CommandProcesses, replay: str, recording: str, stack: AsyncExitStack) -> Self:
        """Make ready to record beside a replay. Raises Failure where its recording cannot have another generation.

        Until `stack` is closed no other command of this kind takes the same recording.
        """
        if not _replaceable(file := file_of(recording)):
            raise Failure(f"{recording} is no bundle and is not replaced; import it first: playhead import {recording}")
        try:
            claimed = stack.enter_context(claim(file)) if file else None
        except OSError as error:
            raise Failure(f"{recording} could not be replaced: {error.strerror} ({error.filename})") from error
        api = await house.api()
        house.agreed(own_worker=True)
        if file is None:
            recording = meant(api, recording)
            stack.enter_context(_only_one(house, recording))
        return cls(house, api, replay, recording, claimed)

    async def settled(self, bundle: Path, report: Mapping[str, Any] | None, code: int) -> GenerationResult | None:
        """Let what was recorded take effect, or say why not. None where nothing had to be recorded."""
        if report is None or not report["live"]:
            return None
        # The store server of another command may have ended since we began.
        return await replace(self, api=await self.house.api())._settled(bundle, report, code)

    async def _settled(self, bundle: Path, report: Mapping[str, Any], code: int) -> GenerationResult:
        new = await self._recorded()
        profiles = shipped(self.house.profiles_toml())
        settings = self.house.settings
        redactor = Redactor(
            key=self.house.data.redaction_key(),
            personal_data=settings.redact_personal_data,
            names=settings.redact_names,
        )
        derive = deriver(profiles, redactor.text)
        old = await asyncio.to_thread(packed.load, bundle)
        if why := _unfit(report, code, new) or flaw(new, derive):
            labels = {OF: _names(old)[0], FLAWED: readable(printable(why))}
            self.api.patch(f"/runs/{segment(self.candidate)}", {"labels": labels})
            return GenerationResult(
                f"nothing was replaced: {why}; what went out is kept as run {self.candidate}", whole=False
            )
        exchanges = [*kept(old, set(report.get("answered_by", ())), unused=report["allow_unused"]), *new.exchanges]
        name = None if self.claimed else following(*_names(old))
        made = await asyncio.to_thread(generation, old.run, profiles.digest, exchanges, derive)
        if self.claimed:
            self.claimed.replace(write(made))
        if name:
            self._promoted(made, name)
        self._forget()
        return GenerationResult(_told(report, self.recording, name), whole=True)

    async def _recorded(self) -> Bundle:
        """What went out, once all of it is in."""
        # Its worker has ended; the store server may still be reading what it left.
        await asyncio.to_thread(self.api.get, f"/runs/{segment(self.candidate)}/calls", settled="true", limit=1)
        place = self.house.data.replays / f"{self.candidate}.live.jsonl"
        try:
            with place.open("wb") as file:
                file.writelines(self.api.raw(f"/runs/{segment(self.candidate)}/bundle"))
            return await asyncio.to_thread(load, place)
        finally:
            place.unlink()

    def _promoted(self, made: Bundle, name: str) -> None:
        """First all of it, then the one label that makes it count."""
        run = name.rpartition(":")[0]
        self.api.post(f"/import?as={segment(name)}", content=b"".join(write(made)))
        self.api.patch(f"/runs/{segment(name)}", {"labels": {OF: run}})
        self.api.patch(f"/runs/{segment(run)}", {"labels": {LABEL: name}})

    def _forget(self) -> None:
        """What was recorded live lies in the generation now."""
        try:
            self.api.delete(f"/runs/{segment(self.candidate)}")
        except NotFound:
            return


@contextmanager
def _only_one(house: CommandProcesses, run: str) -> Iterator[None]:
    """Hold a run against other commands that would record its next generation. Raises Failure."""
    lock = Lock(house.data.replays / f"{digest(run)}.lock")
    try:
        with lock.taken():
            yield
    except LockTaken as error:
        raise Failure(
            f"another command records what run {run} lacks: wait until it has ended, or replay without --on-miss record"
        ) from error


def _replaceable(file: Path | None) -> bool:
    """Whether a recording is a bundle's file, or no file at all. Raises Failure where it cannot be read."""
    try:
        return file is None or opened(file).form == "bundle"
    except (NotReadable, OSError) as error:
        raise Failure(f"{file}: {error}") from error


def _unfit(report: Mapping[str, Any], code: int, new: Bundle) -> str | None:
    """Why the new generation is not whole; None where it is."""
    if code:
        return f"the command ended with {code}"
    if report["missed"] or report["interrupted"]:
        return "the replay did not come to a good end"
    if len(new.entries) != report["live"]:
        return f"of {report['live']} calls that went out {len(new.entries)} were recorded"
    return None


def _told(report: Mapping[str, Any], recording: str, name: str | None) -> str:
    gone = report["unused"] if not report["allow_unused"] else 0
    left = f", and lacks {counted(gone, 'call')} that nobody asked for" if gone else ""
    holds = f"{counted(report['live'], 'new call')} beside {report['served']} that answered{left}"
    where = f"{recording} now holds" if name is None else f"generation {name} of the run holds"
    return f"{where} {holds}\n          prove it: playhead replay {quote(recording)} -- CMD"


def _names(old: Bundle) -> tuple[str, str]:
    """A run, and the newest generation of it."""
    newest = str(old.run["id"])
    return numbered(newest)[0], newest
