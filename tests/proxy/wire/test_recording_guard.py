"""Pieces are reported a moment later, but always before later events."""

from collections.abc import Callable

import pytest

from proxy.wire.recording_guard import MAX_PENDING_BYTES, RecordingGuard
from tests.support.wire import MemoryExchange, MemoryRecorder


class _Later(MemoryRecorder):
    """Collects the scheduled calls instead of running them."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Callable[[], None]] = []

    def call_soon(self, work: Callable[[], None]) -> None:
        self.works.append(work)


@pytest.fixture
def recorder() -> _Later:
    return _Later()


@pytest.fixture
def guard(recorder: _Later) -> RecordingGuard:
    return RecordingGuard(recorder, "run-1", lambda _: recorder.begin())


def recorded_words(recorder: _Later) -> list[tuple[object, ...]]:
    return [word[:3] if word[0] == "data" else word[:1] for word in recorder.only.words]


async def test_pieces_are_reported_together_with_those_of_others(recorder: _Later, guard: RecordingGuard) -> None:
    guard.record_data("response", b"one")
    guard.record_data("response", b"two")
    assert recorded_words(recorder) == []
    assert len(recorder.works) == 1
    recorder.works[0]()
    assert recorded_words(recorder) == [("data", "response", b"one"), ("data", "response", b"two")]


@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("response", lambda guard: guard.record_response_head(200, "OK", "HTTP/1.1", ())),
        ("ended", lambda guard: guard.record_end("request")),
        ("closed", lambda guard: guard.record_close("completed")),
    ],
)
async def test_later_events_are_reported_after_them(
    recorder: _Later, guard: RecordingGuard, name: str, then: Callable[[RecordingGuard], None]
) -> None:
    guard.record_data("request", b"one")
    then(guard)
    recorder.works[0]()
    assert recorded_words(recorder) == [("data", "request", b"one"), (name,)]


async def test_waiting_for_the_spool_flushes_what_was_reported(recorder: _Later, guard: RecordingGuard) -> None:
    guard.record_data("response", b"one")
    assert await guard.wait_until_recorded()
    assert recorded_words(recorder) == [("data", "response", b"one")]


async def test_much_does_not_wait(recorder: _Later, guard: RecordingGuard) -> None:
    guard.record_data("response", b"x" * MAX_PENDING_BYTES)
    assert recorded_words(recorder) == []
    guard.record_data("response", b"x")
    assert recorded_words(recorder) == [("data", "response", b"x" * MAX_PENDING_BYTES), ("data", "response", b"x")]


async def test_each_has_the_time_at_which_it_came(recorder: _Later, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    monkeypatch.setattr(MemoryExchange, "record_data", lambda _, _side, _data, at, _kind: times.append(at))
    clock = iter([100, 110, 130, 900])
    monkeypatch.setattr("proxy.wire.recording_guard.time.monotonic_ns", lambda: next(clock))
    guard = RecordingGuard(recorder, "run-1", lambda _: recorder.begin())
    guard.record_data("response", b"one")
    guard.record_data("response", b"two")
    recorder.works[0]()
    assert times == [10, 30]


async def test_the_head_of_a_response_is_reported_with_its_pieces(recorder: _Later, guard: RecordingGuard) -> None:
    guard.record_response_head(200, "OK", "HTTP/1.1", (("A", "b"),))
    guard.record_data("response", b"one")
    assert recorded_words(recorder) == []
    assert len(recorder.works) == 1
    recorder.works[0]()
    assert recorded_words(recorder) == [("response",), ("data", "response", b"one")]


async def test_the_head_of_a_response_is_reported_before_its_end(recorder: _Later, guard: RecordingGuard) -> None:
    guard.record_response_head(200, "OK", "HTTP/1.1", ())
    guard.record_end("response")
    assert recorded_words(recorder) == [("response",), ("ended",)]


async def test_pieces_of_a_response_are_reported_together(recorder: _Later, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[bytes]] = []
    monkeypatch.setattr(
        MemoryExchange, "record_response_pieces", lambda _, pieces: groups.append([data for _, data in pieces])
    )
    guard = RecordingGuard(recorder, "run-1", lambda _: recorder.begin())
    guard.record_response_head(200, "OK", "HTTP/1.1", ())
    guard.record_data("response", b"one")
    guard.record_data("response", b"two")
    guard.record_data("response", b"message", "text")
    guard.record_data("response", b"three")
    recorder.works[0]()
    assert groups == [[b"one", b"two"], [b"three"]]
    assert recorded_words(recorder) == [("response",), ("data", "response", b"message")]
