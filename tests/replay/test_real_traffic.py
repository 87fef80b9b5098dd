"""Every run of the corpus, replayed: unchanged, in another order, and serialized differently."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from calls.codec.json import InvalidJson, dumps, parse_json
from calls.model import Body, Exchange, Json, Request, Response
from calls.redaction.redactor import Redactor
from calls.redaction.whole_request import redact_request
from replay.replay_options import ReplayOptions
from replay.replays import Replays, ReplaySource
from store.bundle.bundle import Bundle
from tests.replay.strategies import PROFILES, body, exchange, run_of
from tests.support.corpus import Cassette, RecordedExchange, cassettes

REDACTOR = Redactor(key=b"k" * 32)


def request_of(one: RecordedExchange) -> Request:
    return Request(method=one.method, url=one.url, headers=one.request_headers, body=body(one.request_body))


def recorded_as(number: int, one: RecordedExchange) -> Exchange:
    response = Response(status=one.status, headers=one.response_headers, body=body(one.response_body))
    return exchange(redact_request(request_of(one), REDACTOR), response, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A cassette, and the run that Playhead would have recorded."""

    cassette: Cassette
    bundle: Bundle


async def replays_of(run: RecordedRun) -> Replays:
    replays = Replays(redactor=REDACTOR, profiles=PROFILES, options=ReplayOptions(), on_change=lambda _: None)
    await replays.start([ReplaySource(replay=run.cassette.name, bundle=run.bundle)])
    return replays


async def answers(replays: Replays, requests: Iterator[Request]) -> Counter[tuple[int, bytes]]:
    found: Counter[tuple[int, bytes]] = Counter()
    for request in requests:
        answer = await replays.answer(request, run=None, owner="test")
        assert answer is not None
        found[answer.status, answer.body] += 1
    return found


def recorded_answers(cassette: Cassette) -> Counter[tuple[int, bytes]]:
    return Counter((one.status, b"" if one.method == "HEAD" else one.response_body) for one in cassette.exchanges)


@pytest.fixture(scope="module")
def runs() -> list[RecordedRun]:
    return [
        RecordedRun(
            cassette=one, bundle=run_of(*(recorded_as(number, each) for number, each in enumerate(one.exchanges, 1)))
        )
        for one in cassettes()
    ]


async def test_every_recorded_request_gets_its_answer_and_every_replay_is_right(runs: list[RecordedRun]) -> None:
    for run in runs:
        cassette, replays = run.cassette, await replays_of(run)
        for one in cassette.exchanges:
            ((given, _),) = (await answers(replays, iter([request_of(one)]))).items()
            assert given == (one.status, b"" if one.method == "HEAD" else one.response_body), (cassette.name, one.url)
        report = replays.report(cassette.name)
        assert (report["verdict"], report["drift"]) == ("right", []), cassette.name


async def test_in_another_order_the_same_answers_are_given(runs: list[RecordedRun]) -> None:
    for run in (run for run in runs if len(run.cassette.exchanges) > 1):
        cassette = run.cassette
        requests = [request_of(one) for one in cassette.exchanges]
        random.shuffle(requests)
        replays = await replays_of(run)
        assert await answers(replays, iter(requests)) == recorded_answers(cassette), cassette.name
        assert replays.report(cassette.name)["verdict"] == "right"


def reverse_members(value: Json) -> Json:
    """The same JSON with its members in reverse order."""
    if isinstance(value, dict):
        return {name: reverse_members(item) for name, item in reversed(value.items())}
    return [reverse_members(item) for item in value] if isinstance(value, list) else value


def in_another_spelling(one: RecordedExchange) -> Request | None:
    """The same request with other whitespace and order of members; None if it is not plain JSON."""
    try:
        data = dumps(reverse_members(parse_json(one.request_body))).replace(b'":', b'" : ')
        if parse_json(data) != parse_json(one.request_body):
            return None
    except InvalidJson:
        return None
    return Request(method=one.method, url=one.url, headers=one.request_headers, body=Body(data=data, size=len(data)))


async def test_in_another_spelling_the_same_answers_are_given(runs: list[RecordedRun]) -> None:
    asked = 0
    for run in runs:
        cassette = run.cassette
        spelled = [in_another_spelling(one) for one in cassette.exchanges]
        if None in spelled:
            continue
        replays = await replays_of(run)
        given = await answers(replays, (request for request in spelled if request))
        assert given == recorded_answers(cassette), cassette.name
        asked += len(spelled)
    assert asked > 1000
