"""A canary says changed, unchanged or cannot tell, with the promised errors; simulated as `bench/canary.py` does for the docs."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.canary import count_calls_until_found, count_false_alarms
from calls.canary.canary_state import (
    CanaryRules,
    CanaryState,
    ChangeFound,
    add_answer,
    begin_canary,
    begin_levels_anew,
    end_shot,
    note_change,
)
from calls.canary.canary_verdict import find_changes, judge_canary
from calls.canary.draws import draw_pins
from calls.canary.observation import Observation, json_shape
from calls.canary.series import MOST_MOMENTS, Series

RULES = CanaryRules(references=2, baseline=100)


def one_answer(exact: str = "a", structure: str = "s", model: str = "m-1", **more: object) -> Observation:
    return Observation(exact=exact, structure=structure, model=model, **more)  # type: ignore[arg-type] # of its members


def ask_shot(state: CanaryState, answers: Sequence[Observation], pin: str = "call") -> CanaryState:
    for answer in answers:
        state = add_answer(state, pin, answer, 7)
    return find_changes({"it": end_shot(state, 8, run="r", failed=0, problem=None)}, 9)["it"]


def state_after_baseline(*, differing: int = 0) -> CanaryState:
    answers = [one_answer()] * (102 - differing) + [one_answer("other")] * differing
    return ask_shot(begin_canary(RULES, 1), answers)


def test_it_says_what_it_needs_before_it_can_tell() -> None:
    verdict = judge_canary(begin_canary(RULES, 1), 1)
    assert (verdict.verdict, verdict.reason) == ("cannot tell", "its baseline needs 102 more answers")
    assert verdict.calls_needed == 102 + 44
    state = ask_shot(begin_canary(RULES, 1), [one_answer()] * 12)
    assert judge_canary(state, 1).reason == "its baseline needs 90 more answers"
    verdict = judge_canary(state_after_baseline(), 1)
    assert (verdict.verdict, verdict.calls_needed) == ("cannot tell", 44)


def test_equal_answers_show_that_it_is_unchanged() -> None:
    state = state_after_baseline()
    for _ in range(3):
        state = ask_shot(state, [one_answer()] * 20)
    verdict = judge_canary(state, 1)
    assert (verdict.verdict, verdict.effect, verdict.calls_needed) == ("unchanged", 0.0, None)
    assert verdict.calls_to_find is not None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (one_answer("b"), "of the answers say something else"),
        (one_answer("b", "t"), "of the answers "),
        (one_answer("b", embedding=1.0), "of the answers "),
    ],
)
def test_other_answers_show_that_it_changed(answer: Observation, words: str) -> None:
    state = ask_shot(state_after_baseline(), [answer, one_answer()] * 20)
    verdict = judge_canary(state, 1)
    assert verdict.verdict == "changed"
    assert words in verdict.reason
    assert verdict.effect is not None
    assert verdict.effect > 0.3
    # It stays so, whatever follows.
    assert judge_canary(ask_shot(state, [one_answer()] * 200), 1).verdict == "changed"


def test_distances_of_answers_that_always_differ_by_their_words_show_a_change() -> None:
    state = begin_canary(RULES, 1)
    for start in range(0, 800, 40):
        state = ask_shot(state, [one_answer(str(n), embedding=n % 3 * 0.1) for n in range(start, start + 40)])
    verdict = judge_canary(state, 1)
    assert (verdict.verdict, verdict.level) == ("unchanged", "embedding")
    assert "or their distance, has not risen" in verdict.reason
    state = ask_shot(state, [one_answer(str(n), embedding=0.7) for n in range(40)])
    verdict = judge_canary(state, 1)
    assert (verdict.verdict, verdict.level) == ("changed", "embedding")
    assert "0.70 from the reference answers by embedding, on average, where they were 0.1" in verdict.reason
    # Words that differ in a half of the answers need thousands of calls to be clear, which a distance does without.
    state = begin_canary(RULES, 1)
    for start in range(0, 400, 40):
        words = (str(n) if n % 2 else "a" for n in range(start, start + 40))
        state = ask_shot(state, [one_answer(word, embedding=0.0) for word in words])
    assert judge_canary(state, 1).verdict == "unchanged"
    # Another model's embeddings are a series of their own; a shot without any is none.
    named = begin_levels_anew(state, msgspec.structs.replace(RULES, embeddings="e-1"))
    assert named.embedding.count == 0
    assert begin_levels_anew(named, RULES).rules.embeddings == "e-1"


def test_another_model_needs_no_statistics() -> None:
    state = ask_shot(state_after_baseline(), [one_answer(model="m-2", exchange="x")])
    assert state.changed == ChangeFound(at=7, stage="model", reason="m-2 answers call, where m-1 did", example="x")
    kept = note_change(state, ChangeFound(at=1, stage="traffic", reason="later"))
    assert kept.changed == state.changed


def test_fingerprints_alternate_without_a_change() -> None:
    one, other = one_answer(fingerprint="f1"), one_answer(fingerprint="f2")
    state = begin_canary(RULES, 1)
    state = ask_shot(state, [one, other] * 51)
    for _ in range(4):
        state = ask_shot(state, [one, other] * 10)
    assert judge_canary(state, 1).verdict == "unchanged"
    state = ask_shot(state, [one_answer(fingerprint="f3")] * 20)
    assert judge_canary(state, 1).verdict == "changed"
    assert "unknown fingerprint" in judge_canary(state, 1).reason


def test_answers_that_always_differ_say_nothing_by_their_words() -> None:
    state = begin_canary(RULES, 1)
    answers = [one_answer(str(n)) for n in range(400)]
    for start in range(0, 400, 40):
        state = ask_shot(state, answers[start : start + 40])
    verdict = judge_canary(state, 1)
    assert verdict.verdict == "unchanged"
    assert "exact differ nearly every time, and say nothing" in verdict.reason
    blind = [one_answer(str(n), str(n)) for n in range(200)]
    verdict = judge_canary(ask_shot(begin_canary(RULES, 1), blind), 1)
    assert (verdict.verdict, verdict.reason) == (
        "cannot tell",
        "its answers differ nearly every time, so that a change would not show",
    )


def test_more_canaries_need_more_evidence_each_and_help_one_another() -> None:
    slight = ask_shot(state_after_baseline(), [one_answer("b")] * 6 + [one_answer()] * 9)
    assert slight.changed is not None
    again = msgspec.structs.replace(slight, changed=None)
    crowd = {str(n): state_after_baseline() for n in range(500)}
    assert find_changes({"it": again, **crowd}, 9)["it"].changed is None
    all_of_them = {str(n): again for n in range(500)}
    assert all(state.changed for state in find_changes(all_of_them, 9).values())


def test_a_change_of_5_percent_is_found_within_400_calls_and_a_quiet_provider_is_left_alone() -> None:
    found = sorted(count_calls_until_found(0.0, 0.05, seed, most=1000) or 10_000 for seed in range(12))
    assert found[10] <= 400
    assert count_false_alarms((0.0, 0.05, 0.3), 15, 1)[0] == 0
    assert sum(count_false_alarms((0.0, 0.02, 0.1, 0.3), 1, seed)[0] for seed in range(30)) <= 2


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 9))
def test_a_series_counts_and_splits(differing: list[bool], every: int) -> None:
    series = Series()
    for number, differs in enumerate(differing, 1):
        series = series.with_answer(differs)
        if number % every == 0:
            series = series.with_moment(5)
    assert (series.differing, series.count) == (sum(differing), len(differing))
    for split in (series.likely_split, series.recent_split(3)):
        assert split.before + split.since == series.count
        assert split.differing_before + split.differing_since == series.differing
    again: Series = msgspec.json.decode(msgspec.json.encode(series), type=Series)
    assert again == series


def test_the_moments_of_a_series_are_bounded() -> None:
    series = Series()
    for _ in range(5000):
        series = series.with_answer(0).with_moment(1)
    assert len(series.moments) <= MOST_MOMENTS
    assert series.moments[-1].number == series.passed_moments == 5000
    assert series.with_moment(1) is series
    for _ in range(40):
        series = series.with_answer(1)
    assert series.evidence > 50


def test_calls_are_drawn_for_references_first_and_then_at_random() -> None:
    state = begin_canary(CanaryRules(references=2), 1)
    assert draw_pins(["a", "b"], state, 3, "s") == ["a", "b", "a"]
    drawn = draw_pins(["a", "b"], state, 1004, "s")
    assert drawn[:4] == ["a", "b", "a", "b"]
    assert 400 < drawn[4:].count("a") < 600
    assert drawn == draw_pins(["a", "b"], state, 1004, "s")
    assert draw_pins(["a"], state, 0, "s") == []


def test_the_shape_of_json() -> None:
    assert json_shape({"a": 1, "b": [True, False, None], "c": []}) == {"a": "number", "b": ["boolean", "null"], "c": []}
    assert json_shape([1, 2.5]) == ["number"]
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    assert "deep" in str(json_shape(deep))  # type: ignore[arg-type] # JSON, by construction
