"""Alignment of two runs: every call once, in order, whatever was added, removed, repeated or moved."""

import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from calls.comparison.alignment import AlignedCall, AlignedPair, align


def items(text: str, lane: str | None = None) -> list[AlignedCall]:
    """Make one call per letter: its strictest mark is the letter, its loosest whether it is a capital."""
    return [AlignedCall(marks=(letter, letter.isupper()), lane=lane) for letter in text]


def render_alignment(one: list[AlignedCall], other: list[AlignedCall]) -> str:
    """Write pairs: `a` for equal letters, `a/b` for different ones, `-a` and `+a` for unpaired ones, `*` for moved ones."""

    def render_pair(pair: AlignedPair) -> str:
        here = str(one[pair.one].marks[0]) if pair.one is not None else ""
        there = str(other[pair.other].marks[0]) if pair.other is not None else ""
        if here and there:
            return ("*" if pair.is_moved else "") + (here if here == there else f"{here}/{there}")
        return f"-{here}" if here else f"+{there}"

    return " ".join(map(render_pair, align(one, other)))


def test_an_added_call_stands_alone_where_it_came() -> None:
    assert render_alignment(items("abc"), items("abxc")) == "a b +x c"
    assert render_alignment(items("abc"), items("xabc")) == "+x a b c"


def test_a_call_that_was_left_out_stands_alone() -> None:
    assert render_alignment(items("abxc"), items("abc")) == "a b -x c"


def test_a_repeated_call_does_not_shift_what_follows() -> None:
    assert render_alignment(items("kabkc"), items("kkabkc")) == "k +k a b k c"
    assert render_alignment(items("kkkk"), items("kk")) == "k k -k -k"


def test_a_changed_call_is_paired_by_a_looser_mark() -> None:
    assert render_alignment(items("abc"), items("axc")) == "a b/x c"
    assert render_alignment(items("aBc"), items("axc")) == "a -B +x c"


def test_calls_that_changed_places_are_still_the_same_calls() -> None:
    assert render_alignment(items("abc"), items("bac")) == "a *b c"


def test_agents_side_by_side_are_aligned_each_by_itself() -> None:
    one = [*items("ab", "x"), *items("ab", "y")]
    other = [*items("a", "y"), *items("ab", "x"), *items("b", "y")]
    assert render_alignment(one, other) == "a b a b"


def test_an_agent_with_another_name_is_known_by_what_it_does() -> None:
    one = [*items("abc", "run-1-x"), *items("def", "run-1-y")]
    other = [*items("def", "run-2-p"), *items("abc", "run-2-q")]
    assert render_alignment(one, other) == "a b c d e f"


def test_nothing_aligns_with_nothing() -> None:
    assert align([], []) == []
    assert render_alignment([], items("a")) == "+a"
    assert render_alignment(items("a"), []) == "-a"


letters = st.text("abcABC", max_size=25)


@given(letters, letters)
def test_every_call_is_there_once_and_equal_ones_never_stay_alone(one: str, other: str) -> None:
    pairs = align(items(one), items(other))
    here = [pair.one for pair in pairs if pair.one is not None]
    assert here == list(range(len(one)))
    assert sorted(pair.other for pair in pairs if pair.other is not None) == list(range(len(other)))
    alone = Counter(one[pair.one] for pair in pairs if pair.one is not None and pair.other is None)
    assert not alone & Counter(other[pair.other] for pair in pairs if pair.other is not None and pair.one is None)


@given(letters, letters)
def test_what_did_not_move_is_in_the_order_of_both_runs(one: str, other: str) -> None:
    still = [pair.other for pair in align(items(one), items(other)) if pair.one is not None and not pair.is_moved]
    paired = [number for number in still if number is not None]
    assert paired == sorted(paired)


@given(letters)
def test_a_run_is_aligned_with_itself_call_by_call(text: str) -> None:
    assert align(items(text), items(text)) == [AlignedPair(n, n) for n in range(len(text))]


@given(letters, st.integers(0, 25), st.sampled_from("abcABC"))
def test_one_call_more_is_one_call_more(text: str, place: int, letter: str) -> None:
    pairs = align(items(text), items(text[:place] + letter + text[place:]))
    assert [pair for pair in pairs if pair.one is None or pair.other is None or pair.is_moved] == [
        pair for pair in pairs if pair.one is None
    ]
    assert sum(pair.one is None for pair in pairs) == 1


def test_two_thousand_calls_in_the_worst_order_take_no_time() -> None:
    one = [AlignedCall(marks=(n, n % 7)) for n in range(2000)]
    began = time.process_time()
    align(one, one[::-1])
    align(one, [AlignedCall(marks=(-n - 1, 0)) for n in range(2000)])
    align(one, [AlignedCall(marks=(0, 0))] * 2000)
    assert time.process_time() - began < 2
