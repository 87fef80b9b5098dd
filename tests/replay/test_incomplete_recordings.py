"""What a replay answers where the recording is not whole: one side left, broke off, or bytes of it are missing."""

import dataclasses
import json
import threading

import pytest
from msgspec.structs import replace

from calls.events import Gap
from calls.model import Exchange, Request, Response
from store.database.blobs import CorruptData
from tests.replay.sessions import answer_request, miss_request, session_of
from tests.replay.strategies import (
    JSON,
    SECOND,
    body,
    chat,
    exchange,
    model_answer,
    ok,
    run_of,
    said_in_a_stream,
)


async def test_an_upstream_that_broke_off_breaks_off_again_at_the_same_byte() -> None:
    session = session_of(exchange(chat("a"), ok(b"abc", b"de"), outcome="server_closed"))
    answer = await answer_request(session, chat("a"))
    assert (answer.body, answer.end) == (b"abcde", "cut")


async def test_an_upstream_that_never_answered_does_not_answer() -> None:
    session = session_of(exchange(chat("a"), None, outcome="server_closed"))
    answer = await answer_request(session, chat("a"))
    assert (answer.status, answer.pieces, answer.end) == (0, (), "cut")


async def test_where_the_client_left_we_wait_for_it_to_leave() -> None:
    session = session_of(exchange(chat("a"), ok(b"abc"), outcome="client_closed"))
    answer = await answer_request(session, chat("a"))
    assert (answer.body, answer.end) == (b"abc", "hold")
    assert answer.patience > SECOND // 2
    assert session.report()["verdict"] == "right"


async def test_a_client_that_stays_where_the_recorded_one_left_is_a_miss() -> None:
    session = session_of(exchange(chat("a"), ok(b"abc"), outcome="client_closed"))
    answer = await answer_request(session, chat("a"))
    assert answer.answer_waiting_client
    explanation = json.loads(answer.answer_waiting_client().body)["playhead"]
    assert explanation["reason"] == "incomplete"
    assert "--pace recorded" in explanation["fix"], "Node's fetch gives what came at once as one piece"
    report = session.report()
    assert (report["served"], report["missed"], report["verdict"]) == (0, 1, "diverged")


@pytest.mark.parametrize("now", [chat("a", stream=True), chat("a", stream=True, user="another")])
async def test_where_the_client_left_at_the_end_of_the_stream_itself_others_may_wait_for_http_s(now: Request) -> None:
    stream = said_in_a_stream("A")
    session = session_of(exchange(chat("a", stream=True), stream, outcome="client_closed"))
    answer = await answer_request(session, now)
    assert (answer.body, answer.end) == (stream.body.data, "complete")


@pytest.mark.parametrize(("had", "verdict"), [(2, "right"), (1, "diverged")])
async def test_a_client_may_leave_at_the_end_of_the_stream_itself_where_the_recorded_one_waited(
    had: int, verdict: str
) -> None:
    stream = said_in_a_stream("A")
    more = replace(stream, body=body(stream.body.data, b": bye\n\n"))
    session = session_of(exchange(chat("a", stream=True), more))
    answer = await answer_request(session, chat("a", stream=True))
    assert answer.note_client_left
    answer.note_client_left(stream.body.chunks[had - 1].offset + stream.body.chunks[had - 1].size)
    assert session.report()["verdict"] == verdict


async def test_a_request_that_was_answered_before_all_of_it_was_sent_is_named_as_such() -> None:
    sent = chat("a")
    cut_request = replace(
        sent, headers=(*JSON, ("Content-Length", str(sent.body.size))), body=body(sent.body.data[:-3])
    )
    problem = await miss_request(session_of(exchange(cut_request, ok(b"too large", status=413))), sent)
    assert problem["playhead"]["reason"] == "incomplete"
    assert f"the last 3 of its {sent.body.size} bytes" in problem["detail"]
    assert (await miss_request(session_of(exchange(cut_request, ok(b"x"))), chat("b")))["playhead"][
        "reason"
    ] == "no_match"


async def test_an_exchange_with_a_gap_is_refused_with_the_reason_of_the_gap() -> None:
    run = run_of(result := exchange(chat("a"), model_answer("A")))
    run = dataclasses.replace(run, gaps=(Gap("run-1", SECOND, "the disk was full", result.id),))
    assert "the disk was full" in (await miss_request(session_of(bundle=run), chat("a")))["detail"]


@pytest.mark.parametrize("side", ["request", "response"])
async def test_a_body_that_is_lacking_for_another_reason_than_its_size_is_not_said_to_be_too_large(side: str) -> None:
    asked = chat("a")
    cut = replace(asked, body=replace(asked.body, data=asked.body.data[:9], truncated=True))
    answer = exchange(cut, ok(b"{}")) if side == "request" else exchange(asked, truncate_body(ok(b"abc")))
    reason = "a body could not be redacted"
    own, loose = (Gap("run-1", SECOND, reason, whose) for whose in (answer.id, None))
    named = await miss_request(session_of(bundle=dataclasses.replace(run_of(answer), gaps=(own,))), asked)
    assert reason in named["detail"]
    assert "body_limit" not in named["detail"] + named["playhead"]["fix"]
    unnamed = await miss_request(session_of(bundle=dataclasses.replace(run_of(answer), gaps=(loose,))), asked)
    assert reason in unnamed["detail"]
    assert "larger than body_limit" in unnamed["detail"]


@pytest.mark.parametrize("lacking", ["truncated", "no end", "websocket", "refused"])
async def test_an_answer_that_is_not_there_whole_is_refused(lacking: str) -> None:
    answer = {
        "truncated": exchange(chat("a"), truncate_body(ok(b"abc"))),
        "no end": exchange(chat("a"), ok(b"abc"), outcome="server_closed", ended_at=None),
        "websocket": exchange(chat("a"), ok(status=101)),
        "refused": exchange(chat("a"), None, outcome="refused"),
    }[lacking]
    session = session_of(answer)
    assert (await miss_request(session, chat("a")))["playhead"]["reason"] == "incomplete"
    assert session.report()["unused"] == 0


async def test_one_that_cannot_be_read_any_more_is_refused_and_the_others_answer() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))
    entry = session.recording.index.entries[0]
    entry.summary = entry.summary._replace(load_exchange=_corrupt)
    problem = await miss_request(session, chat("a"))
    assert problem["playhead"]["reason"] == "incomplete"
    assert "does not match its digest" in problem["detail"]
    assert (await answer_request(session, chat("b"))).status == 200
    await miss_request(session, chat("c"))


def test_whatever_is_asked_first_of_a_damaged_one_it_cannot_answer() -> None:
    entry = session_of(exchange(chat("a"), model_answer("A"))).recording.index.entries[0]
    entry.summary = entry.summary._replace(load_exchange=_corrupt)
    assert entry.unreplayable_reason == "a stored body does not match its digest"


async def test_a_heavy_one_is_unpacked_beside_the_loop() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")))
    entry = session.recording.index.entries[0]
    whole = entry.summary.load_exchange
    threads: list[int] = []

    def unpack() -> Exchange:
        threads.append(threading.get_ident())
        return whole()

    entry.summary = entry.summary._replace(is_heavy=True, load_exchange=unpack)
    assert (await answer_request(session, chat("a"))).status == 200
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_an_answer_that_we_fail_to_make_is_a_miss() -> None:
    session = session_of(exchange(chat("a"), model_answer("A")), exchange(chat("b"), model_answer("B"), number=2))
    session.recording.index.entries[0].summary = session.recording.index.entries[0].summary._replace(
        load_exchange=_raise_error
    )
    with pytest.raises(ZeroDivisionError):
        await session.answer(chat("a"))
    await answer_request(session, chat("b"))
    assert (session.report()["missed"], session.report()["verdict"]) == (1, "diverged")


def _raise_error() -> Exchange:
    raise ZeroDivisionError


def _corrupt() -> Exchange:
    raise CorruptData("a stored body does not match its digest")


def truncate_body(response: Response) -> Response:
    return replace(response, body=replace(response.body, truncated=True))
