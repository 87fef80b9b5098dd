"""`playhead tail` loses nothing and repeats nothing when its connection is lost, and prints what is safe to print."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import click
import pytest

from proxy.cli.look import tail
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, StoreUnavailable

CALL: dict[str, Any] = {
    "event": "call",
    "at": "2026-11-21T12:00:01.000000Z",
    "run": "r",
    "kind": "model",
    "model": "gpt\x1b[31m-5",
    "operation": "chat",
    "host": "api.openai.com",
    "status": 200,
    "error": False,
    "tools": ["search"],
    "usage": {"input_tokens": 1000, "output_tokens": 20},
    "cost_usd": 0.5,
    "duration_ms": 1234.5,
}


class Streams:
    """An API whose streams yield these events, or raise, one stream after the other."""

    def __init__(self, *streams: Sequence[Mapping[str, Any] | Exception]) -> None:
        self._streams = list(streams)
        self.asked: list[str | None] = []
        self.ended_at: str | None = None

    def get(self, path: str) -> dict[str, Any]:
        if path != "/runs/r":
            raise NotFound("there is no such run")
        return {"ended_at": self.ended_at}

    def stream_events(self, _: Mapping[str, Any], last: str | None) -> Iterator[Mapping[str, Any]]:
        self.asked.append(last)
        for event in self._streams.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


def event(number: int, name: str = "call") -> dict[str, Any]:
    return {**CALL, "event": name, "id": str(number)}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "RETRY_PAUSE", 0)


def test_a_lost_connection_is_opened_again_after_the_last_event(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams(
        [event(1), event(2), StoreUnavailable("gone")],
        [StoreUnavailable("still gone")],
        [],
        [event(3), event(4, "run.ended"), event(5)],
    )
    tail._print_events(cast(Api, streams), {}, "r", as_json=True)
    assert streams.asked == [None, "2", "2", "2"]
    ids = [line.split('"id": "')[1][0] for line in capsys.readouterr().out.splitlines()]
    assert ids == ["1", "2", "3", "4"], "it ends with the run"


def test_a_run_that_has_ended_is_not_waited_for_and_one_that_has_not_begun_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    streams = Streams([event(1, "run.ended")], [event(1, "run.ended")])
    tail._print_events(cast(Api, streams), {}, "later", as_json=True)
    assert capsys.readouterr().err.startswith("playhead: there is no run later yet: waiting for it")
    streams.ended_at = "2026-11-21T12:00:01.000000Z"
    with pytest.raises(Failure, match="run r ended at 2026-11-21T12:00:01Z"):
        tail._print_events(cast(Api, streams), {}, "r", as_json=True)
    assert len(streams.asked) == 1


def test_what_was_never_reached_and_what_stays_away_is_an_error() -> None:
    with pytest.raises(Failure):
        tail._print_events(cast(Api, Streams([Failure("no such server")])), {}, None, as_json=True)
    away = Streams([event(1)], *[[StoreUnavailable("gone")]] * (tail.MOST_RETRIES + 1))
    with pytest.raises(StoreUnavailable):
        tail._print_events(cast(Api, away), {}, None, as_json=True)
    assert len(away.asked) == tail.MOST_RETRIES + 2


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({}, "12:00:01 r gpt\\x1b[31m-5 200 → search  1,020 tokens, $0.500000, 1,234 ms"),
        (
            {"kind": "tool", "status": None, "error": True, "tools": [], "cost_usd": None, "duration_ms": None},
            "12:00:01 r chat api.openai.com no response  1,020 tokens",
        ),
        ({"event": "run.began"}, "12:00:01 r began"),
        ({"event": "run.ended", "reason": "idle"}, "12:00:01 r ended (idle)"),
        ({"event": "gap", "reason": "disk\nfull"}, "12:00:01 r gap: disk\\nfull"),
        (
            {"event": "replay", "replay": "x", "verdict": "right", "served": 3, "missed": 0, "drifted": 1},
            "12:00:01 r replay x: right, 3 served, 0 missed, 1 drifted",
        ),
        (
            {
                "event": "drift",
                "model": "m",
                "was_returned": "a",
                "was_fingerprint": "f",
                "returned": "b",
                "fingerprint": None,
            },
            "12:00:01 r m is answered by another model: a f → b",
        ),
        ({"event": "reset", "at": None, "run": None}, "- some events since the last connection are gone"),
        ({"event": "of a later version"}, "12:00:01 r of a later version"),
    ],
)
def test_each_event_is_one_line(members: dict[str, Any], line: str) -> None:
    assert click.unstyle(tail._line({**CALL, **members})).strip() == line
