"""Calls of a process that names no run: one agent is one run, and the concurrent conversations of a service are separate runs."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from calls.model import Exchange
from store.attribution.grouping import RunGrouping
from store.attribution.identifiers import MAX_IDENTIFIERS
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.runs import Runs
from tests.store.attribution.test_run_assignment import CHAT, understood
from tests.store.samples import NOON, SECOND, exchange

PROCESS = "agent.py-4711-1f"
EVIDENCE = (("process", "pid 4711: agent.py"), ("owner", PROCESS))
SHOP = "https://shop.example"


class Clock:
    """Consecutive numbers and times of exchanges."""

    def __init__(self) -> None:
        self.at = itertools.count()


def make_exchange(clock: Clock, url: str, request: Any, answer: Any, *evidence: tuple[str, str]) -> Exchange:
    number = next(clock.at)
    body: dict[str, Any] = {} if request is None else {"request": json.dumps(request).encode()}
    run = next((value for source, value in evidence if source != "link"), PROCESS)
    return exchange(
        number,
        at=NOON + number * SECOND,
        url=url,
        response=json.dumps(answer).encode(),
        run=run,
        run_evidence=(*evidence, *EVIDENCE),
        **body,
    )


def model(clock: Clock, messages: list[Any], says: str, *calls: tuple[str, Any]) -> Exchange:
    asked = [
        {"id": name, "type": "function", "function": {"name": name.split(":")[0], "arguments": json.dumps(arguments)}}
        for name, arguments in calls
    ]
    message = {"role": "assistant", "content": says or None, **({"tool_calls": asked} if asked else {})}
    answer = {
        "id": f"chatcmpl-{next(clock.at)}",
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": dict(message), "finish_reason": "stop"}],
    }
    one = make_exchange(clock, CHAT, {"model": "gpt-5", "messages": list(messages)}, answer)
    messages.append(message)
    messages += [{"role": "tool", "tool_call_id": name, "content": "done"} for name, _ in calls]
    return one


def ticket(clock: Clock, name: str, customer: str = "c-77") -> Iterator[Exchange]:
    """Nine calls: three of a model and six of tools, some of which have no argument of the model."""
    order = f"A-{name}1"
    yield make_exchange(clock, f"{SHOP}/tickets/{name}", None, {"order": order})
    messages: list[Any] = [{"role": "user", "content": f"Work on ticket {name}, for order {order}"}]
    yield model(clock, messages, "", (f"order:call_{name}_1", {"order": order}))
    yield make_exchange(clock, f"{SHOP}/orders/{order}", None, {"customer": customer})
    yield make_exchange(clock, f"{SHOP}/customers/{customer}", None, {"customer": customer})
    yield model(clock, messages, "", (f"refund:call_{name}_2", {"order": order, "amount": 12}))
    yield make_exchange(
        clock, f"{SHOP}/refunds", {"order": order, "amount": 12, "currency": "eur"}, {"refund": f"r-9{name}"}
    )
    yield make_exchange(clock, f"{SHOP}/mails", {"about": f"r-9{name}"}, {"sent": True})
    yield model(clock, messages, "It is done.")
    yield make_exchange(clock, f"{SHOP}/tickets/{name}/close", {}, {"closed": True})


def side_by_side(*works: Iterator[Exchange]) -> list[Exchange]:
    """Take one step of each in turn."""
    return [one for row in itertools.zip_longest(*works) for one in row if one is not None]


async def load_runs(
    database: Database, *batches: Sequence[Exchange], store_server: RunGrouping | None = None
) -> dict[str, tuple[str, int]]:
    """The resulting runs, each with its certainty and number of exchanges."""
    kin = store_server or RunGrouping(database, lambda one: DerivedExchange(one, understood(one)))
    for batch in batches:
        await BatchWriter(database).write_batch(
            await kin.group_batch([DerivedExchange(one, understood(one)) for one in batch])
        )
    page = await Runs(database).page(Filters(), NOON)
    return {run["id"]: (run["attribution"], run["exchanges"]) for run in page.items}


async def whereabouts(database: Database, exchanges: Sequence[Exchange]) -> dict[str, str]:
    recorded = await CallReader(database, understood).exchanges_by_id([one.id for one in exchanges])
    return {name: one.run for name, one in recorded.items()}


@pytest.mark.parametrize("size", [1, 4, 100])
async def test_conversations_at_once_are_runs_of_their_own_and_none_is_in_a_wrong_one(
    database: Database, size: int
) -> None:
    clock = Clock()
    names = ("904", "905", "906")
    customers = ("c-77", "c-77", "c-88")
    iterators = [ticket(clock, name, customer) for name, customer in zip(names, customers, strict=True)]
    order = side_by_side(*iterators)
    truth = {one.id: names[n % 3] for n, one in enumerate(order)}
    runs = await load_runs(database, *itertools.batched(order, size))
    where = await whereabouts(database, order)
    found: dict[str, set[str]] = {}
    for name, run in where.items():
        found.setdefault(run, set()).add(truth[name])
    assert runs[PROCESS][0] == "guessed"
    assert {run for run, (level, _) in runs.items() if level == "guessed"} == {PROCESS}
    assert all(len(tickets) == 1 for run, tickets in found.items() if run != PROCESS), "mixed"
    assert len(found) == 4
    # The customer that two tickets share may be requested by both.
    assert runs[PROCESS][1] == 2, [one.request.url for one in order if where[one.id] == PROCESS]


async def test_one_agent_is_one_run_whatever_conversations_it_has_one_after_another(database: Database) -> None:
    clock = Clock()
    order = [*ticket(clock, "904"), *ticket(clock, "905")]
    assert await load_runs(database, *itertools.batched(order, 2)) == {PROCESS: ("derived", 18)}


async def test_calls_of_a_model_at_once_that_no_id_tells_apart_stay_together_by_a_guess(database: Database) -> None:
    clock = Clock()
    first = [model(clock, [{"role": "user", "content": f"Sum up ticket {name}"}], "Fine.") for name in ("904", "905")]
    together = [replace(first[0], ended_at=9 * SECOND), first[1]]
    assert await load_runs(database, together) == {PROCESS: ("guessed", 2)}


async def test_one_call_after_another_without_ids_is_one_agent(database: Database) -> None:
    clock = Clock()
    made = [model(clock, [{"role": "user", "content": f"Sum up ticket {name}"}], "Fine.") for name in ("904", "905")]
    assert await load_runs(database, made) == {PROCESS: ("derived", 2)}


async def test_agents_that_an_agent_starts_belong_to_it(database: Database) -> None:
    clock, parent = Clock(), [{"role": "user", "content": "Compare both"}]
    tasks = [("start:call_1", {"task": "look into ticket 904"}), ("start:call_2", {"task": "look into ticket 905"})]
    begin = model(clock, parent, "", *tasks)
    started = [agent_for(clock, f"Please {task['task']}, now", f"call_s{n}") for n, (_, task) in enumerate(tasks)]
    order = [begin, *side_by_side(*started), model(clock, parent, "They are alike.")]
    assert await load_runs(database, *itertools.batched(order, 2)) == {PROCESS: ("derived", len(order))}


async def test_agents_without_a_known_parent_are_distinguished(database: Database) -> None:
    clock = Clock()
    order = side_by_side(*(agent_for(clock, f"Look into ticket {name}", f"call_{name}") for name in ("904", "905")))
    runs = await load_runs(database, *itertools.batched(order, 2))
    assert sorted(runs.values()) == [("derived", 3), ("derived", 3)]
    assert all(run.startswith("chain:") for run in runs)


def agent_for(clock: Clock, task: str, name: str) -> Iterator[Exchange]:
    messages: list[Any] = [{"role": "user", "content": task}]
    yield model(clock, messages, "", (f"look:{name}a", {"at": "it"}))
    yield model(clock, messages, "", (f"look:{name}b", {"at": "it"}))
    yield model(clock, messages, "Done.")


async def test_a_chat_without_tools_goes_on_from_what_was_said(database: Database) -> None:
    clock = Clock()
    order = side_by_side(*(chat(clock, f"Tell me all about ticket {name}") for name in ("904", "905")))
    runs = await load_runs(database, order)
    assert sorted(runs.values()) == [("derived", 3), ("derived", 3)]


def chat(clock: Clock, question: str) -> Iterator[Exchange]:
    messages: list[Any] = [{"role": "user", "content": question}]
    for n in range(3):
        yield model(clock, messages, f"Part {n} of: {question}")
        messages.append({"role": "user", "content": "go on"})


@pytest.mark.parametrize("prompt", ["", " ".join(f"word{number}" for number in range(2 * MAX_IDENTIFIERS))])
async def test_what_nothing_names_goes_with_the_only_run_of_its_process(database: Database, prompt: str) -> None:
    """A coding agent's prompts have more identifiers than are collected."""
    clock = Clock()
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": prompt}]}
    named = [make_exchange(clock, CHAT, body, {}, ("session-id", "s-1")) for _ in range(2)]
    loose = [make_exchange(clock, f"{SHOP}/orders/{n}", None, {}) for n in range(3)]
    assert await load_runs(database, loose[:1], named[:1], loose[1:2], [named[1], loose[2]]) == {"s-1": ("derived", 5)}


async def test_with_a_second_run_of_the_process_what_nothing_names_is_a_guess(database: Database) -> None:
    clock = Clock()
    named = [
        make_exchange(clock, CHAT, {"model": "gpt-5", "messages": []}, {}, ("session-id", f"s-{n}")) for n in range(2)
    ]
    loose = [make_exchange(clock, f"{SHOP}/orders", {}, {}) for n in range(2)]
    runs = await load_runs(database, [named[0], loose[0]], [loose[1], named[1]])
    assert runs == {"s-0": ("derived", 1), "s-1": ("derived", 1), PROCESS: ("guessed", 2)}


async def test_a_store_server_that_begins_anew_mixes_nothing(database: Database) -> None:
    clock, names = Clock(), ("904", "905", "906")
    order = side_by_side(*(ticket(clock, name) for name in names))
    truth = {one.id: names[n % 3] for n, one in enumerate(order)}
    for batch in itertools.batched(order, 5):
        await load_runs(database, batch)
    where = await whereabouts(database, order)
    for run in set(where.values()) - {PROCESS}:
        assert len({truth[name] for name, at in where.items() if at == run}) == 1
    assert (await load_runs(database))[PROCESS][0] == "guessed"


async def test_what_another_conversation_knows_too_goes_to_none(database: Database) -> None:
    """An agent whose ticket refers to another one reads that before its own model call."""
    clock = Clock()
    works = [list(ticket(clock, "904"))[:6], list(ticket(clock, "905", "c-88"))[:6]]
    before = make_exchange(clock, f"{SHOP}/tickets/906", None, {"duplicate_of": "904", "order": "A-9061"})
    refers = make_exchange(clock, f"{SHOP}/tickets/904", None, {"order": "A-9041"})
    order = [*side_by_side(*map(iter, works)), before, refers]
    await load_runs(database, order)
    assert (await whereabouts(database, [before, refers])) == {before.id: PROCESS, refers.id: PROCESS}
