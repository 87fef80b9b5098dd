"""Variations fit the shape that was learned, are the same for the same seed, and any part of one is a variation too."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.overrides.overrides import read_overrides
from calls.perturbation.draws import Draws
from calls.perturbation.edits import GROUPS, AnswerEdit, ToolAnswer, apply_edits, apply_operations, value_at
from calls.perturbation.entries import override_entries, plain_json
from calls.perturbation.proposals import propose_edits
from calls.perturbation.reduction import find_smallest
from calls.perturbation.schema import BadSchema, shape_from_schema
from calls.perturbation.shape import fits, learn_shape, shape_of
from calls.perturbation.texts import is_id, is_prose, longer_text, other_id
from calls.perturbation.variations import choose_variations

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["R-1042", "a note of two words", "2026-11-25", "open", "closed", "user_9", "https://x.example/1"]),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 53), 1 << 53), TEXTS, st.decimals(-1000, 1000, places=2)
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["id", "name", "a/b", "c~d", "note"]), inner, max_size=4),
    ),
    max_leaves=12,
)
RECORDS: Any = {
    "records": [{"id": "R-1", "name": "Jo Miller", "note": "moved in 2019"}, {"id": "R-2", "name": "Jo Miller"}],
    "total": 2,
}


def answers_of(*values: Any, path: str = "/records") -> list[ToolAnswer]:
    shape = learn_shape(values)
    return [ToolAnswer(step=2 * number, value=value, shape=shape, path=path) for number, value in enumerate(values, 1)]


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), DOCUMENTS)
def test_every_value_fits_the_shape_that_was_learned_from_it(values: Sequence[Any], other: Any) -> None:
    shape = learn_shape(values)
    assert all(fits(shape, value) for value in values)
    assert fits(learn_shape([*values, other]), other)


@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.integers(0, 1 << 40))
def test_variations_are_json_of_the_learned_shape(values: Sequence[Any], seed: int) -> None:
    answers = answers_of(*values)
    proposals = propose_edits(answers, [1, 2], GROUPS, seed)
    for variation in choose_variations(proposals, answers, 5, seed):
        applied = apply_edits(answers, variation.edits)
        assert applied.used == list(variation.edits)
        for answer in answers:
            document = applied.documents[answer.step]
            assert fits(answer.shape, document)
            assert json.loads(json.dumps(plain_json(document))) == plain_json(document)
        read_overrides(override_entries(answers, variation.edits))


@given(st.lists(DOCUMENTS, min_size=1, max_size=2), st.integers(0, 1 << 40))
def test_the_same_seed_makes_the_same_variations(values: Sequence[Any], seed: int) -> None:
    answers = answers_of(*values)
    first, again = (choose_variations(propose_edits(answers, [1], GROUPS, seed), answers, 6, seed) for _ in range(2))
    assert first == again
    assert len({repr(one.edits) for one in first}) == len(first)


@given(st.lists(DOCUMENTS, min_size=1, max_size=2), st.integers(0, 1 << 40), st.data())
def test_any_part_of_a_variation_fits_as_well(values: Sequence[Any], seed: int, data: st.DataObject) -> None:
    answers = answers_of(*values)
    proposals = propose_edits(answers, [1], GROUPS, seed)
    if not proposals:
        return
    edits = data.draw(st.lists(st.sampled_from(proposals), max_size=6))
    applied = apply_edits(answers, edits)
    assert all(fits(answer.shape, applied.documents[answer.step]) for answer in answers)


def kinds(edits: Sequence[AnswerEdit]) -> set[str]:
    return {edit.kind for edit in edits}


def test_all_kinds_of_variations_are_proposed() -> None:
    answers = answers_of(
        RECORDS, {"records": [], "total": 0}, {"records": [{"id": "R-3", "name": "Ada", "open": True}], "total": 7}
    )
    found = kinds(propose_edits(answers, [1, 2], GROUPS, 1))
    assert found >= {
        *(
            "number at an edge",
            "other boolean",
            "empty list",
            "missing member",
            "other order",
            "duplicate",
            "one missing",
        ),
        *(
            "other id",
            "longer text",
            "other language",
            "empty text",
            "injected instruction",
            "distractor",
            "other value",
        ),
        *("429 once", "500 once", "timeout", "cut stream", "malformed JSON", "slow answer"),
    } - {"other value"}
    assert kinds(propose_edits(answers, [1], ["latencies"], 1)) == {"slow answer", "slow first byte"}


def test_a_member_that_always_occurred_is_not_left_out() -> None:
    (answer, *_) = answers = answers_of(RECORDS)
    removed = [
        edit.operations[0]["path"] for edit in propose_edits(answers, [], GROUPS, 1) if edit.kind == "missing member"
    ]
    assert removed == ["/records/0/note"]
    assert fits(answer.shape, {"records": [], "total": 3})
    assert not fits(answer.shape, {"records": []})
    assert not fits(answer.shape, {"records": [], "total": 3, "more": 1})


def test_an_id_is_renamed_wherever_it_occurs_and_answers_for_its_new_name() -> None:
    answers = [
        *answers_of(RECORDS),
        ToolAnswer(
            step=4,
            value={"deleted": "R-2"},
            shape=shape_of({"deleted": "x"}),
            method="DELETE",
            host="crm",
            path="/records/R-2",
        ),
    ]
    edit = next(
        one for one in propose_edits(answers, [], GROUPS, 1) if one.renamed is not None and one.renamed[0] == "R-2"
    )
    assert edit.renamed is not None
    new = edit.renamed[1]
    entries = override_entries(answers, [edit])
    assert entries == [
        {"step": 2, "patch": [{"op": "replace", "path": "/records/1/id", "value": new}]},
        {"step": 4, "patch": [{"op": "replace", "path": "/deleted", "value": new}]},
        {
            "match": {"method": "DELETE", "host": "crm", "path": f"/records/{new}"},
            "answer": {"status": 200, "body": {"deleted": new}},
        },
    ]


def test_edits_whose_place_is_gone_change_nothing() -> None:
    answers = answers_of(RECORDS)
    empty = AnswerEdit(
        kind="empty list", group="tools", step=2, operations=({"op": "replace", "path": "/records", "value": []},)
    )
    gone = AnswerEdit(kind="one missing", group="chunks", step=2, operations=({"op": "remove", "path": "/records/1"},))
    assert apply_edits(answers, [empty, gone]).used == [empty]
    assert apply_edits(answers, [gone, gone]).used == [gone]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("R-1042", None, True),
        ("0b5c6f1e-93a1-4d0e", "value", True),
        ("1042", "id", True),
        ("1042", "total", False),
        ("2026-11-25T10:00:00Z", "id", False),
        ("https://example.com/1", "url", False),
        ("open", "id", False),
        ("a note 1", None, False),
    ],
)
def test_ids_are_recognised_by_form_and_name(text: str, name: str | None, expected: bool) -> None:
    assert is_id(text, name) is expected


@given(st.from_regex(r"\A[A-Za-z]{0,4}-?[0-9]{1,9}[a-z]?\Z"), st.integers(0, 1 << 30))
def test_another_id_has_the_same_form(text: str, seed: int) -> None:
    made = other_id(text, Draws(seed))
    assert made != text
    assert [one.isdigit() for one in made] == [one.isdigit() for one in text]


def test_a_longer_text_begins_like_the_old_one() -> None:
    assert longer_text("moved in 2019").startswith("moved in 2019 moved")
    assert len(longer_text("moved in 2019")) >= 4_000
    assert is_prose("moved in 2019")


def test_operations_that_do_not_apply_say_so() -> None:
    assert apply_operations({"a": [1]}, [{"op": "remove", "path": "/a/1"}]) is None
    assert apply_operations({"a": [1]}, [{"op": "replace", "path": "/b", "value": 1}]) is None
    assert apply_operations({"a": [1, 2]}, [{"op": "move", "from": "/a/0", "path": "/a/1"}]) == ({"a": [2, 1]},)
    assert value_at({"a/b": {"c~d": [7]}}, "/a~1b/c~0d/0") == (7,)


@given(st.sets(st.integers(0, 30), min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=20, unique=True))
def test_the_smallest_part_that_fails_is_found(culprits: set[int], others: list[int]) -> None:
    items = list(dict.fromkeys([*others, *culprits]))

    async def fails(part: Sequence[int]) -> bool:
        return culprits <= set(part)

    assert set(asyncio.run(find_smallest(items, fails))) == culprits


SCHEMA = {
    "type": "object",
    "required": ["records"],
    "additionalProperties": False,
    "properties": {
        "records": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/record"}},
        "total": {"type": "integer", "minimum": 0, "maximum": 9},
        "state": {"enum": ["open", "closed"]},
    },
    "$defs": {"record": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}},
}


def test_a_schema_bounds_what_is_varied() -> None:
    shape = shape_from_schema(SCHEMA)
    value: Any = {"records": [{"id": "R-1"}], "total": 3, "state": "open"}
    answer = ToolAnswer(step=1, value=value, shape=shape)
    made = [apply_edits([answer], [edit]).documents[1] for edit in propose_edits([answer], [], GROUPS, 1)]
    assert all(fits(shape, one) for one in made)
    assert {one.get("total") for one in made} == {0, 1, 3, None}
    assert {one.get("state") for one in made} == {"open", "closed", None}
    assert all(one["records"] for one in made)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "text"}, "unknown type 'text'"),
        ({"$ref": "other.json"}, "is in another document"),
        ({"$ref": "#/$defs/none"}, "leads nowhere"),
        ({"$ref": "#"}, "deeper than"),
        ([], "a schema is an object"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: Any, why: str) -> None:
    with pytest.raises(BadSchema, match=why):
        shape_from_schema(schema)
