"""Answers of judges, good and bad, and votes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.judgement.prompt import Order
from calls.judgement.verdict import Judgement, JudgeVerdict, Vote, is_quoted, read_vote

LINES = ('{"user":"Please delete record R-17."}', '{"answer":"I said \\"done\\".\\nAll of it."}')


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        ('{"verdict": "pass", "reason": "it is named", "quote": "delete record R-17"}', "pass", "it is named"),
        ('```json\n{"verdict": "fail", "reason": "no", "quote": "R-17"}\n```', "fail", "no"),
        ('{"verdict": "cannot_tell", "reason": "unclear", "quote": ""}', "cannot tell", "unclear"),
        ('{"verdict": "PASS", "reason": "x", "quote": "r-17"}', "pass", "x"),
        ('{"verdict": "pass", "reason": "x", "quote": ""}', "cannot tell", "the judge said pass without a quote: x"),
        (
            '{"verdict": "pass", "reason": "x", "quote": "R-18"}',
            "cannot tell",
            "the judge said pass with a quote that is not in the transcript: x",
        ),
        ('{"verdict": "fine"}', "cannot tell", "the judge's verdict 'fine' is none of those it was offered"),
        ("It passes.", "cannot tell", "the judge did not answer with a JSON object: it said 'It passes.'"),
        ('["pass"]', "cannot tell", "the judge did not answer with a JSON object: it said '[\"pass\"]'"),
        ("", "cannot tell", "the judge did not answer with a JSON object: it said nothing"),
        (None, "cannot tell", "the judge did not answer with a JSON object: it said nothing"),
        ("{}", "cannot tell", "the judge's verdict '' is none of those it was offered"),
    ],
)
def test_an_answer_is_a_verdict_only_with_evidence(answer: str | None, verdict: str, reason: str) -> None:
    vote = read_vote(answer, LINES)
    assert (vote.verdict, vote.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("said", "order", "verdict"),
    [
        ("first", "old first", "fail"),
        ("second", "old first", "pass"),
        ("first", "new first", "pass"),
        ("second", "new first", "fail"),
        ("same", "old first", "pass"),
        ("cannot tell", "new first", "cannot tell"),
        ("pass", "old first", "cannot tell"),
    ],
)
def test_a_comparison_passes_if_the_new_run_is_not_worse(said: str, order: Order, verdict: str) -> None:
    assert read_vote(f'{{"verdict": "{said}", "reason": "", "quote": "R-17"}}', LINES, order).verdict == verdict


def votes(*verdicts: JudgeVerdict) -> Judgement:
    return Judgement(
        run="r", criterion="c", votes=tuple(Vote(verdict=one, reason=f"because {one}") for one in verdicts)
    )


def test_votes_that_disagree_are_no_verdict() -> None:
    assert votes("pass", "pass").verdict == "pass"
    assert votes("pass", "fail", "pass").verdict == "cannot tell"
    assert votes("pass", "fail", "pass").reason == "the votes disagree: 2 pass, 1 fail"
    assert votes("fail").reason == "because fail"


def test_a_judge_that_prefers_a_place_cannot_tell() -> None:
    answer = '{"verdict": "first", "reason": "", "quote": "R-17"}'
    orders: tuple[Order, ...] = ("old first", "new first")
    both = tuple(read_vote(answer, LINES, order) for order in orders)
    assert Judgement(run="r", criterion="c", votes=both).verdict == "cannot tell"


def test_quotes_are_found_whatever_their_spaces_and_escapes() -> None:
    assert is_quoted('I said "done". All of it.', LINES)
    assert is_quoted("please  delete\nrecord", LINES)
    assert not is_quoted("", LINES)
    assert not is_quoted('""', LINES)


@given(st.text(), st.sampled_from([None, "old first", "new first"]))
def test_any_answer_is_read(answer: str, order: Order | None) -> None:
    assert read_vote(answer, LINES, order).verdict in ("pass", "fail", "cannot tell")
