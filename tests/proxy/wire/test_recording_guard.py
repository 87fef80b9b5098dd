"""Pieces are told in a moment, and never behind anything that came after them."""

from collections.abc import Callable

import pytest

from proxy.wire.recording_guard import MUCH, RecordingGuard
from tests.support.wire import MemoryRecorder, Told


class _Later(MemoryRecorder):
    """Keeps what is to be done soon until it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Callable[[], None]] = []

    def soon(self, work: Callable[[], None]) -> None:
        self.works.append(work)


@pytest.fixture
def recorder() -> _Later:
    return _Later()


@pytest.fixture
def tape(recorder: _Later) -> RecordingGuard:
    return RecordingGuard(recorder, "run-1", lambda _: recorder.begin())


def said(recorder: _Later) -> list[tuple[object, ...]]:
    return [word[:3] if word[0] == "data" else word[:1] for word in recorder.only.words]


async def test_pieces_are_told_together_with_those_of_others(recorder: _Later, tape: RecordingGuard) -> None:
    tape.data("response", b"one")
    tape.data("response", b"two")
    assert said(recorder) == []
    assert len(recorder.works) == 1
    recorder.works[0]()
    assert said(recorder) == [("data", "response", b"one"), ("data", "response", b"two")]


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("response", lambda tape: tape.response(200, "OK", "HTTP/1.1", ())),
        ("ended", lambda tape: tape.ended("request")),
        ("closed", lambda tape: tape.closed("completed")),
    ],
)
async def test_what_comes_behind_them_is_told_behind_them(
    recorder: _Later, tape: RecordingGuard, name: str, then: Callable[[RecordingGuard], None]
) -> None:
    tape.data("request", b"one")
    then(tape)
    recorder.works[0]()
    assert said(recorder) == [("data", "request", b"one"), (name,)]


async def test_whoever_asks_whether_all_is_kept_has_all_told(recorder: _Later, tape: RecordingGuard) -> None:
    tape.data("response", b"one")
    assert await tape.kept()
    assert said(recorder) == [("data", "response", b"one")]


async def test_much_does_not_wait(recorder: _Later, tape: RecordingGuard) -> None:
    tape.data("response", b"x" * MUCH)
    assert said(recorder) == []
    tape.data("response", b"x")
    assert said(recorder) == [("data", "response", b"x" * MUCH), ("data", "response", b"x")]


async def test_each_has_the_time_at_which_it_came(recorder: _Later, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    monkeypatch.setattr(Told, "data", lambda _, _side, _data, at, _kind: times.append(at))
    clock = iter([100, 110, 130, 900])
    monkeypatch.setattr("proxy.wire.recording_guard.time.monotonic_ns", lambda: next(clock))
    tape = RecordingGuard(recorder, "run-1", lambda _: recorder.begin())
    tape.data("response", b"one")
    tape.data("response", b"two")
    recorder.works[0]()
    assert times == [10, 30]
