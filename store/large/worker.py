"""The helper process: `python -m store.large.worker`. It does one job after another within a limit of memory.

Its first line on stdin is its configuration, each further line a job; each answer is a line on stdout. What a job is
about travels in files. It ends when stdin ends, when a job takes more memory than allowed, or when the kernel ends it;
whoever gave it a job limits its time.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from calls.redaction.redactor import Redactor
from store.active_profiles import shipped
from store.database.connection import Database, Unavailable
from store.generations.auto_session_file import Take
from store.generations.judging import Judge
from store.ingest.batch_writer import Ingest
from store.ingest.derive_call import deriver
from store.large import memory
from store.large.jobs import HelperJob, JudgeResult, RenderResult, Reply, WorkerConfig
from store.large.storing import LargeStore
from store.run_tokens import is_claimed

if TYPE_CHECKING:
    from store.api.render import Renderer

LINE: Final = 1 << 20
"""Bytes of a line at most."""


class Worker:
    """Does jobs, with a connection of its own to the database."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._profiles = shipped(config.profiles_toml)
        self._clean = Redactor(
            key=config.redaction_key,
            personal_data=config.redact_personal_data,
            names=config.redact_names,
        ).text
        self.database = Database(config.database_url)
        ingest = Ingest(self.database, profile=self._profiles.digest)
        derived = deriver(self._profiles, self._clean)
        own = Ingest(self.database, profile=self._profiles.digest)
        self._judge = Judge(own, derived, time.time_ns, reads_large=True)
        claimed = partial(is_claimed, Path(config.claims)) if config.claims else lambda _run: False
        self._store = LargeStore(ingest, derived, self._profiles, claimed)
        self._renderer: Renderer | None = None

    async def reply(self, job: HelperJob) -> Reply:
        """Do a job, and say what became of it."""
        try:
            await self.database.connect()
            reply = await self._done(job)
        except MemoryError:
            return Reply(failed="it takes more memory than a helper process may have", peak=memory.peak())
        except FileNotFoundError:
            return Reply(peak=memory.peak())  # it was stored by an earlier try, whose answer was lost
        except Unavailable as error:
            return Reply(failed=str(error), is_unavailable=True)
        except Exception as error:  # noqa: BLE001 - a mistake of ours in one exchange must not keep others from being stored
            return Reply(failed=f"{type(error).__name__}: {str(error)[:500]}", peak=memory.peak())
        return msgspec.structs.replace(reply, peak=memory.peak())

    async def _done(self, job: HelperJob) -> Reply:
        if job.store is not None:
            await self._store.store(job.store)
        if job.judge is not None:
            return Reply(judgement=await self._judged(Path(job.judge.file)))
        if job.render is None:
            return Reply()
        if self._renderer is None:
            self._renderer = self._made_renderer()
        return Reply(rendering=await self._renderer.render(job.render, _report))

    async def _judged(self, file: Path) -> JudgeResult:
        if (take := Take.read(file)) is None:
            raise FileNotFoundError(file)
        return await self._judge.judged(take, file, lambda: _say(Reply(is_over=False)))

    def _made_renderer(self) -> "Renderer":
        # FastAPI takes 30 MB and half a second; a process that only stores does without.
        from store.api.render import Renderer

        config = self._config
        return Renderer(
            database=self.database,
            profiles=self._profiles,
            clean=self._clean,
            mode=config.mode,
            replays=Path(config.replays) if config.replays else None,
            checks=config.checks,
        )


def _report(rendering: RenderResult) -> None:
    """Say that a job goes on."""
    _say(Reply(rendering=rendering, is_over=False))


def _say(reply: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


async def _work() -> None:
    lines = _lines()
    config = msgspec.json.decode(await anext(lines), type=WorkerConfig)
    memory.limit_data(config.memory_limit)
    worker = Worker(config)
    try:
        async for line in lines:
            reply = await worker.reply(msgspec.json.decode(line, type=HelperJob))
            memory.trim()
            _say(reply)
    finally:
        await worker.database.close()


def main() -> None:
    """Work until stdin ends."""
    memory.end_with_parent()
    memory.return_freed_blocks()
    memory.prefer_for_oom_kill()
    asyncio.run(_work())


if __name__ == "__main__":
    main()
