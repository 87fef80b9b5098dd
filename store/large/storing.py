"""Store one large exchange from the file of its events."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from calls.events import ExchangeClosed, Gap
from calls.exchange_builder import ExchangeBuilder
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from calls.project_runs import full_run_name
from store.active_profiles import load_profiles
from store.attribution.run_assignment import assign_run
from store.database.connection import DatabaseUnavailable
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.ingest.drain import WORKER_DIED, exchange_gaps, last_data_at
from store.ingest.open_exchange_files import read_events
from store.ingest.project_writers import ProjectWriters, exchange_in_project
from store.large.jobs import HelperJob, Reply, StoringJob
from store.large.summary import encode_summary, underived_call
from store.pricing.prices import call_cost


class LargeStore:
    """Stores large exchanges in its own process."""

    def __init__(
        self,
        writer: BatchWriter,
        derive: Callable[[Exchange], Call],
        profiles: Profiles,
        is_claimed: Callable[[str], bool] = lambda _run: False,
    ) -> None:
        self._derive = derive
        self._profiles = profiles
        self._is_claimed = is_claimed
        self._projects = ProjectWriters(writer, self._derive_exchange, reads_large=True)

    async def store(self, job: StoringJob) -> None:
        """Store the exchange of a job and commit. Raises `DatabaseUnavailable` and MemoryError."""
        exchange, gaps = _build_exchange(job)
        if exchange is None:
            return
        batch: Sequence[DerivedExchange] = [self._derive_or_describe(exchange, job)]
        del exchange
        if job.underived is None:
            batch = await self._projects.group_batch(batch)
        # Its run may have been erased since its file was opened, with the file, and must not come back.
        if not await asyncio.to_thread(Path(job.file).exists):
            return
        await self._projects.write_batch(batch, gaps)

    def _derive_or_describe(self, recorded: Exchange, job: StoringJob) -> DerivedExchange:
        exchange, project = exchange_in_project(recorded)
        if job.underived is None:
            return self._derive_exchange(exchange, project, job.source)
        call = underived_call(exchange, self._profiles, job.underived)
        summary = encode_summary(exchange, call, is_derived=False)
        return DerivedExchange(exchange, call, (job.source,), summary=summary, project=project)

    def _derive_exchange(self, exchange: Exchange, project: str, source: str = "another run") -> DerivedExchange:
        call = self._derive(exchange)
        assigned = assign_run(exchange, call, lambda run: self._is_claimed(full_run_name(project, run)))
        previous = None if assigned.run == exchange.run else exchange.run
        cost, summary = call_cost(exchange, call), encode_summary(assigned, call)
        return DerivedExchange(assigned, call, (source,), cost, previous, summary, project)


def _build_exchange(job: StoringJob) -> tuple[Exchange | None, list[Gap]]:
    fold = ExchangeBuilder()
    record = None
    for record in read_events(Path(job.file)):
        fold.feed(record)
    if not fold.has_begun:
        return None, []
    exchange = fold.build()
    gaps = exchange_gaps(exchange, fold)
    if job.is_cut_off or (job.is_cut_off is None and not isinstance(record, ExchangeClosed)):
        gaps.append(Gap(exchange.run, last_data_at(exchange), WORKER_DIED, exchange.id))
    return exchange, gaps


class InProcessRunner:
    """Runs storing jobs in this process, without a limit of memory; for tests and tools."""

    def __init__(self, writer: BatchWriter, derive: Callable[[Exchange], Call]) -> None:
        self._store = LargeStore(BatchWriter(writer.database), derive, load_profiles())

    async def run(self, job: HelperJob) -> Reply:
        """Run a job."""
        assert job.store is not None
        try:
            await self._store.store(job.store)
        except DatabaseUnavailable as error:
            return Reply(failed=str(error), is_unavailable=True)
        except FileNotFoundError:
            return Reply()
        except Exception as error:  # noqa: BLE001 - as in the helper process, a bug must not lose evidence
            return Reply(failed=f"{type(error).__name__}: {error}")
        return Reply()

    async def close(self) -> None:
        """Do nothing, because there is no process to end."""
