"""An answer that says that a client has the content already is only for a client that has it."""

from typing import Any

import pytest

from calls.model import Headers, Request, Response
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.strategies import PROFILES, exchange, ok, run_of

URL = "https://api.example.com/v1/document"


def get(*headers: tuple[str, str]) -> Request:
    return Request(method="GET", url=URL, headers=headers)


def replay_of(*pairs: tuple[Request, Response]) -> Session:
    exchanges = [exchange(request, response, number=number) for number, (request, response) in enumerate(pairs, 1)]
    return Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)


WHOLE = ok(b"content")
V1 = ("If-None-Match", '"v1"')
V2 = ("if-none-match", '"v2"')
MONDAY = ("If-Modified-Since", "Mon, 23 Nov 2026 10:00:00 GMT")


async def statuses(session: Session, *requests: Request) -> list[Any]:
    answers = [await session.answer(request) for request in requests]
    return [answer and answer.status for answer in answers]


async def test_a_client_whose_cache_is_empty_gets_the_content() -> None:
    session = replay_of((get(V1), ok(status=304)), (get(), WHOLE))
    assert await statuses(session, get(), get(V1)) == [200, 304]
    assert session.report()["verdict"] == "right"
    # The client has cached nothing, and sends a header of its own with each request.
    session = replay_of((get(V1), ok(status=304)), (get(), WHOLE))
    assert await statuses(session, get(("X-Request-Id", "1"))) == [200]


@pytest.mark.parametrize(
    ("then", "now", "status"),
    [
        ([V1], [], 304),
        ([V1], [V2], 304),
        ([MONDAY], [("If-Modified-Since", "Tue, 24 Nov 2026 10:00:00 GMT")], 304),
        ([("If-Match", '"v1"')], [("If-Match", '"v2"')], 412),
    ],
)
async def test_the_answer_to_another_condition_is_a_miss_that_names_it(
    then: Headers, now: Headers, status: int
) -> None:
    session = replay_of((get(*then), ok(status=status)))
    assert await statuses(session, get(*now)) == [424]
    report = session.report()
    assert report["verdict"] == "diverged"
    assert f"recorded as {status} for a request with another {then[0][0].lower()} header" in str(report)


async def test_content_is_for_any_client() -> None:
    session = replay_of((get(), WHOLE), (get(V1), ok(status=304)))
    assert await statuses(session, get(V2), get(V1)) == [200, 304]
