"""The parts of a recorded response that are replayed, and those that the engine generates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.model import Headers, Outcome, Response
from replay.answer import Answer, source_header
from replay.pacing import INSTANT
from replay.playback import recorded_answer, with_living_cookies
from tests.replay.strategies import SECOND, body, chat, exchange, ok

MARK = source_header("replayed", run="run-1", step=1)


def given_for(response: Response, method: str = "POST") -> Answer:
    return recorded_answer(exchange(replace(chat("a"), method=method), response), INSTANT, MARK)


def with_headers(*headers: tuple[str, str]) -> Headers:
    return given_for(ok(b"12345", headers=headers)).headers


def test_headers_come_in_their_order_and_case_and_the_mark_last() -> None:
    recorded = (("X-B", "1"), ("x-a", "2"), ("X-B", "3"))
    assert with_headers(*recorded) == (*recorded, MARK)


def test_what_belonged_to_the_recorded_connection_is_left_out() -> None:
    hops = [
        ("Connection", "keep-alive, X-Mine"),
        ("X-Mine", "1"),
        ("Transfer-Encoding", "chunked"),
        ("TE", "trailers"),
        ("Alt-Svc", "h3"),
    ]
    assert with_headers(*hops, ("X-Kept", "1")) == (("X-Kept", "1"), MARK)


def test_a_recorded_replay_does_not_speak_twice() -> None:
    assert with_headers(("playhead", 'replayed; run="old"; step=9')) == (MARK,)


def test_a_length_that_redaction_made_wrong_is_mended() -> None:
    assert with_headers(("content-length", "9")) == (("content-length", "5"), MARK)


def test_a_broken_off_body_keeps_the_length_that_it_never_reached() -> None:
    answer = exchange(chat("a"), ok(b"12345", headers=(("Content-Length", "9"),)), outcome="server_closed")
    assert recorded_answer(answer, INSTANT, MARK).headers == (("Content-Length", "9"), MARK)


@pytest.mark.parametrize(
    ("headers", "end"),
    [((("Content-Length", "5"),), "complete"), ((("Content-Length", "9"),), "cut"), ((), "cut")],
)
@pytest.mark.parametrize("outcome", ["refused", "server_closed", "timed_out"])
def test_a_problem_of_ours_is_whole_and_an_answer_that_was_broken_off_is_not(
    headers: Headers, end: str, outcome: Outcome
) -> None:
    answer = exchange(chat("a"), ok(b"12345", headers=headers), outcome=outcome)
    assert recorded_answer(answer, INSTANT, MARK).end == end


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304), ("GET", 204)])
def test_who_has_no_body_keeps_the_length_of_the_one_it_would_have(method: str, status: int) -> None:
    given = given_for(Response(status=status, headers=(("Content-Length", "9"),)), method)
    assert (given.headers, given.pieces) == ((("Content-Length", "9"), MARK), ())


def test_trailers_and_reason_are_given_again() -> None:
    response = Response(status=418, reason="Short and stout", body=body(b"x"), trailers=(("X-Sum", "1"),))
    given = given_for(response)
    assert (given.status, given.reason, given.trailers) == (418, "Short and stout", (("X-Sum", "1"),))


@given(st.lists(st.binary(min_size=1)), st.integers(200, 599).filter(lambda status: status not in (204, 304)))
def test_every_byte_and_every_boundary_is_given_again(pieces: list[bytes], status: int) -> None:
    given = given_for(Response(status=status, body=body(*pieces)))
    assert [piece.data for piece in given.pieces] == pieces


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (source_header("replayed", run="r", step=3), 'replayed; run="r"; step=3'),
        (source_header("replayed", run="r", step=3, reframed=True), 'replayed; run="r"; step=3; reframed'),
        (source_header("miss", run="r"), 'miss; run="r"'),
        (source_header("miss", run='a"b\\ü'), r'miss; run="a\"b\\?"'),
    ],
)
def test_an_answer_says_what_it_is(made: tuple[str, str], text: str) -> None:
    assert made == ("Playhead", text)


THEN = 1_767_225_600 * SECOND  # 1 January 2026
DAY = 86_400 * SECOND


def cookie_given(cookie: str, after: int) -> str:
    recorded = exchange(chat("a"), ok(b"1", headers=(("Set-Cookie", cookie), ("X-Kept", "1"))), started_at=THEN)
    made = with_living_cookies(recorded, THEN + after).response
    assert made is not None
    assert made.headers[1] == ("X-Kept", "1")
    return made.headers[0][1]


def test_a_cookie_that_has_expired_since_lives_as_long_as_it_did() -> None:
    cookie = "sid=a; Path=/; Expires=Fri, 02 Jan 2026 00:00:00 GMT; HttpOnly"
    assert cookie_given(cookie, after=DAY) == "sid=a; Path=/; Expires=Sat, 03 Jan 2026 00:00:00 GMT; HttpOnly"
    assert cookie_given(cookie.replace(", 02 Jan ", ", 02-Jan-"), after=31 * DAY).endswith(
        "Mon, 02 Feb 2026 00:00:00 GMT; HttpOnly"
    )


@pytest.mark.parametrize(
    ("cookie", "days"),
    [
        ("sid=a; Expires=Fri, 02 Jan 2026 00:00:00 GMT", 0),  # it has not expired
        ("sid=; Expires=Thu, 01 Jan 1970 00:00:00 GMT", 9),  # it is to be dropped
        ("sid=a; Max-Age=60", 9),
        ("sid=a; Expires=soon", 9),
        ("sid=a; Expires=Fri, 02 Jan 9999999 00:00:00 GMT", 9),
    ],
)
def test_every_other_cookie_is_given_as_it_was(cookie: str, days: int) -> None:
    assert cookie_given(cookie, after=days * DAY) == cookie
