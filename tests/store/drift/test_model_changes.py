"""Changes of the model behind a name, found in ordinary runs."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from store.active_profiles import load_profiles
from store.api.deps import Deps
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.drift.model_changes import AnswerComparison, DriftQuestion
from store.drift.model_changes import find_model_changes as store_drift
from store.query.rest_shapes import rfc3339
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RunningStore, import_bundle, is_problem, make_ingester, open_store
from tests.store.samples import NOON, SECOND

HOUR = 3600


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def ran(running_store: RunningStore, name: str, hour: int, **agent: Any) -> list[str]:
    """Store a run that began at this hour, and return the ids of its model calls."""
    made = Agent(turns=2, offset=hour * HOUR, **agent).run(name)
    bundle = Bundle(run={"id": name}, profiles=PROFILES.digest, entries=tuple(Entry(exchange=each) for each in made))
    await import_bundle(running_store, b"".join(bundle_lines(bundle)))
    return [made[0].id, made[2].id]


async def drift(running_store: RunningStore, **query: str) -> dict[str, Any]:
    answer = await running_store.api.get("/v1/drift", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def at(hour: int, seconds: int = 0) -> int:
    return NOON + (hour * HOUR + seconds) * SECOND


async def test_a_provider_that_stays_as_it_is_does_not_drift(running_store: RunningStore) -> None:
    for hour in range(3):
        await ran(running_store, f"run-{hour}", hour)
    drifts = await drift(running_store)
    assert drifts["items"] == []
    assert [variant["calls"] for variant in drifts["variants"]] == [6]
    [answers] = drifts["answers"]
    assert (answers["asked_again"], answers["answered_otherwise"]) == (4, 0)


async def test_another_model_behind_the_same_name_is_found_with_when_and_examples(running_store: RunningStore) -> None:
    before = [*await ran(running_store, "a", 0), *await ran(running_store, "b", 1)]
    after = [
        *await ran(running_store, "c", 2, model="gpt-5-2026-09-09"),
        *await ran(running_store, "d", 3, model="gpt-5-2026-09-09"),
    ]
    [change] = (await drift(running_store))["items"]
    assert (change["provider"], change["model_requested"], change["kind"]) == ("openai", "gpt-5", "model")
    assert change["from"] == {"model_returned": "gpt-5-2026-01-01", "system_fingerprint": "fp_1"}
    assert change["to"] == {"model_returned": "gpt-5-2026-09-09", "system_fingerprint": "fp_1"}
    assert change["first_at"].startswith(rfc3339(at(2))[:19])
    assert change["last_before_at"].startswith(rfc3339(at(1, 20))[:19])
    assert (change["replaced"], change["rolled_out"]) == (True, False)
    assert (change["calls_before"], change["calls_after"]) == (4, 4)
    assert change["examples"] == {"before": before[::-1][:3], "after": after[:3]}
    assert change["same_requests"] == {"asked_again": 2, "answered_otherwise": 0, "example": None}


async def test_a_change_by_which_the_same_request_is_answered_otherwise_says_so(running_store: RunningStore) -> None:
    [first, _] = await ran(running_store, "a", 0)
    [then, _] = await ran(running_store, "b", 1, model="gpt-5-2026-09-09", asks=lambda turn: "something else")
    [change] = (await drift(running_store))["items"]
    assert change["same_requests"] == {"asked_again": 1, "answered_otherwise": 1, "example": [first, then]}


async def test_another_fingerprint_is_a_change_of_its_own_kind(running_store: RunningStore) -> None:
    await ran(running_store, "a", 0)
    await ran(running_store, "b", 1, fingerprint=lambda turn: "fp_2")
    [change] = (await drift(running_store))["items"]
    assert change["kind"] == "fingerprint"
    assert (change["from"]["system_fingerprint"], change["to"]["system_fingerprint"]) == ("fp_1", "fp_2")


async def test_two_that_answer_by_turns_have_not_replaced_one_another(running_store: RunningStore) -> None:
    for hour in range(4):
        await ran(running_store, f"run-{hour}", hour, fingerprint=lambda turn, hour=hour: f"fp_{hour % 2}")
    [change] = (await drift(running_store))["items"]
    assert (change["replaced"], change["rolled_out"]) == (False, False)


async def test_a_model_is_rolled_out_once_the_old_one_has_been_silent_as_long_as_both_answered(
    running_store: RunningStore,
) -> None:
    for hour, model in enumerate(["gpt-5-a", "gpt-5-b", "gpt-5-a", "gpt-5-b"]):
        await ran(running_store, f"run-{hour}", hour, model=model)
    [change] = (await drift(running_store))["items"]
    assert (change["replaced"], change["rolled_out"]) == (False, False)
    await ran(running_store, "run-4", 4, model="gpt-5-b")
    [change] = (await drift(running_store))["items"]
    assert (change["replaced"], change["rolled_out"]) == (False, True)
    assert change["last_before_at"].startswith(rfc3339(at(2, 20))[:19])


async def test_the_same_model_that_answers_otherwise_shows_without_a_word_of_the_provider(
    running_store: RunningStore,
) -> None:
    [first, _] = await ran(running_store, "a", 0)
    [then, _] = await ran(running_store, "b", 1, asks=lambda turn: "something else")
    drifts = await drift(running_store)
    assert drifts["items"] == []
    [answers] = drifts["answers"]
    assert (answers["asked_again"], answers["answered_otherwise"]) == (1, 1)
    assert answers["example"] == [first, then]
    assert answers["first_at"].startswith(rfc3339(at(1))[:19])


IGNORED = (("$.choices[*].message.tool_calls[*].function.arguments", 0), ("$.choices[*].logprobs", 1))
"""What a profile ignores, and how many answers are others all the same."""


async def test_what_a_profile_says_to_ignore_in_answers_is_no_other_answer(tmp_path: Path, database: Database) -> None:
    """As in a diff, the profiles in force apply, even if they are newer than the calls."""
    async with open_store(tmp_path / "spool", database) as before:
        await ran(before, "a", 0)
        await ran(before, "b", 1, asks=lambda turn: "something else")
    rule = '[[profile]]\nname = "mine/1"\nextends = "openai_chat/1"\nmatch = { host = "*" }\n'
    for path, otherwise in IGNORED:
        profiles = load_profiles(f'{rule}answer = {{ ignore = ["{path}"] }}\n')
        desk = Deps(
            store_server=make_ingester(tmp_path / "spool", database), database=database, profiles=profiles, clean=str
        )
        ignoring = AnswerComparison(recorded=desk.call_reader, derive=desk.derive, profiles=profiles)
        [answers] = (await store_drift(database, DriftQuestion(), comparison=ignoring))["answers"]
        assert (answers["asked_again"], answers["answered_otherwise"]) == (1, otherwise), path
        assert (answers["example"] is None, answers["first_at"] is None) == (not otherwise, not otherwise), path


async def test_what_failed_tells_nothing_of_a_model(running_store: RunningStore) -> None:
    await ran(running_store, "a", 0)
    await ran(running_store, "b", 1, status=lambda turn: 500)
    drifts = await drift(running_store)
    assert drifts["items"] == []
    assert [variant["calls"] for variant in drifts["variants"]] == [2]


NARROWED: tuple[tuple[Mapping[str, str], int], ...] = (
    ({}, 1),
    ({"provider": "openai"}, 1),
    ({"provider": "anthropic"}, 0),
    ({"model": "gpt-5"}, 1),
    ({"model": "gpt-4"}, 0),
    ({"since": rfc3339(at(1))}, 1),
    ({"since": rfc3339(at(2))}, 0),
    ({"until": rfc3339(at(1))}, 0),
)


async def test_a_question_can_be_narrowed_and_still_knows_what_was_before(running_store: RunningStore) -> None:
    await ran(running_store, "a", 0)
    await ran(running_store, "b", 1, model="gpt-5-2026-09-09")
    for query, found in NARROWED:
        assert len((await drift(running_store, **query))["items"]) == found, query
    is_problem(await running_store.api.get("/v1/drift", params={"since": "yesterday"}), 422)
