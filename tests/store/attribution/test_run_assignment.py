"""The run of an exchange that its head does not name, from its body or a shared trace; assigning twice changes nothing."""

import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.events import Gap, encode_records
from calls.model import Exchange
from store.attribution.grouping import RunGrouping
from store.attribution.run_assignment import assign_run, assign_to_trace, assignable_trace
from store.attribution.shared_traces import MAX_ATTEMPTS
from store.bundle.bundle import read_bundle
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.runs import Runs
from store.spool import Spool
from tests.store.running_store import PROFILES, import_bundle, open_store
from tests.store.samples import NOON, SECOND, exchange, prose, uuid7
from tests.support.exchange_events import exchange_events

OWNER = "18f3a2-10.0.0.7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OTHER = "0af7651916cd43dd8448eb211c80319c"
CHAT = "https://api.openai.com/v1/chat/completions"
SESSION = "agents-sdk:run:0b5c8e0fe4b04c7fa2a6dcb4e8b1f9d3"
understood = partial(derive_call, profiles=PROFILES)


def make_exchange(number: int, *evidence: tuple[str, str], url: str = CHAT, **body: Any) -> Exchange:
    """A request with this evidence and the owner of its connection."""
    request = {"model": "gpt-5", "messages": [{"role": "user", "content": prose(str(number), 200)}], **body}
    evidence = (*evidence, ("owner", OWNER))
    run = next((value for source, value in evidence if source != "traceparent"), OWNER)
    return exchange(number, url=url, request=json.dumps(request).encode(), run=run, run_evidence=evidence)


def traced_exchange(number: int, trace: str = TRACE, **body: Any) -> Exchange:
    return make_exchange(number, ("traceparent", trace), **body)


def filed_as(of: Exchange) -> Exchange:
    return assign_run(of, understood(of))


def test_a_body_names_the_run_where_only_the_owner_did_and_a_named_run_stays() -> None:
    found = filed_as(make_exchange(1, ("traceparent", TRACE), prompt_cache_key=SESSION))
    assert found.run == SESSION
    assert found.run_evidence == (("body/prompt_cache_key", SESSION), ("traceparent", TRACE), ("owner", OWNER))


def test_a_body_does_not_lead_into_a_claimed_run() -> None:
    one = make_exchange(1, prompt_cache_key=SESSION)
    found = assign_run(one, understood(one), lambda run: run == SESSION)
    assert found.run == OWNER
    assert ("body/prompt_cache_key", SESSION) in found.run_evidence
    sent = make_exchange(2, ("credentials", SESSION), prompt_cache_key=SESSION)
    assert assign_run(sent, understood(sent), lambda run: run == SESSION).run == SESSION


@pytest.mark.parametrize(
    "source",
    ["credentials", "x-playhead-bound-run", "x-playhead-run", "baggage/session.id", "thread-id", "x-bt-parent"],
)
def test_whoever_said_it_in_the_head_is_believed_before_a_body_which_is_kept_as_evidence(source: str) -> None:
    found = filed_as(make_exchange(1, (source, "told"), prompt_cache_key=SESSION))
    assert found.run == "told"
    assert found.run_evidence == ((source, "told"), ("body/prompt_cache_key", SESSION), ("owner", OWNER))


def test_filing_again_changes_nothing() -> None:
    for one in (
        make_exchange(1, prompt_cache_key=SESSION),
        make_exchange(2, ("thread-id", "t"), session_id="s"),
        traced_exchange(3),
    ):
        assert filed_as(filed_as(one)) == filed_as(one)


def test_a_session_of_a_tool_is_the_tools() -> None:
    one = make_exchange(1, url="https://browser.example.com/v1/click", session_id="tab-7")
    assert filed_as(one) == one


def test_an_exchange_that_says_nothing_of_its_run_stays_where_it_was_imported_to() -> None:
    one = replace(make_exchange(1, session_id="s"), run_evidence=())
    assert filed_as(one).run == one.run


@pytest.mark.parametrize("forged", ["../../etc", "a b", "x" * 300, "é", "a\u202eb"])
def test_a_name_that_no_run_can_have_becomes_one_by_digest(forged: str) -> None:
    found = filed_as(make_exchange(1, session_id=forged))
    assert found.run == OWNER or (found.run.startswith("id:") and len(found.run) == 35)


def test_a_trace_counts_only_where_nothing_stronger_was_said() -> None:
    assert assignable_trace(traced_exchange(1)) == TRACE
    assert assignable_trace(assign_to_trace(traced_exchange(1))) == TRACE
    assert assignable_trace(make_exchange(1, ("thread-id", "t"), ("traceparent", TRACE))) is None
    assert assignable_trace(filed_as(traced_exchange(1, prompt_cache_key=SESSION))) is None
    assert assignable_trace(replace(traced_exchange(1), run="imported-under-another-name")) is None


# -- in the database


async def put(database: Database, *batch: Exchange, gaps: Sequence[Gap] = ()) -> None:
    """Store exchanges as the store server does after draining."""
    kin = RunGrouping(database, lambda one: DerivedExchange(one, understood(one)))
    await BatchWriter(database).write_batch(
        await kin.group_batch([DerivedExchange(one, understood(one)) for one in batch]), gaps
    )


async def exchanges_by_run(database: Database) -> dict[str, list[str]]:
    """The exchanges of each run."""
    runs = await Runs(database).page(Filters(), NOON)
    recorded = CallReader(database, understood)
    return {
        run["id"]: [one.id async for one in recorded.exchanges(run["id"])]
        for run in sorted(runs.items, key=lambda run: run["id"])
    }


async def test_a_trace_that_one_exchange_has_names_no_run(database: Database) -> None:
    one, other = traced_exchange(1), traced_exchange(2, OTHER)
    await put(database, one, other)
    assert await exchanges_by_run(database) == {OWNER: [one.id, other.id]}


def attempt(number: int, status: int, *, of: int = 1, url: str = CHAT) -> Exchange:
    """A try of a request, all of whose tries have one trace."""
    started = NOON + number * SECOND
    made = replace(traced_exchange(of), id=uuid7(started, number), started_at=started)
    assert made.response is not None
    request = replace(made.request, url=url)
    return replace(made, request=request, response=replace(made.response, status=status))


@pytest.mark.parametrize(
    "statuses",
    [pytest.param((503, 503, 200), id="attempts"), pytest.param((502, 502, 502), id="failures")],
)
async def test_a_trace_of_the_attempts_of_one_call_names_no_run(database: Database, statuses: Sequence[int]) -> None:
    """Some clients begin a trace with each request: what shares it then are its tries."""
    tries = [attempt(number, status) for number, status in enumerate(statuses, 1)]
    for order in itertools.permutations(tries):
        for one in order:
            await put(database, one)
        assert await exchanges_by_run(database) == {OWNER: [one.id for one in tries]}
        assert await Runs(database).delete(OWNER)
    await put(database, *tries)
    assert await exchanges_by_run(database) == {OWNER: [one.id for one in tries]}
    another = traced_exchange(9)
    await put(database, another)
    assert await exchanges_by_run(database) == {TRACE: [*(one.id for one in tries), another.id]}


async def test_the_hops_of_a_redirect_are_not_several_calls(database: Database) -> None:
    hops = [attempt(1, 307), attempt(2, 308, url=f"{CHAT}/2"), attempt(3, 200, url=f"{CHAT}/3")]
    await put(database, *hops)
    assert await exchanges_by_run(database) == {OWNER: [one.id for one in hops]}


async def test_two_calls_with_the_same_request_share_their_trace(database: Database) -> None:
    calls = [attempt(1, 200), attempt(2, 200)]
    await put(database, *calls)
    assert await exchanges_by_run(database) == {TRACE: [one.id for one in calls]}


async def test_a_trace_with_very_many_attempts_names_a_run(database: Database) -> None:
    """To read them all with each new one would take ever longer."""
    tries = [attempt(number, 503) for number in range(1, MAX_ATTEMPTS + 2)]
    for one in tries[:-1]:
        await put(database, one)
    assert list(await exchanges_by_run(database)) == [OWNER]
    await put(database, tries[-1])
    assert await exchanges_by_run(database) == {TRACE: [one.id for one in tries]}


async def test_exchanges_of_one_trace_are_of_one_run_in_whatever_batches_they_come(database: Database) -> None:
    made = [traced_exchange(1), traced_exchange(2, OTHER), traced_exchange(3), traced_exchange(4)]
    for order in itertools.permutations(made):
        for one in order:
            await put(database, one)
        assert await exchanges_by_run(database) == {TRACE: [made[0].id, made[2].id, made[3].id], OWNER: [made[1].id]}
        for run in (TRACE, OWNER):
            assert await Runs(database).delete(run)
    await put(database, *made)
    assert await exchanges_by_run(database) == {TRACE: [made[0].id, made[2].id, made[3].id], OWNER: [made[1].id]}


async def test_events_repeated_after_a_crash_are_stored_once_in_the_same_run(database: Database) -> None:
    made = [traced_exchange(1), traced_exchange(2), traced_exchange(3)]
    for n in (1, 2, 3, 1, 2):
        await put(database, *made[:n])
        await put(database, made[0])
    assert await exchanges_by_run(database) == {TRACE: [one.id for one in made]}
    assert [one async for one in CallReader(database, understood).exchanges(TRACE)] == [
        assign_to_trace(one) for one in made
    ]
    page = await CallReader(database, understood).run_calls(TRACE)
    assert [call["step"] for call in page.items] == [1, 2, 3]


async def test_a_run_from_which_all_went_to_another_is_none(database: Database) -> None:
    await put(database, traced_exchange(1))
    assert list(await exchanges_by_run(database)) == [OWNER]
    await put(database, traced_exchange(2))
    assert list(await exchanges_by_run(database)) == [TRACE]


async def test_a_run_that_somebody_named_stays_though_all_of_it_left(database: Database) -> None:
    await Runs(database).put(OWNER, NOON, name="mine")
    await put(database, traced_exchange(1))
    await put(database, traced_exchange(2))
    assert sorted(await exchanges_by_run(database)) == sorted([OWNER, TRACE])


async def test_a_gap_goes_where_its_exchange_goes_whichever_comes_first(database: Database) -> None:
    one, other = traced_exchange(1), traced_exchange(2)
    early = Gap(OWNER, NOON, "a piece was lost", one.id)
    late = Gap(OWNER, NOON + SECOND, "another was lost", other.id)
    await put(database, gaps=[early])
    await put(database, one)
    await put(database, other)
    await put(database, gaps=[late, early])
    assert [gap.exchange for gap in await Runs(database).gaps(TRACE)] == [one.id, other.id]
    assert list(await exchanges_by_run(database)) == [TRACE]


async def test_from_the_spool_to_a_bundle_the_run_is_the_one_that_the_body_names(
    tmp_path: Path, database: Database
) -> None:
    sent = [
        make_exchange(1, prompt_cache_key=SESSION),
        make_exchange(2),
        make_exchange(3, prompt_cache_key=SESSION),
        traced_exchange(4),
        traced_exchange(5),
    ]
    async with open_store(tmp_path / "spool", database) as running_store:
        with Spool(tmp_path / "spool" / "worker") as spool:
            written = [spool.append(encode_records(record)) for one in sent for record in exchange_events(one)]
            await spool.wait_until_durable(max(written))
            listed = (await running_store.api.get(f"/v1/runs/{SESSION}/calls?settled=true")).json()
        assert [call["id"] for call in listed["items"]] == [sent[0].id, sent[2].id]
        assert (await running_store.api.get(f"/v1/runs/{OWNER}")).json()["exchanges"] == 1
        assert (await running_store.api.get(f"/v1/runs/{TRACE}")).json()["exchanges"] == 2
        evidence = (await running_store.api.get(f"/v1/exchanges/{sent[0].id}")).json()["run_evidence"]
        assert evidence == [["body/prompt_cache_key", SESSION], ["owner", OWNER]]
        bundle = (await running_store.api.get(f"/v1/runs/{SESSION}/bundle")).content
        assert [one.run for one in read_bundle(bundle.splitlines(keepends=True)).exchanges] == [SESSION] * 2
        assert (await running_store.api.delete(f"/v1/runs/{SESSION}")).status_code == 200
        assert (await import_bundle(running_store, bundle))["exchanges"] == 2
