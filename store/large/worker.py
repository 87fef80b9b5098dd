"""The helper process: `python -m store.large.worker`. It runs one job after another within a limit of memory.

The first line on stdin is its configuration and each other line a job; each reply is a line on stdout. Bodies and events are
passed in files. The process ends when stdin ends, or when the kernel ends it; the store server limits the time of a job.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from calls.derive import deriver
from calls.redaction.redactor import create_redactor
from store.active_profiles import load_profiles
from store.database.connection import Database, DatabaseUnavailable
from store.database.run_versions import RunVersions
from store.generations.auto_session_file import AutoSession
from store.generations.judging import Judge
from store.ingest.batch_writer import BatchWriter
from store.large import memory
from store.large.jobs import HelperConfig, HelperJob, JudgeResult, RenderResult, Reply
from store.large.storing import LargeStore
from store.objects.body_objects import BodyObjects
from store.pricing.prices import use_own_prices
from store.run_tokens import is_claimed

if TYPE_CHECKING:
    from store.api.deps import EditCheck
    from store.api.render import Renderer

MAX_LINE: Final = 1 << 20
"""Bytes of a line at most."""


class JobHandler:
    """Runs jobs, with its own connection to the database."""

    def __init__(self, config: HelperConfig, edit_problem: "EditCheck | None" = None) -> None:
        self._config = config
        self._edit_problem = edit_problem
        self._profiles = load_profiles(config.profiles_toml)
        self._clean = create_redactor(config.redaction, config.redaction_key).redact_text
        use_own_prices(config.own_prices)
        self.database = Database(config.database_url, config.store_server)
        if config.objects is not None:
            self.database.objects = BodyObjects(self.database, config.objects)
        if config.run_versions is not None:
            self.database.run_versions = RunVersions(Path(config.run_versions), is_writer=True)
        writer = BatchWriter(self.database, profile=self._profiles.digest)
        derive = deriver(self._profiles, self._clean)
        judge_writer = BatchWriter(self.database, profile=self._profiles.digest)
        self._judge_writer, self._derive = judge_writer, derive
        claim_check = partial(is_claimed, Path(config.claims)) if config.claims else lambda _run: False
        self._store = LargeStore(writer, derive, self._profiles, claim_check)
        self._renderer: Renderer | None = None

    async def reply(self, job: HelperJob) -> Reply:
        """Run a job and return its result."""
        try:
            await self.database.connect()
            reply = await self._do_job(job)
        except MemoryError:
            return Reply(failed="it takes more memory than a helper process may have", peak=memory.peak_memory())
        except FileNotFoundError:
            return Reply(peak=memory.peak_memory())  # it was stored by an earlier attempt, whose reply was lost
        except DatabaseUnavailable as error:
            return Reply(failed=str(error), is_unavailable=True)
        except Exception as error:  # noqa: BLE001 - a bug that one exchange shows must not keep others from being stored
            return Reply(failed=f"{type(error).__name__}: {str(error)[:500]}", peak=memory.peak_memory())
        return msgspec.structs.replace(reply, peak=memory.peak_memory())

    async def _do_job(self, job: HelperJob) -> Reply:
        if job.store is not None:
            await self._store.store(job.store)
        if job.judge is not None:
            return Reply(judgement=await self._judge_file(Path(job.judge.file)))
        if job.render is None:
            return Reply()
        if self._renderer is None:
            self._renderer = self._make_renderer()
        return Reply(rendering=await self._renderer.render(job.render, _report_progress))

    async def _judge_file(self, file: Path) -> JudgeResult:
        if (take := AutoSession.read(file)) is None:
            raise FileNotFoundError(file)
        judge = Judge(self._judge_writer.for_project(take.project), self._derive, time.time_ns, reads_large=True)
        return await judge.judge(take, file, lambda: _write_reply(Reply(is_over=False)))

    def _make_renderer(self) -> "Renderer":
        # Imported here, because FastAPI takes 30 MB and half a second, and a process that only stores does not need it.
        from store.api.render import Renderer
        from store.proof.signing_keys import LogKeys

        config = self._config
        return Renderer(
            database=self.database,
            profiles=self._profiles,
            clean=self._clean,
            mode=config.mode,
            replays=Path(config.replays) if config.replays else None,
            edit_problem=self._edit_problem,
            log_keys=LogKeys(config.store_server, config.public_keys) if config.store_server else None,
            checkpoints=Path(config.checkpoints) if config.checkpoints else None,
            anchors=config.anchors,
        )


def _report_progress(rendering: RenderResult) -> None:
    """Report that the answer has grown."""
    _write_reply(Reply(rendering=rendering, is_over=False))


def _write_reply(reply: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


async def _read_lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


async def _run_jobs(edit_problem: "EditCheck | None") -> None:
    lines = _read_lines()
    config = msgspec.json.decode(await anext(lines), type=HelperConfig)
    memory.limit_data(config.memory_limit)
    handler = JobHandler(config, edit_problem)
    try:
        async for line in lines:
            reply = await handler.reply(msgspec.json.decode(line, type=HelperJob))
            objects = handler.database.objects
            reply = msgspec.structs.replace(reply, objects=objects.take_counts(), objects_trouble=objects.trouble)
            memory.trim_heap()
            _write_reply(reply)
    finally:
        await handler.database.close()


def main(edit_problem: "EditCheck | None" = None) -> None:
    """Run jobs until stdin ends. `edit_problem` checks the overrides and forks of a requested replay."""
    memory.end_with_parent()
    memory.return_freed_blocks()
    memory.prefer_for_oom_kill()
    asyncio.run(_run_jobs(edit_problem))


if __name__ == "__main__":
    main()
