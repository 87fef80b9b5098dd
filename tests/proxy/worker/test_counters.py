"""A worker counts its answers, and a failed write of the counts does no harm."""

from collections import Counter
from pathlib import Path

import pytest

from calls.model import Body, Request
from proxy.worker.counters import CountingAnswerer, write_counts
from replay.answer import Answer, AnswerSource, source_header
from tests.support.wire import ScriptedAnswerer

REQUEST = Request(method="GET", url="https://api.test/x", http_version="HTTP/1.1", headers=(), body=Body(data=b""))


async def _read_counters(*answers: Answer | None) -> Counter[str]:
    counts: Counter[str] = Counter()
    counting = CountingAnswerer(ScriptedAnswerer(*answers), counts)
    for answer in answers:
        assert await counting.answer(REQUEST, run=None, owner="me") is answer
    return counts


@pytest.mark.parametrize("standing", ["replayed", "edited", "live", "miss"])
async def test_an_answer_counts_as_what_it_says_that_it_is(standing: AnswerSource) -> None:
    theirs = ("Playhead", "someone else's; run=x")
    answer = Answer(status=200, headers=(theirs, source_header(standing, run="r", step=1)))
    assert await _read_counters(answer) == {f"answers/{standing}": 1}


async def test_what_nobody_answers_goes_live_and_what_only_breaks_off_was_recorded() -> None:
    assert await _read_counters(None, Answer(status=0, end="cut")) == {"answers/live": 1, "answers/replayed": 1}


def test_a_count_that_cannot_be_written_waits(tmp_path: Path) -> None:
    write_counts(Counter(a=1), tmp_path / "gone")
