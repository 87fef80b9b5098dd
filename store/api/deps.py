"""What the routes work with: the database, profiles and helper processes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from calls.redaction.call import Clean
from store.bundle.bundle import Bundle
from store.database.connection import Database
from store.embedded.db_health import Pulse
from store.generations.auto_sessions import AutoSessionRuns
from store.ingest.derive_call import deriver
from store.ingest.ingester import Counts
from store.large.helper import Helper
from store.query.exchanges import ExchangeQueries
from store.query.runs import Runs
from store.run_modes import Modes
from store.run_tokens import RunTokens
from store.worker_counters import WorkerCounters

type Unfit = Callable[[Bundle, Mapping[str, Any], Profiles, Clean, str], str | None]


class SpoolState(Protocol):
    """What the routes ask of the drain."""

    counts: Counts
    troubles: dict[str, str]
    counted: WorkerCounters

    @property
    def spools(self) -> int:
        """How many spools there are."""

    def bytes_pending(self) -> int:
        """How many bytes wait in the spools."""

    async def settled(self, patience: float, *, reports: bool = False) -> bool:
        """Wait until everything acknowledged is stored; whether it is."""

    def database_lost(self) -> None:
        """Postgres was found to be away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """One store server's things, as the routes see them."""

    store_server: SpoolState
    database: Database
    profiles: Profiles
    clean: Clean
    """Takes secrets out of a text."""

    mode: str = "record"
    """What the workers of this `up` do: record, replay, auto or passthrough."""

    takes: AutoSessionRuns | None = None
    """What runs do while workers are in mode `auto`."""

    pulse: Pulse = field(default_factory=Pulse)
    modes: Modes | None = None
    """Of runs that have one of their own."""

    run_tokens: RunTokens | None = None
    """Who may write into claimed runs."""

    unfit: Unfit | None = None
    """Why a recording cannot be edited or forked as it is wished for."""

    helper: Helper | None = None
    """The process that answers what is too large for this one; none where this one may open everything."""

    spilled: Path | None = None
    """Where answers wait that are larger than what is held for a slow reader; the system's place for temporary files
    where it is not given."""

    keys: Path | None = None
    """Where the certificate of the proxy's CA lies; nowhere in a helper process."""

    now: Callable[[], int] = time.time_ns

    @property
    def runs(self) -> Runs:
        """The runs."""
        return Runs(self.database)

    @property
    def recorded(self) -> ExchangeQueries:
        """Exchanges and calls."""
        return ExchangeQueries(self.database, self.derive, reads_large=self.helper is None)

    @property
    def derive(self) -> Callable[[Exchange], Call]:
        """From an exchange to its call, under the profiles in force."""
        return deriver(self.profiles, self.clean)


def _desk(request: Request) -> Deps:
    desk: Deps = request.app.state.desk
    return desk


type TheDesk = Annotated[Deps, Depends(_desk)]
