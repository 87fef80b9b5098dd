"""Make the parts of a store server from its configuration, and stop them."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from calls.derive import deriver
from calls.keys.element_memory import ElementMemory
from calls.project_runs import full_run_name
from calls.redaction.redactor import create_redactor
from store.access.audit_log import AuditLog
from store.active_profiles import load_profiles
from store.anchors.anchorer import Anchorer
from store.api.deps import Deps, EditCheck
from store.database.connection import Database, DatabaseError
from store.database.run_versions import RunVersions
from store.datadir import DataDir
from store.embedded.postgres import EmbeddedServer
from store.feed.signal import FeedSignal
from store.followers import Followers
from store.generations.auto_sessions import AutoSessionRuns
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Ingester
from store.large.helper import Helper
from store.large.jobs import HelperConfig
from store.objects.body_objects import BodyObjects
from store.pricing.prices import use_own_prices
from store.proof.sealing import Sealer
from store.retention.runner import RetentionRunner
from store.run_modes import RunModes
from store.run_tokens import is_claimed
from store.search.fresh_texts import FreshTexts
from store.server_config import StoreServerConfig

if TYPE_CHECKING:
    from store.otlp.exporter import Exporter

FINAL_CHECK_TIMEOUT: Final = 3.0
"""Seconds that a stopping store server may take for auto sessions that have just ended."""

FINAL_ANCHOR_TIMEOUT: Final = 2.0
"""Seconds that it waits for witnesses of the last checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """The parts of a store server that are started and stopped together."""

    writer: BatchWriter
    ingester: Ingester
    auto_sessions: AutoSessionRuns
    deps: Deps
    followers: Followers
    sealer: Sealer
    anchorer: Anchorer
    retention: RetentionRunner
    audit: AuditLog
    helpers: Sequence[Helper]
    """The helper processes that the ingester does not close itself."""

    async def stop(self, draining: asyncio.Task[None]) -> None:
        """Stop the parts in order. `draining` is the task of the ingester."""
        # Workers stop before the store server, so their auto sessions have ended. The next store server does what takes longer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_CHECK_TIMEOUT):
                await self.auto_sessions.settle_finished()
        self.ingester.stop()
        await draining
        for helper in self.helpers:
            await helper.close()
        with contextlib.suppress(DatabaseError):
            await self.audit.flush()
        await self.sealer.seal_all()
        await self.anchorer.finish(FINAL_ANCHOR_TIMEOUT)


class PartFactory:
    """Makes the parts of a store server. `helper_command` starts a helper process."""

    def __init__(
        self, config: StoreServerConfig, data: DataDir, database: Database, helper_command: Sequence[str]
    ) -> None:
        self._config = config
        self._data = data
        self._database = database
        self._helper_command = helper_command
        self._signal = FeedSignal()
        self._fresh = FreshTexts()
        self._keys = data.signing_keys()
        self._profiles = load_profiles(config.profiles_toml)
        self._clean = create_redactor(config.redaction, data.redaction_key()).redact_text
        use_own_prices(config.own_prices)
        self._memory = ElementMemory()
        self._shared_memory: RunVersions | None = None
        """What workers that answer from recordings read."""

        self._derive = deriver(self._profiles, self._clean)
        if config.objects is not None:
            database.objects = BodyObjects(database, config.objects)

    def make_parts(self, embedded: EmbeddedServer | None, edit_problem: EditCheck | None) -> ServerParts:
        """Make all parts. `edit_problem` checks the overrides and forks of a requested replay."""
        if self._config.mode in ("replay", "auto"):
            self._shared_memory = RunVersions.create(self._data.run_versions)
            if embedded is not None:
                # Nobody else writes to an embedded database.
                self._database.run_versions = self._shared_memory
        writer, render_helper, judge_helper = self._make_writer(), self._make_helper(), self._make_helper()
        ingester = self._make_ingester(writer, embedded)
        auto_sessions = self._make_auto_sessions(ingester, judge_helper)
        exporters = self._make_exporters()
        followers = Followers(self._database, self._signal, self._derive, exporters, fresh=self._fresh)
        audit = AuditLog(self._database, time.time_ns)
        anchorer = Anchorer(self._database, self._keys.server, self._config.anchors)
        sealer = Sealer(self._database, self._keys, self._data.checkpoints, note_checkpoint=anchorer.note_checkpoint)
        retention = self._make_retention()
        deps = self._make_deps(ingester, auto_sessions, render_helper, edit_problem)
        return ServerParts(
            writer=writer,
            ingester=ingester,
            auto_sessions=auto_sessions,
            followers=followers,
            sealer=sealer,
            anchorer=anchorer,
            retention=retention,
            audit=audit,
            deps=replace(deps, followers=followers, retention=retention, audit=audit, sealer=sealer, anchorer=anchorer),
            helpers=(render_helper, judge_helper),
        )

    def _make_exporters(self) -> "list[Exporter]":
        if not self._config.exports:
            return []
        # Importing the messages of OpenTelemetry takes long, and most store servers export nothing.
        from store.otlp.exporter import Exporter

        return [Exporter(self._database, self._derive, target, self._signal) for target in self._config.exports]

    def _make_writer(self) -> BatchWriter:
        return BatchWriter(
            self._database,
            profile=self._profiles.digest,
            signal=self._signal,
            note_call=self._fresh.note_call,
            split=self._memory.take_elements,
        )

    def _make_helper(self) -> Helper:
        config = HelperConfig(
            database_url=self._database.url,
            store_server=self._keys.server,
            public_keys=self._keys.public.public_keys,
            checkpoints=str(self._data.checkpoints),
            anchors=self._config.anchors,
            objects=self._config.objects,
            redaction_key=self._data.redaction_key(),
            memory_limit=self._config.helper_memory,
            mode=self._config.mode,
            replays=str(self._data.replays),
            profiles_toml=self._config.profiles_toml,
            redaction=self._config.redaction,
            own_prices=self._config.own_prices,
            claims=None if self._config.shared_runs else str(self._data.claims),
            run_versions=str(self._data.run_versions) if self._database.run_versions else None,
        )
        objects = self._database.objects
        return Helper(
            config,
            command=self._helper_command,
            note_reply=lambda reply: objects.add_counts(reply.objects, reply.objects_trouble),
        )

    def _make_ingester(self, writer: BatchWriter, embedded: EmbeddedServer | None) -> Ingester:
        return Ingester(
            self._data.spools,
            writer,
            deriver(self._profiles, self._clean, self._memory),
            large=self._make_helper(),
            revive=embedded.revive if embedded else None,
            is_claimed=self._claim_check(),
            is_read=self._signal.is_read,
        )

    def _claim_check(self) -> Callable[[str], bool]:
        return (lambda _run: False) if self._config.shared_runs else partial(is_claimed, self._data.claims)

    def _make_auto_sessions(self, ingester: Ingester, helper: Helper) -> AutoSessionRuns:
        return AutoSessionRuns(
            directory=self._data.replays,
            database=self._database,
            ingest=self._make_writer(),
            derive=self._derive,
            wait_until_settled=ingester.wait_until_settled,
            now=time.time_ns,
            helper=helper,
        )

    def _make_retention(self) -> RetentionRunner:
        modes, tokens = RunModes(self._data.replays), self._data.run_tokens()

        def forget(project: str, run: str) -> None:
            name = full_run_name(project, run)
            modes.forget(name)
            tokens.release(name)

        return RetentionRunner(self._database, self._config.retention, signal=self._signal, forget=forget)

    def _make_deps(
        self, ingester: Ingester, auto_sessions: AutoSessionRuns, helper: Helper, edit_problem: EditCheck | None
    ) -> Deps:
        return Deps(
            store_server=ingester,
            database=self._database,
            profiles=self._profiles,
            clean=self._clean,
            signal=self._signal,
            mode=self._config.mode,
            auto_sessions=auto_sessions,
            run_modes=RunModes(self._data.replays),
            run_tokens=self._data.run_tokens(),
            preload_secret=self._config.preload_secret,
            announcements=self._shared_memory,
            edit_problem=edit_problem,
            helper=helper,
            spill_directory=_make_empty_directory(self._data.root / "answers"),
            data_directory=self._data.root,
            key_directory=self._data.keys,
            log_keys=self._keys.public,
            checkpoint_directory=self._data.checkpoints,
            anchors=self._config.anchors,
            fork_agent=self._config.fork_agent,
        )


def _make_empty_directory(directory: Path) -> Path:
    """Make the directory without what an earlier process left in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    return directory
