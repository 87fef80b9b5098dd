"""What a client of gRPC learns of a miss: it reads neither the body nor the status of HTTP."""

from urllib.parse import unquote

import pytest

from calls.model import Headers
from replay.forks.fork import blocked_answer
from replay.misses.miss import Miss, miss_answer
from tests.replay.sessions import answer_request, session_of
from tests.replay.strategies import exchange, ok, post

URL = "https://tickets.example.com/tickets.Desk/Refund"


def _grpc(content_type: str = "application/grpc", *more: tuple[str, str]) -> Headers:
    return (("content-type", content_type), ("te", "trailers"), *more)


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"])
async def test_a_miss_says_why_in_the_fields_of_grpc(content_type: str) -> None:
    recorded = exchange(post(URL, b"\0\0\0\0\x02ab", _grpc(content_type)), ok(b"x", headers=_grpc(content_type)))
    answer = await answer_request(session_of(recorded), post(URL, b"\0\0\0\0\x02zz", _grpc(content_type)))
    fields = dict(answer.headers)
    assert (answer.status, answer.body, fields["Content-Type"]) == (424, b"", content_type)
    assert fields["grpc-status"] == "9"  # FAILED_PRECONDITION, after which no client retries
    assert fields["x-should-retry"] == "false"
    assert fields["grpc-message"].isascii()
    message = unquote(fields["grpc-message"])
    assert message.startswith("playhead: replay_miss: ")
    assert "it differs at /body/sha256" in message
    assert "playhead record -- CMD" in message


def test_a_long_reason_fits_into_the_fields_that_clients_take() -> None:
    why = Miss(replay="r", run="run-1", reason="no_match", detail="\u00fc" * 5000, fix="record again")
    answer = miss_answer(why, post(URL, b"x", _grpc()))
    assert sum(len(name) + len(value) + 32 for name, value in answer.headers) < 8192


def test_what_a_fork_blocks_is_told_so_too() -> None:
    answer = blocked_answer(post(URL, b"x", _grpc()), run="run-1", fork="fork-1")
    fields = dict(answer.headers)
    assert (answer.status, answer.body, fields["grpc-status"]) == (403, b"", "7")  # PERMISSION_DENIED
    assert "so it was not sent" in unquote(fields["grpc-message"])
    assert answer.recorded_outcome == "refused"


async def test_what_is_left_of_a_deadline_makes_no_difference() -> None:
    """grpcio states it anew for each call, to the microsecond."""
    recorded = exchange(post(URL, b"x", _grpc("application/grpc", ("grpc-timeout", "9999m"))), ok(b"x"))
    session = session_of(recorded)
    answer = await answer_request(session, post(URL, b"x", _grpc("application/grpc", ("grpc-timeout", "9987m"))))
    assert answer.body == b"x"
    assert "match=strict" in dict(answer.headers)["Playhead"]
    assert session.report()["drift"] == []
