"""Several exchanges that are one call: it is listed once, with the first request and the last answer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Exchange, Request
from store.active_profiles import load_profiles
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import call_cost
from store.query import call_reader
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.pages import load_sorted_page
from store.query.runs import Runs
from tests.store.samples import NOON, SECOND, body, exchange
from tests.store.test_queries import LATER, walk

PROFILES = load_profiles()
CHAT, RESPONSES = "https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1/responses"
ASK = b'{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}]}'
ANSWER = b"""{"object": "chat.completion", "model": "gpt-4o-mini-2024-07-18", "choices": [{"index": 0, "finish_reason": "stop",
"message": {"role": "assistant", "content": "Hi!"}}], "usage": {"prompt_tokens": 1000, "completion_tokens": 100}}"""
BUSY = b'{"error": {"message": "Slow down", "type": "rate_limit_error"}}'


def make_exchange(number: int, status: int = 200, **more: Any) -> Exchange:
    answer = {"request": ASK, "response": ANSWER if status == 200 else BUSY, "url": CHAT}
    return exchange(number, status=status, **{**answer, **more})


def background(number: int, status: str, usage: str = "null", **more: Any) -> Exchange:
    """Return a background response: the request that starts it, and polls."""
    made = f'{{"id": "resp_1", "object": "response", "background": true, "status": "{status}", "model": "gpt-5-2025-08-07", "output": [], "usage": {usage}}}'
    one = exchange(number, request=b'{"model": "gpt-5", "input": "hi"}', response=made.encode(), url=RESPONSES, **more)
    if number == 0:
        return one
    return replace(one, request=Request(method="GET", url=f"{RESPONSES}/resp_1", body=body(b"")))


USAGE = '{"input_tokens": 100, "output_tokens": 10, "output_tokens_details": {"reasoning_tokens": 4}}'


@pytest.fixture
def queries(database: Database) -> CallReader:
    return CallReader(database, partial(derive_call, profiles=PROFILES))


@pytest.fixture
def page_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many exchanges were looked at for a page, each time."""
    sizes: list[int] = []

    async def load_page(*arguments: Any) -> Any:
        sizes.append(arguments[-1])
        return await load_sorted_page(*arguments)

    monkeypatch.setattr(call_reader, "load_sorted_page", load_page)
    return sizes


@pytest.fixture
def runs(database: Database) -> Runs:
    return Runs(database)


async def put(database: Database, *exchanges: Exchange) -> None:
    calls = [(one, derive_call(one, PROFILES)) for one in exchanges]
    await BatchWriter(database).write_batch(
        [DerivedExchange(one, call, (), call_cost(one, call)) for one, call in calls]
    )


def select_members(items: Sequence[dict[str, Any]], *names: str) -> list[Any]:
    return [tuple(item[name] for name in names) for item in items]


async def test_a_call_that_was_tried_again_is_listed_once(database: Database, queries: CallReader) -> None:
    tries = [make_exchange(0, 429), make_exchange(1, 503), make_exchange(2), make_exchange(9, 429, request=ASK + b" ")]
    await put(database, *tries)
    [call, again] = (await queries.run_calls("night-run")).items
    assert call["exchanges"] == [one.id for one in tries[:3]]
    assert (call["id"], call["step"], call["nth"], call["attempts"]) == (tries[0].id, 1, 0, 3)
    assert (call["status"], call["text"], call["complete"]) == (200, "Hi!", True)
    assert (call["usage"]["input_tokens"], call["cost_usd"]) == (1000, pytest.approx(0.00021))
    # The caller waited from the first attempt to the end of the last one.
    assert (call["first_byte_ms"], call["duration_ms"]) == (2412.345678, 2478.901234)
    # `nth` counts calls, not attempts.
    assert (again["step"], again["nth"], again["attempts"], again["status"]) == (4, 1, 1, 429)


async def test_every_exchange_of_a_call_leads_to_it(database: Database, queries: CallReader) -> None:
    tries = [make_exchange(0, 429), make_exchange(1)]
    await put(database, *tries)
    assert await queries.call(tries[1].id) == await queries.call(tries[0].id)
    assert (await queries.call(tries[1].id) or {})["attempts"] == 2


async def test_a_try_that_comes_in_late_is_still_one(database: Database, queries: CallReader) -> None:
    tries = [make_exchange(0, 429), make_exchange(1)]
    await put(database, tries[1])
    assert select_members((await queries.run_calls("night-run")).items, "id", "attempts") == [(tries[1].id, 1)]
    await put(database, tries[0])
    assert select_members((await queries.run_calls("night-run")).items, "id", "attempts") == [(tries[0].id, 2)]


async def test_work_in_the_background_is_one_call(database: Database, queries: CallReader, runs: Runs) -> None:
    looks = [background(n, status) for n, status in enumerate(["queued", "queued", "in_progress"])]
    done = background(3, "completed", USAGE)
    await put(database, *looks, done)
    [call] = (await queries.run_calls("night-run")).items
    assert call["exchanges"] == [one.id for one in (*looks, done)]
    assert (call["method"], call["path"], call["operation"]) == ("POST", "/v1/responses", "chat")
    assert (call["attempts"], call["model_requested"], call["model_returned"]) == (1, "gpt-5", "gpt-5-2025-08-07")
    assert (call["complete"], call["finish_reason"], call["usage"]["reasoning_tokens"]) == (True, "completed", 4)
    assert call["request"] == {"model": "gpt-5", "input": "hi"}
    run = await runs.get("night-run", LATER) or {}
    assert (run["calls"], run["exchanges"], run["tokens"]["input_tokens"]) == (1, 4, 100)
    assert run["cost_usd"] == call["cost_usd"] == pytest.approx(0.000225)


async def test_a_look_at_what_was_done_before_costs_nothing_again(
    database: Database, queries: CallReader, runs: Runs
) -> None:
    await put(database, *(background(n, "completed", USAGE) for n in range(3)))
    assert len((await queries.run_calls("night-run")).items) == 3
    run = await runs.get("night-run", LATER) or {}
    assert (run["calls"], run["tokens"]["input_tokens"]) == (3, 100)
    assert run["cost_usd"] == pytest.approx(0.000225)


async def test_pages_join_without_a_seam_however_many_tries_there_are(database: Database, queries: CallReader) -> None:
    tries = [
        make_exchange(20 * n + k, 200 if k == n % 4 else 500, run=f"run-{n % 2}", request=ASK + b" " * n)
        for n in range(9)
        for k in range(n % 4 + 1)
    ]
    await put(database, *tries)
    newest = await walk(partial(queries.calls, Filters()))
    assert [item["started_at"] for item in newest] == sorted((item["started_at"] for item in newest), reverse=True)
    assert len({item["id"] for item in newest}) == len(newest) == 9
    assert {item["status"] for item in newest} == {200}
    assert sum(item["attempts"] for item in newest) == len(tries)
    in_order = await walk(partial(queries.run_calls, "run-1"))
    assert [item["attempts"] for item in in_order] == [2, 4, 2, 4]


@pytest.mark.parametrize(("retried", "looks"), [(0, [54]), (3, [54]), (12, [54, 20]), (40, [54, 92])])
async def test_a_page_looks_at_few_more_exchanges_than_it_has_calls(
    database: Database, queries: CallReader, page_sizes: list[int], retried: int, looks: list[int]
) -> None:
    attempts = [
        make_exchange(3 * n + k, status, run=f"run-{n % 3}", request=ASK + b" " * n)
        for n in range(90)
        for k, status in enumerate((500, 200) if n >= 90 - retried else (200,))
    ]
    await put(database, *attempts)
    page = await queries.calls(Filters(), 50)
    assert page_sizes == looks
    assert [item["attempts"] for item in page.items] == [2] * retried + [1] * (50 - retried)
    following = await queries.calls(Filters(), 50, page.next)
    assert (len(following.items), following.next) == (40, None)
    assert not {item["id"] for item in page.items} & {item["id"] for item in following.items}


async def test_a_page_looks_at_four_times_as_many_exchanges_while_it_finds_no_call(
    database: Database, queries: CallReader, page_sizes: list[int]
) -> None:
    attempts = [
        make_exchange(3 * n + k, status, request=ASK + b" " * n)
        for n in range(200)
        for k, status in enumerate((500, 200))
    ]
    await put(database, *attempts)
    # A failure that a later attempt made good is no failed call.
    assert (await queries.calls(Filters(error=True), 1)).items == []
    assert page_sizes == [3, 20, 80, 320]


async def test_a_call_is_found_once_by_any_of_its_tries(database: Database, queries: CallReader) -> None:
    tries = [make_exchange(0, 429), make_exchange(1, 429), make_exchange(2)]
    await put(database, *tries)
    for status in (range(429, 430), range(200, 201), range(200, 600)):
        [found] = (await queries.calls(Filters(statuses=(status,)))).items
        assert (found["id"], found["status"], found["attempts"]) == (tries[0].id, 200, 3)
    assert (await queries.calls(Filters(statuses=(range(500, 600),)))).items == []
    [late] = (await queries.calls(Filters(since=NOON + SECOND))).items
    assert late["id"] == tries[0].id


async def test_a_call_is_as_complete_as_its_last_exchange(database: Database, queries: CallReader) -> None:
    await put(database, background(0, "queued"), background(1, "completed", USAGE))
    await put(database, background(0, "queued", run="left", at=NOON - SECOND))
    assert select_members((await queries.calls(Filters(incomplete=True))).items, "run") == [("left",)]
    assert select_members((await queries.calls(Filters(incomplete=False))).items, "run", "complete") == [
        ("night-run", True)
    ]


async def test_other_runs_tries_are_their_own(database: Database, queries: CallReader) -> None:
    await put(database, make_exchange(0, 429, run="one"), make_exchange(1, run="other"))
    assert select_members((await queries.calls(Filters())).items, "run", "attempts") == [("other", 1), ("one", 1)]


async def test_a_run_of_many_looks_is_no_longer_statement(database: Database, queries: CallReader, runs: Runs) -> None:
    looks = [background(0, "queued"), *(background(n, "in_progress") for n in range(1, 300))]
    await put(database, *looks)
    assert (await runs.get("night-run", LATER) or {})["calls"] == 1
    [call] = (await queries.calls(Filters(), limit=1)).items
    assert len(call["exchanges"]) == 300


async def test_the_known_cost_of_a_run_is_shown_beside_the_unknown(database: Database, runs: Runs) -> None:
    unknown = ANSWER.replace(b"gpt-4o-mini-2024-07-18", b"own-model").replace(b"1000", b"7")
    other = make_exchange(1, request=ASK.replace(b"gpt-4o-mini", b"own-model"), response=unknown)
    await put(database, make_exchange(0), other, make_exchange(2, 401))
    run = await runs.get("night-run", LATER) or {}
    assert (run["cost_usd"], run["known_cost_usd"], run["unpriced"]) == (None, pytest.approx(0.00021), 1)
