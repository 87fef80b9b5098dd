"""The script against a simple model that searches all exchanges each time."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replay.script import Policy, RecordedExchange, Script, ScriptIndex, build_index
from store.bundle.bundle import Entry
from store.bundle.exchange_summary import summarize_exchange
from tests.replay.strategies import SECOND, exchange, ok, post

KEYS = ("k1", "k2", "k3")
RAWS = {"k1": ("r1a", "r1b"), "k2": ("r2a", "r2b", "r2c"), "k3": ("r3a",)}


def make_recorded(
    step: int,
    key: str,
    raw: str,
    actor: str | None = None,
    *,
    started_at: int | None = None,
    ended_at: int | None = 1,
) -> RecordedExchange:
    answer = exchange(
        post("https://api.test/", b"{}"), ok(b"{}"), number=step, started_at=started_at, ended_at=ended_at
    )
    return RecordedExchange(
        step=step, key=key, raw=raw, actor=actor, summary=summarize_exchange(Entry(exchange=answer))
    )


def script_of(*pairs: tuple[str, str], policy: Policy = "miss") -> Script:
    return Script(build_index([make_recorded(step, key, raw) for step, (key, raw) in enumerate(pairs, 1)]), policy)


def branches(*said: tuple[str | None, str], policy: Policy = "miss") -> Script:
    """A script of the requests of each actor, in this order."""
    return Script(
        build_index([make_recorded(step, key, f"r{key}", who) for step, (who, key) in enumerate(said, 1)]), policy
    )


def step_of(script: Script, key: str, raw: str, actor: str | None = None) -> int | None:
    taken = script.take_next(key, raw, actor)
    return taken.recorded.step if taken else None


def test_equal_requests_are_answered_in_recorded_order_and_then_not_at_all() -> None:
    script = script_of(("k", "r"), ("k", "r"), ("k", "r"))
    assert [step_of(script, "k", "r") for _ in range(4)] == [1, 2, 3, None]


def test_different_requests_may_come_in_any_order() -> None:
    script = script_of(("a", "ra"), ("b", "rb"), ("a", "ra"))
    assert [step_of(script, "b", "rb"), step_of(script, "a", "ra"), step_of(script, "a", "ra")] == [2, 1, 3]


def test_requests_that_differ_outside_their_key_do_not_trade_answers() -> None:
    script = script_of(("k", "as user 1"), ("k", "as user 2"))
    assert [step_of(script, "k", "as user 2"), step_of(script, "k", "as user 1")] == [2, 1]


def test_a_request_that_changed_outside_its_key_takes_the_next_in_recorded_order() -> None:
    script = script_of(("k", "old 1"), ("k", "old 2"))
    taken = script.take_next("k", "new")
    assert taken
    assert (taken.recorded.step, taken.is_exact) == (1, False)


def test_repeat_last_gives_the_last_for_ever() -> None:
    script = script_of(("k", "r"), ("k", "r"), policy="repeat-last")
    assert [step_of(script, "k", "r") for _ in range(4)] == [1, 2, 2, 2]


def test_cycle_begins_again() -> None:
    script = script_of(("k", "r"), ("k", "r"), policy="cycle")
    assert [step_of(script, "k", "r") for _ in range(5)] == [1, 2, 1, 2, 1]


def test_an_answer_that_was_given_before_says_so_and_does_not_count_as_unused() -> None:
    script = script_of(("k", "r"), policy="cycle")
    first, second = script.take_next("k", "r"), script.take_next("k", "r")
    assert first
    assert second
    assert (first.is_repeat, second.is_repeat, script.unplayed_count) == (False, True, 0)


def test_no_policy_invents_an_answer_for_an_unknown_request() -> None:
    for policy in ("miss", "repeat-last", "cycle"):
        assert script_of(("k", "r"), policy=policy).take_next("other", "other") is None


def test_two_scripts_of_one_recording_do_not_share_a_position() -> None:
    shared = build_index([make_recorded(1, "k", "r"), make_recorded(2, "k", "r")])
    one, other = Script(shared), Script(shared)
    assert [step_of(one, "k", "r"), step_of(other, "k", "r"), step_of(one, "k", "r")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("spans", "ambiguous"),
    [
        ([(0, 10), (10, 20)], set()),
        ([(0, 10), (9, 20)], {0, 1}),
        ([(0, 100), (10, 20), (50, 60), (200, 210)], {0, 1, 2}),
        ([(0, 5), (6, 50), (7, 8)], {1, 2}),
    ],
)
def test_equal_keys_that_overlapped_in_time_are_ambiguous(spans: list[tuple[int, int]], ambiguous: set[int]) -> None:
    entries = [make_recorded(n, "k", "r", started_at=a, ended_at=b - a) for n, (a, b) in enumerate(spans, 1)]
    assert build_index(entries).overlapping == ambiguous


def test_different_keys_that_overlapped_are_not_ambiguous() -> None:
    entries = [
        make_recorded(1, "a", "ra", started_at=0, ended_at=9),
        make_recorded(2, "b", "rb", started_at=5, ended_at=9),
    ]
    assert not build_index(entries).overlapping


def test_an_exchange_without_an_end_lasted_until_its_last_sign_of_life() -> None:
    entries = [make_recorded(1, "k", "r", started_at=0, ended_at=None), make_recorded(2, "k", "r", started_at=SECOND)]
    assert not build_index(entries).overlapping


def test_branches_with_names_do_not_trade_answers_however_they_race() -> None:
    script = branches(("a", "k"), ("b", "k"), ("a", "k"), ("b", "k"))
    assert [step_of(script, "k", "rk", who) for who in ("b", "b", "a", "a")] == [2, 4, 1, 3]


def test_a_branch_that_asks_once_too_often_does_not_take_the_answer_of_another() -> None:
    script = branches(("a", "k"), ("b", "k"))
    assert [step_of(script, "k", "rk", who) for who in ("a", "a", "b")] == [1, None, 2]
    assert [entry.step for entry in script.recorded_exchanges("k", "a")] == [1]


def test_a_branch_repeats_its_own_last_answer() -> None:
    script = branches(("a", "k"), ("b", "k"), policy="repeat-last")
    assert [step_of(script, "k", "rk", who) for who in ("a", "a", "a", "b")] == [1, 1, 1, 2]


def test_a_branch_begins_its_own_cycle_again() -> None:
    script = branches(("a", "k"), ("a", "k"), ("b", "k"), policy="cycle")
    assert [step_of(script, "k", "rk", who) for who in ("a", "a", "a", "b", "b", "a")] == [1, 2, 1, 3, 3, 2]


def test_branches_under_new_names_are_paired_by_their_first_request() -> None:
    script = branches(("a", "k"), ("b", "other"), ("a", "same"), ("b", "same"))
    asked = [("y", "other"), ("x", "k"), ("y", "same"), ("x", "same")]
    assert [step_of(script, key, f"r{key}", who) for who, key in asked] == [2, 1, 4, 3]


def test_a_branch_under_a_new_name_is_not_kept_from_what_another_one_recorded() -> None:
    script = branches(("a", "k"), ("b", "other"))
    assert [step_of(script, key, f"r{key}", "x") for key in ("k", "other")] == [1, 2]


def test_who_has_no_name_gets_first_what_was_nobodys() -> None:
    script = branches(("a", "k"), (None, "k"))
    assert [step_of(script, "k", "rk") for _ in range(3)] == [2, 1, None]


def test_names_that_the_recording_does_not_have_change_nothing() -> None:
    script = script_of(("k", "r"), ("k", "r"))
    assert [step_of(script, "k", "r", who) for who in ("x", "y", "x")] == [1, 2, None]


def test_branches_that_overlapped_are_not_ambiguous() -> None:
    entries = [make_recorded(n, "k", "r", who, started_at=0, ended_at=9) for n, who in enumerate("ab", 1)]
    assert not build_index(entries).overlapping


@dataclass
class Model:
    """The contract of the script, implemented in the simplest and slowest way."""

    pairs: list[tuple[str, str]]
    policy: Policy
    taken: set[int] = field(default_factory=set)
    played: set[int] = field(default_factory=set)

    def take(self, key: str, raw: str) -> int | None:
        place = self._first(key, raw)
        if place is None and self.policy == "cycle":
            self.taken -= {place for place, (of, _) in enumerate(self.pairs) if of == key}
            place = self._first(key, raw)
        elif place is None and self.policy == "repeat-last":
            same = [place for place, pair in enumerate(self.pairs) if pair == (key, raw)]
            place = next(
                iter(reversed(same or [place for place, pair in enumerate(self.pairs) if pair[0] == key])), None
            )
        if place is not None:
            self.taken.add(place)
            self.played.add(place)
        return place

    def _first(self, key: str, raw: str) -> int | None:
        free = [place for place, pair in enumerate(self.pairs) if pair[0] == key and place not in self.taken]
        return next((place for place in free if self.pairs[place][1] == raw), free[0] if free else None)


PAIRS = st.sampled_from([(key, raw) for key in KEYS for raw in RAWS[key]])


class ScriptAgainstModel(RuleBasedStateMachine):
    script: Script
    model: Model

    @initialize(pairs=st.lists(PAIRS, max_size=12), policy=st.sampled_from(["miss", "repeat-last", "cycle"]))
    def begin(self, pairs: list[tuple[str, str]], policy: Policy) -> None:
        self.script = script_of(*pairs, policy=policy)
        self.model = Model(pairs, policy)

    @rule(pair=PAIRS)
    def ask_as_recorded(self, pair: tuple[str, str]) -> None:
        self._ask(*pair)

    @rule(key=st.sampled_from([*KEYS, "k-unknown"]))
    def ask_something_changed(self, key: str) -> None:
        self._ask(key, f"{key} in a new form")

    def _ask(self, key: str, raw: str) -> None:
        wanted = self.model.take(key, raw)
        taken = self.script.take_next(key, raw)
        assert (taken and taken.recorded.step) == (None if wanted is None else wanted + 1)
        if taken:
            assert taken.is_exact == (taken.recorded.raw == raw)

    @invariant()
    def what_never_answered_is_unused(self) -> None:
        if not hasattr(self, "script"):
            return
        left = [place for place in range(len(self.model.pairs)) if place not in self.model.played]
        assert list(self.script.unplayed_places()) == left
        assert self.script.unplayed_count == len(left)

    @invariant()
    def a_recorded_raw_request_tells_its_key(self) -> None:
        if hasattr(self, "script"):
            assert all(self.script.key_of(raw) == key for key, raw in self.model.pairs)


TestScriptAgainstModel = ScriptAgainstModel.TestCase


def test_an_index_of_nothing_is_no_trouble() -> None:
    assert Script(ScriptIndex((), {}, {}, frozenset(), frozenset())).take_next("k", "r") is None


def test_a_report_of_telemetry_is_answered_as_often_as_it_is_sent_and_is_never_unused() -> None:
    entries = [
        make_recorded(1, "k", "r"),
        replace(make_recorded(2, "told", "t1"), is_telemetry=True),
        replace(make_recorded(3, "told", "t2"), is_telemetry=True),
    ]
    script = Script(build_index(entries))
    assert script.unplayed_count == 1
    assert [step_of(script, "told", f"t{n}") for n in (7, 8, 9, 2)] == [2, 3, 3, 3]
    assert step_of(script, "k", "r") == 1
    assert (script.unplayed_count, list(script.unplayed_places())) == (0, [])
    untold = Script(build_index(entries))
    assert step_of(untold, "k", "r") == 1
    assert untold.unplayed_count == 0
