"""What a person is shown of a run that is not whole: why, and where."""

from typing import Any

import pytest

from proxy.cli.look import _gap_lines, _Seen, _show_run
from tests.proxy.test_cli_words import call

DIED = "the worker died before the exchange ended"


def gap(reason: str, exchange: str | None = None) -> dict[str, Any]:
    return {"reason": reason, "exchange": exchange, "happened_at": "2026-11-21T12:00:00.000000Z"}


def run(*, complete: bool, gaps: int = 0) -> dict[str, Any]:
    return {"id": "r", "labels": {}, "parent": None, "calls": 2, "gaps": gaps, "complete": complete}


def test_each_reason_is_told_once_with_the_steps_that_it_was_met_at() -> None:
    calls = [call(step, exchanges=[f"e{step}"]) for step in range(1, 9)]
    gaps = [
        gap(DIED, "e2"),
        gap("the disk is full"),
        gap(DIED, "e7"),
        gap("the disk is full"),
        gap("odd\x1b[m", "gone"),
    ]
    assert _gap_lines(gaps, calls) == [
        f"2 gaps at steps 2, 7: {DIED}",
        "2 gaps: the disk is full",
        "1 gap: odd\x1b[m",
    ]
    assert _gap_lines([gap(DIED, f"e{n}") for n in range(9)], calls) == [f"9 gaps at steps 1, 2, 3, 4, 5, …: {DIED}"]


def test_of_many_reasons_a_few_are_told_and_the_others_counted() -> None:
    lines = _gap_lines([gap(f"reason {n}") for n in range(7)], [])
    assert lines == [*(f"1 gap: reason {n}" for n in range(5)), "and 2 other reasons: show --json has all"]


def test_a_step_with_a_gap_does_not_stand_as_if_the_provider_had_closed(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [call(1, exchanges=["e1"]), call(2, exchanges=["e2"], complete=False, outcome="server_closed")]
    _show_run(_Seen(shape=run(complete=False, gaps=1), calls=calls, gaps=[gap(f"{DIED}\x1b", "e2")], lacking=None))
    shown = capsys.readouterr().out
    assert f"1 gap at step 2: {DIED}\\x1b\n" in shown
    assert "200 gap" in shown
    assert "server_closed" not in shown


def test_a_run_that_is_not_all_stored_is_not_called_complete(capsys: pytest.CaptureFixture[str]) -> None:
    _show_run(_Seen(shape=run(complete=True), calls=[], gaps=[], lacking="No space left on device"))
    shown = capsys.readouterr().out
    assert "2 calls, 0 gaps, not all stored yet" in shown
    assert "complete" not in shown
