"""Nothing is claimed without a check, and a check that could not have failed does not count."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from playhead_inference.verdict import (
    Answer,
    Cell,
    Word,
    decide_verdict,
    fingerprint,
    first_divergence,
    read_control,
    summarize_answers,
)


def make_cell(distinct: int, answers: int = 8) -> Cell:
    return Cell(name="greedy", answers=answers, distinct=distinct, texts=1, diverges_at=None)


def answer(*tokens: int, logprob: float = -1.0) -> Answer:
    return Answer(tokens=tokens, logprobs=tuple(((token, logprob.hex()),) for token in tokens))


@pytest.mark.parametrize(
    ("patched", "control", "differing", "refused", "verdict"),
    [
        ([make_cell(1)], [make_cell(5)], [], [], "holds"),
        ([make_cell(1)], [make_cell(1)], [], [], "inconclusive"),
        ([make_cell(1)], [], [], [], "inconclusive"),
        ([], [make_cell(5)], [], [], "inconclusive"),
        ([make_cell(1, answers=1)], [make_cell(5)], [], [], "inconclusive"),
        ([make_cell(1), make_cell(2)], [make_cell(5)], [], [], "varies"),
        ([make_cell(1)], [make_cell(5)], ["lm_head"], [], "varies"),
        ([make_cell(1)], [make_cell(5)], [], ["LoRA was not tested"], "refused"),
    ],
)
def test_a_verdict_needs_a_control_that_failed(
    patched: list[Cell], control: list[Cell], differing: list[str], refused: list[str], verdict: Word
) -> None:
    assert decide_verdict(patched, control, differing, refused) == verdict


def test_a_check_that_covers_less_than_the_model_has_is_inconclusive() -> None:
    assert (
        decide_verdict([make_cell(1)], [make_cell(5)], [], [], ["aten.new_one n×8: it cannot be run"]) == "inconclusive"
    )
    assert decide_verdict([make_cell(2)], [make_cell(5)], [], [], ["aten.new_one n×8: it cannot be run"]) == "varies"


def test_one_bit_of_a_logprob_is_a_difference() -> None:
    found = summarize_answers("greedy", [answer(1, 2), answer(1, 2), answer(1, 2, logprob=-1.0000000000000002)])
    assert (found.answers, found.distinct, found.texts, found.diverges_at) == (3, 2, 1, None)


@pytest.mark.parametrize(
    ("texts", "position"),
    [([], None), ([(1, 2)], None), ([(1, 2), (1, 3)], 1), ([(1, 2), (1,)], 1), ([(), (4,)], 0), ([(1,), (1,)], None)],
)
def test_texts_part_where_not_all_have_the_same(texts: list[tuple[int, ...]], position: int | None) -> None:
    assert first_divergence(texts) == position


def test_a_fingerprint_is_of_the_facts_and_not_of_their_order() -> None:
    assert fingerprint({"threads": 2, "isa": "AVX2"}) == fingerprint({"isa": "AVX2", "threads": 2})
    assert fingerprint({"threads": 2}) != fingerprint({"threads": 1})


WORKER = {"device": "H100", "dtype": "bfloat16", "torch": "2.13.0", "mode": False, "threads": 2}
MODEL = {"checkpoint": ["sha256:1"]}
PATCHED: dict[str, Any] = {"vllm": "0.32.0", "model": MODEL, "workers": [{**WORKER, "mode": True}]}


def control(checkpoint: str = "sha256:1", **worker: Any) -> str:
    """The result of a control process without the patch."""
    of = {"vllm": "0.32.0", "model": {"checkpoint": [checkpoint]}, "workers": [{**WORKER, **worker}]}
    return json.dumps({"of": of, "cells": [asdict(make_cell(5))]})


def test_a_control_may_come_of_another_process() -> None:
    assert read_control(PATCHED, control()) == [make_cell(5)]
    assert read_control(PATCHED, None) == []


@pytest.mark.parametrize("of", [{"checkpoint": "sha256:2"}, {"device": "A100"}, {"dtype": "float32"}, {"mode": True}])
def test_a_control_of_something_else_is_none(of: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the control"):
        read_control(PATCHED, control(**of))
