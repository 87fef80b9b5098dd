"""Answers of an old recording are valid as long as they were when it was made."""

import re

import pytest

from calls.codec.json import dumps
from calls.model import Headers, Json, Request
from replay.recording import build_recording
from replay.reframing.lifetimes import with_recorded_lifetimes
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.sessions import answer_request
from tests.replay.strategies import PROFILES, SECOND, exchange, ok, post, run_of

THEN = 1_767_225_600 * SECOND  # 1 January 2026
DAY = 86_400 * SECOND
SCRIPT = Request(method="GET", url="https://shop.example.com/a.js")
DATE = ("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
AFTER_A_WEEK = ("Date", "Thu, 08 Jan 2026 00:00:00 GMT")


def headers_after(headers: Headers, days: int, *, method: str = "GET", status: int = 200) -> Headers:
    request = Request(method=method, url=SCRIPT.url)
    recorded = exchange(request, ok(b"1", status=status, headers=headers), started_at=THEN)
    made = with_recorded_lifetimes(recorded, THEN + days * DAY)
    assert made.response is not None
    if made.response.headers == headers:
        assert made is recorded
    return made.response.headers


@pytest.mark.parametrize(
    "control",
    [
        (("Cache-Control", "public, max-age=100"),),
        (("cache-control", "private"), ("Cache-Control", "max-age=100")),
        (("Cache-Control", "max-age=100"), ("Age", "99")),
        (("Last-Modified", "Wed, 31 Dec 2025 00:00:00 GMT"),),
    ],
)
def test_what_was_fresh_and_is_stale_now_is_dated_as_far_from_now_as_it_was(control: Headers) -> None:
    assert headers_after((DATE, *control), 7) == (AFTER_A_WEEK, *control)


def test_a_date_of_expiry_moves_with_the_date() -> None:
    made = headers_after((DATE, ("Expires", "Fri, 02 Jan 2026 00:00:00 GMT")), 7)
    assert made == (AFTER_A_WEEK, ("Expires", "Fri, 09 Jan 2026 00:00:00 GMT"))


@pytest.mark.parametrize(
    ("control", "days"),
    [
        ((("Cache-Control", "max-age=864000"),), 7),  # it is still fresh
        ((("Cache-Control", "max-age=100"), ("Age", "100")), 7),  # it was stale
        ((("Cache-Control", "max-age=0, must-revalidate"),), 7),
        ((("Cache-Control", "no-cache, max-age=100"),), 7),
        ((("Cache-Control", "no-store"), ("Last-Modified", "Wed, 31 Dec 2025 00:00:00 GMT")), 7),
        ((("Expires", "0"),), 7),
        ((), 7),
        ((("Cache-Control", "max-age=100"),), 0),
        ((("Cache-Control", "max-age=99999999999999"),), -1),  # the clock was set back
    ],
)
def test_every_other_answer_keeps_its_date(control: Headers, days: int) -> None:
    assert headers_after((DATE, *control), days) == (DATE, *control)


def test_only_reads_are_cached_and_only_some_statuses_without_being_told() -> None:
    asked = (DATE, ("Cache-Control", "max-age=100"))
    assert headers_after(asked, 7, method="POST") == asked
    modified = (DATE, ("Last-Modified", "Wed, 31 Dec 2025 00:00:00 GMT"))
    assert headers_after(modified, 7, status=503) == modified


def body_after(data: bytes, days: int, headers: Headers = ()) -> bytes:
    recorded = exchange(
        post("https://sts.example.com/", b"x"), ok(data[:9], data[9:], headers=headers), started_at=THEN
    )
    made = with_recorded_lifetimes(recorded, THEN + days * DAY)
    assert made.response is not None
    assert made.response.body.size == len(made.response.body.data)
    return made.response.body.data


NAMES = b'{"AccessKeyId": "PLAYHEAD_AB", "Token": "PLAYHEAD_CD", '
HOUR_LATER = THEN // SECOND + 3600


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (NAMES + b'"Expiration" : "2026-01-01T01:00:00Z"}', NAMES + b'"Expiration" : "2026-01-08T01:00:00Z"}'),
        (
            b"<SessionToken>x</SessionToken><Expiration>2026-01-01T01:00:00.000Z</Expiration>",
            b"<SessionToken>x</SessionToken><Expiration>2026-01-08T01:00:00.000Z</Expiration>",
        ),
        (
            b'{"roleCredentials":{"sessionToken":"x","expiration":%d000}}' % HOUR_LATER,
            b'{"roleCredentials":{"sessionToken":"x","expiration":%d000}}' % (HOUR_LATER + 7 * 86_400),
        ),
        (
            b'{"access_token":"x","expires_on":"%d","expires_in":3600}' % HOUR_LATER,
            b'{"access_token":"x","expires_on":"%d","expires_in":3600}' % (HOUR_LATER + 7 * 86_400),
        ),
    ],
    ids=["aws-json", "aws-xml", "aws-sso", "azure"],
)
def test_credentials_live_as_long_as_they_did(then: bytes, now: bytes) -> None:
    assert body_after(then, 7) == now
    assert body_after(then, 0) == then


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (NAMES + b'"Expiration": "2025-12-31T23:00:00Z"}', ()),  # it had expired
        (NAMES + b'"Expiration": "2026-02-01T00:00:00Z"}', ()),  # it has not
        (b'{"offer": "x", "expires_at": "2026-01-01T01:00:00Z"}', ()),  # no credentials
        (NAMES + b'"note": "2026-01-01T01:00:00Z"}', ()),
        (NAMES + b'"Expiration": "2026-01-01T01:00:00Z"}', (("Content-Digest", "sha-256=:x:"),)),
        (NAMES + b'"Expiration": "2026-99-01T01:00:00Z"}', ()),  # no date
    ],
)
def test_every_other_body_stays_as_it_is(data: bytes, headers: Headers) -> None:
    assert body_after(data, 7, headers) == data


async def test_a_replay_gives_both() -> None:
    credentials: Json = {"AccessKeyId": "a", "SessionToken": "b", "Expiration": "2026-01-01T01:00:00Z"}
    cached = ok(dumps(credentials), headers=(DATE, ("Cache-Control", "max-age=100")))
    recording = build_recording(run_of(exchange(SCRIPT, cached, started_at=THEN)), PROFILES)
    session = Session("replay-1", recording, ReplayOptions(), lambda _: None)
    session.wall_clock = lambda: THEN + 7 * DAY
    answer = await answer_request(session, SCRIPT)
    assert AFTER_A_WEEK in answer.headers
    assert re.search(rb'"Expiration":"([^"]*)"', answer.body)[1] == b"2026-01-08T01:00:00Z"  # type: ignore[index]
