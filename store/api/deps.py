"""The dependencies of the routes: the database, the profiles, the helper process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from calls.derive import deriver, unkeyed_deriver
from calls.keys.element_memory import ElementMemory
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from calls.project_runs import full_run_name
from calls.redaction.call import Clean
from store.access.audit_log import AuditLog
from store.access.grants import FULL_GRANT, GRANT, STILL_GRANTED, Grant
from store.anchors.anchorer import Anchorer
from store.anchors.targets import AnchorTargets
from store.bundle.bundle import Bundle
from store.database.connection import Database
from store.database.run_versions import RunVersions
from store.embedded.db_health import DatabaseHealth
from store.feed.signal import FeedSignal
from store.followers import Followers
from store.generations.auto_sessions import AutoSessionRuns
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Counts
from store.large.helper import Helper
from store.proof.seal_marks import LastVerdicts
from store.proof.sealing import Sealer
from store.proof.signing_keys import LogKeys
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.rows_export import RowsExporter
from store.query.run_graphs import RunGraphs
from store.query.runs import Runs
from store.retention.runner import RetentionRunner
from store.run_modes import RunModes
from store.run_tokens import RunTokens
from store.search.lookup import TextLookup
from store.sums.tool_names import resolve_tools
from store.worker_counters import WorkerCounters

type EditCheck = Callable[[Bundle, Mapping[str, Any], Profiles, Clean, str], str | None]


class SpoolState(Protocol):
    """What the routes need to know about the spools and how far they are drained."""

    counts: Counts
    troubles: dict[str, str]
    worker_counters: WorkerCounters

    @property
    def spools(self) -> int:
        """The number of spools."""

    def bytes_pending(self) -> int:
        """Return the number of bytes in the spools that are not stored yet."""

    async def wait_until_settled(self, patience: float, *, reports: bool = False) -> bool:
        """Wait up to `patience` seconds until everything acknowledged is stored; return whether it is."""

    def note_database_lost(self) -> None:
        """Note that Postgres did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """The dependencies of one store server's routes."""

    store_server: SpoolState
    database: Database
    profiles: Profiles
    clean: Clean
    """Redacts secrets in a text."""

    grant: Grant = FULL_GRANT
    """What the request may do, and the project that it asks about."""

    is_still_granted: Callable[[], bool] = lambda: True
    """Returns whether the request's token still allows the same: for a response without an end."""

    audit: AuditLog | None = None
    """The audit log; None in a helper process."""

    signal: FeedSignal = field(default_factory=FeedSignal)
    """Sent whenever something was stored."""

    followers: Followers | None = None
    """The parts that follow the record; None in a helper process."""

    retention: RetentionRunner | None = None
    """Removes old runs; None in a helper process."""

    mode: str = "record"
    """The mode of the workers of this `up`: record, replay, auto or passthrough."""

    auto_sessions: AutoSessionRuns | None = None
    """The auto sessions; None unless the workers are in mode `auto`."""

    db_health: DatabaseHealth = field(default_factory=DatabaseHealth)
    run_modes: RunModes | None = None
    """The runs that have a mode of their own."""

    run_tokens: RunTokens | None = None
    """The claims of runs, and the tokens that may write into them."""

    preload_secret: str | None = None
    """What the workers of this `up` show when they load recordings ahead; None where there are none."""

    announcements: RunVersions | None = None
    """Where workers see which replays and forks were created, to load them at once."""

    edit_problem: EditCheck | None = None
    """Returns why a recording cannot be edited or forked with the given options; None where it can."""

    helper: Helper | None = None
    """The helper process for requests that are too large for this one; None where this process may load everything."""

    spill_directory: Path | None = None
    """The directory for responses that exceed the memory buffer of a slow client; by default that for temporary files."""

    data_directory: Path | None = None
    """The data directory; None in a helper process."""

    key_directory: Path | None = None
    """The directory with the certificate of the proxy's CA; None in a helper process."""

    sealer: Sealer | None = None
    """Signs checkpoints and bundles; None in a helper process."""

    anchorer: Anchorer | None = None
    """Has checkpoints vouched for; None in a helper process."""

    anchors: AnchorTargets = field(default_factory=AnchorTargets)
    """Who is asked to vouch for checkpoints, and whose answers are trusted."""

    log_keys: LogKeys | None = None
    """The public keys of the checkpoints; None where nothing is proven."""

    checkpoint_directory: Path | None = None
    """The directory with the newest checkpoint of each project."""

    last_verdicts: LastVerdicts = field(default_factory=LastVerdicts)
    """How the last verifications of runs ended."""

    run_graphs: RunGraphs = field(default_factory=RunGraphs)
    """The call graphs of the runs whose pages were read last."""

    fork_agent: str | None = None
    """The URL that starts an agent for a fork; None where none is configured."""

    now: Callable[[], int] = time.time_ns

    @property
    def project(self) -> str:
        """The project that the request asks about."""
        return self.grant.project

    def full_name(self, run: str) -> str:
        """Return the name by which workers and the data directory know a run or replay of the project."""
        return full_run_name(self.project, run)

    def announce_replay(self, name: str) -> None:
        """Tell the workers that a replay or fork was created."""
        if self.announcements is not None:
            self.announcements.announce_replay(self.full_name(name))

    @property
    def runs(self) -> Runs:
        """The runs."""
        return Runs(self.database, self.project)

    @property
    def call_reader(self) -> CallReader:
        """Exchanges and calls. What several calls of one answer have in common is read once."""
        memory = ElementMemory()
        return CallReader(
            self.database,
            deriver(self.profiles, self.clean, memory),
            self.project,
            reads_large=self.helper is None,
            derive_unkeyed=unkeyed_deriver(self.clean, memory),
            graphs=self.run_graphs,
        )

    @property
    def rows_exporter(self) -> RowsExporter:
        """The rows of runs, for replays."""
        return RowsExporter(
            database=self.database,
            profiles=self.profiles.digest,
            project=self.project,
            reads_large=self.helper is None,
        )

    @property
    def text_lookup(self) -> TextLookup:
        """What was said in runs."""
        return TextLookup(self.database, self.project)

    async def resolve(self, filters: Filters) -> Filters:
        """Look up what filters name indirectly: words, and the beginnings of names of tools. Raises `InvalidQuery`."""
        return await resolve_tools(self.database, self.project, await self.text_lookup.resolve(filters))

    @property
    def writer(self) -> BatchWriter:
        """A new writer of the project's rows."""
        return BatchWriter(self.database, project=self.project, profile=self.profiles.digest, signal=self.signal)

    @property
    def derive(self) -> Callable[[Exchange], Call]:
        """The function that derives the call of an exchange under the profiles in force."""
        return deriver(self.profiles, self.clean)


async def _deps(request: Request) -> Deps:
    deps: Deps = request.app.state.deps
    scope = request.scope
    return replace(deps, grant=scope[GRANT], is_still_granted=scope.get(STILL_GRANTED, deps.is_still_granted))


type TheDeps = Annotated[Deps, Depends(_deps)]
