"""Store one large exchange from the file of its events."""

from collections.abc import Callable, Sequence
from pathlib import Path

from calls.events import Gap
from calls.exchange_builder import ExchangeBuilder
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from store.active_profiles import shipped
from store.attribution.grouping import Grouping
from store.attribution.run_assignment import filed
from store.database.connection import Unavailable
from store.ingest.batch_writer import DerivedExchange, Ingest
from store.ingest.drain import WORKER_DIED, gaps_of, last_sign
from store.ingest.open_exchange_files import events_in
from store.large.jobs import HelperJob, Reply, StoringJob
from store.large.summary import summary_of, underived
from store.prices import cost


class LargeStore:
    """Stores large exchanges in the process it is in."""

    def __init__(
        self,
        ingest: Ingest,
        derive: Callable[[Exchange], Call],
        profiles: Profiles,
        is_claimed: Callable[[str], bool] = lambda _run: False,
    ) -> None:
        self._ingest = ingest
        self._derive = derive
        self._profiles = profiles
        self._is_claimed = is_claimed
        self._kin = Grouping(
            ingest.database, lambda exchange: self._understood(exchange, "another run"), reads_large=True
        )

    async def store(self, job: StoringJob) -> None:
        """Store it and commit. Raises `Unavailable` while Postgres is away, and MemoryError."""
        exchange, gaps = _folded(job)
        if exchange is None:
            return
        kept = self._described(exchange, job)
        del exchange
        batch: Sequence[DerivedExchange] = [kept]
        if job.underived is None:
            batch = await self._kin.joined(batch)
        await self._ingest.put(batch, gaps)

    def _described(self, exchange: Exchange, job: StoringJob) -> DerivedExchange:
        if job.underived is None:
            return self._understood(exchange, job.source)
        call = underived(exchange, self._profiles, job.underived)
        return DerivedExchange(exchange, call, (job.source,), summary=summary_of(exchange, call, is_derived=False))

    def _understood(self, exchange: Exchange, source: str) -> DerivedExchange:
        call = self._derive(exchange)
        whose = filed(exchange, call, self._is_claimed)
        was = None if whose.run == exchange.run else exchange.run
        return DerivedExchange(whose, call, (source,), cost(exchange, call), was, summary_of(whose, call))


def _folded(job: StoringJob) -> tuple[Exchange | None, list[Gap]]:
    fold = ExchangeBuilder()
    for record in events_in(Path(job.file)):
        fold.feed(record)
    if not fold.begun:
        return None, []
    exchange = fold.exchange()
    gaps = gaps_of(exchange, fold)
    if job.is_cut_off:
        gaps.append(Gap(exchange.run, last_sign(exchange), WORKER_DIED, exchange.id))
    return exchange, gaps


class InProcess:
    """Does the jobs of storing in this process, where nobody limits its memory: for tests and tools."""

    def __init__(self, ingest: Ingest, derive: Callable[[Exchange], Call]) -> None:
        own = Ingest(ingest.database, project=ingest.project)
        self._store = LargeStore(own, derive, shipped())

    async def run(self, job: HelperJob) -> Reply:
        """Do a job."""
        assert job.store is not None
        try:
            await self._store.store(job.store)
        except Unavailable as error:
            return Reply(failed=str(error), is_unavailable=True)
        except FileNotFoundError:
            return Reply()
        except Exception as error:  # noqa: BLE001 - as in the helper process: a mistake of ours must not lose evidence
            return Reply(failed=f"{type(error).__name__}: {error}")
        return Reply()

    async def close(self) -> None:
        """There is nothing to end."""
