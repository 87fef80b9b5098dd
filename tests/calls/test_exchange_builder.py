"""Every way in which an exchange can end, and events that the table does not allow."""

from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from calls.events import Data, ExchangeClosed, Gap, MessageEnded, Record, RequestStarted, ResponseStarted, Side
from calls.exchange_builder import (
    TABLE,
    UNFINISHED,
    EventName,
    ExchangeBuilder,
    NoRequestHead,
    State,
    build_ordinary,
)
from calls.model import Exchange, Outcome
from tests.calls.strategies import exchanges
from tests.support.exchange_events import exchange_events

ID = "0198c1d2-0000-7000-8000-000000000000"

ASK = RequestStarted(
    id=ID, run="run", started_at=5, method="POST", url="https://h/p", http_version="HTTP/1.1", headers=(("a", "b"),)
)
ASK_DATA = Data(id=ID, at=1, side="request", data=b"ask")
ASK_END = MessageEnded(id=ID, at=2, side="request", size=3)
ANSWER = ResponseStarted(id=ID, at=3, status=200, reason="OK", http_version="HTTP/1.1", headers=())
ANSWER_DATA = Data(id=ID, at=4, side="response", data=b"answer")
ANSWER_END = MessageEnded(id=ID, at=5, side="response", size=6)


def closing_event(outcome: Outcome, error: str | None = None) -> ExchangeClosed:
    return ExchangeClosed(id=ID, at=9, outcome=outcome, error=error)


def builder_of(*records: Record) -> ExchangeBuilder:
    builder = ExchangeBuilder()
    for record in records:
        builder.feed(record)
    return builder


def test_a_whole_exchange() -> None:
    builder = builder_of(ASK, ASK_DATA, ASK_END, ANSWER, ANSWER_DATA, ANSWER_END, closing_event("completed"))
    exchange = builder.build()
    assert builder.is_closed
    assert builder.ignored_events == []
    assert exchange.request.body.data == b"ask"
    assert exchange.response is not None
    assert exchange.response.body.data == b"answer"
    assert (exchange.outcome, exchange.first_byte_at, exchange.ended_at) == ("completed", 3, 9)


@pytest.mark.parametrize(
    ("records", "status", "data"),
    [
        ((ASK, closing_event("client_closed")), None, b""),
        ((ASK, ASK_DATA, closing_event("client_closed")), None, b""),
        ((ASK, ASK_END, closing_event("refused", "no")), None, b""),
        ((ASK, ASK_DATA, ASK_END, closing_event("server_closed", "reset")), None, b""),
        ((ASK, ASK_END, closing_event("timed_out")), None, b""),
        ((ASK, ASK_END, ANSWER, closing_event("client_closed")), 200, b""),
        ((ASK, ASK_END, ANSWER, ANSWER_DATA, closing_event("client_closed")), 200, b"answer"),
        ((ASK, ASK_END, ANSWER, ANSWER_DATA, closing_event("server_closed")), 200, b"answer"),
        ((ASK, ANSWER, ANSWER_DATA, ANSWER_END, closing_event("client_closed")), 200, b"answer"),
        ((ASK, ANSWER, ANSWER_DATA, ASK_DATA, ASK_END, ANSWER_END, closing_event("completed")), 200, b"answer"),
        ((ASK, ANSWER, ANSWER_END, ASK_DATA, ASK_END, closing_event("completed")), 200, b""),
        ((ASK, ASK_END, ANSWER, ANSWER_DATA, ANSWER_END, closing_event("client_closed")), 200, b"answer"),
    ],
)
def test_every_way_to_end(records: tuple[Record, ...], status: int | None, data: bytes) -> None:
    builder = builder_of(*records)
    exchange = builder.build()
    assert builder.is_closed
    assert builder.ignored_events == []
    assert (exchange.response.status if exchange.response else None) == status
    assert (exchange.response.body.data if exchange.response else b"") == data
    assert isinstance(last := records[-1], ExchangeClosed)
    assert (exchange.outcome, exchange.error) == (last.outcome, last.error)


def test_an_exchange_whose_worker_died_reads_as_cut_and_says_so() -> None:
    builder = builder_of(ASK, ASK_DATA, ASK_END, ANSWER, ANSWER_DATA)
    exchange = builder.build()
    assert not builder.is_closed
    assert (exchange.outcome, exchange.ended_at, exchange.error) == ("server_closed", None, UNFINISHED)


def test_nothing_is_an_exchange_before_its_head() -> None:
    builder = builder_of(ANSWER_DATA, closing_event("completed"))
    assert not builder.has_begun
    assert builder.ignored_events == [("idle", "response data"), ("idle", "close")]
    with pytest.raises(NoRequestHead):
        builder.build()


def test_what_comes_after_the_end_changes_nothing() -> None:
    before = (ASK, ASK_DATA, ASK_END, ANSWER, ANSWER_DATA, ANSWER_END, closing_event("completed"))
    late = (ASK, ANSWER, ANSWER_DATA, closing_event("refused"))
    builder = builder_of(*before, *late)
    assert builder.build() == builder_of(*before).build()
    assert [word for _, word in builder.ignored_events] == ["request", "response", "response data", "close"]


def test_a_record_that_is_no_part_of_an_exchange_passes() -> None:
    builder = builder_of(ASK, Gap(run="run", happened_at=1, reason="disk full"))
    assert (builder.state, builder.ignored_events) == ("request open", [])


def test_a_lost_piece_makes_the_body_truncated() -> None:
    builder = builder_of(ASK, ASK_END, ANSWER, ANSWER_END, closing_event("completed"))
    exchange = builder.build()
    assert exchange.request.body.truncated
    assert exchange.is_truncated
    assert exchange.request.body.size == 3


def test_a_capped_body_is_truncated_and_knows_its_size() -> None:
    end = MessageEnded(id=ID, at=5, side="response", size=1000, truncated=True)
    builder = builder_of(ASK, ASK_DATA, ASK_END, ANSWER, ANSWER_DATA, end, closing_event("completed"))
    response = builder.build().response
    assert response is not None
    assert (response.body.size, response.body.truncated) == (1000, True)


def test_redaction_may_change_the_size_without_losing_bytes() -> None:
    data = Data(id=ID, at=4, side="response", data=b"longer than it was", size=6, reencoded=True, redactions=2)
    builder = builder_of(ASK, ASK_DATA, ASK_END, ANSWER, data, ANSWER_END, closing_event("completed"))
    exchange = builder.build()
    assert exchange.response is not None
    body = exchange.response.body
    assert (body.size, body.truncated, body.reencoded, exchange.redactions) == (6, False, True, 2)


def test_a_websocket_s_messages_come_from_both_sides() -> None:
    head = ResponseStarted(id=ID, at=3, status=101, reason="", http_version="HTTP/1.1", headers=())
    messages = [
        Data(id=ID, at=4, side="response", data=b"hello", kind="text"),
        Data(id=ID, at=5, side="request", data=b"", kind="binary"),
        Data(id=ID, at=6, side="request", data=b"\x03\xe8", kind="close"),
    ]
    empty = MessageEnded(id=ID, at=2, side="request", size=0)
    exchange = builder_of(ASK, empty, head, *messages, closing_event("completed")).build()
    assert [chunk.kind for chunk in exchange.request.body.chunks] == ["binary", "close"]
    assert (exchange.request.body.size, exchange.is_truncated) == (2, False)
    assert exchange.response is not None
    assert exchange.response.body.data == b"hello"


def test_the_table_names_every_state_and_leads_nowhere_else() -> None:
    assert set(TABLE) == set(get_args(State.__value__))
    assert {word for moves in TABLE.values() for word in moves} == set(get_args(EventName.__value__))
    assert {state for moves in TABLE.values() for state in moves.values()} <= set(TABLE)


def test_every_state_but_the_ends_can_be_closed() -> None:
    assert [state for state, moves in TABLE.items() if "close" not in moves] == ["idle", "closed"]


@given(exchanges())
def test_an_exchange_is_built_again_from_its_events(exchange: Exchange) -> None:
    builder = builder_of(*exchange_events(exchange))
    assert builder.ignored_events == []
    assert builder.build() == exchange


EVENTS = (
    ASK,
    ASK_DATA,
    ASK_END,
    ANSWER,
    ANSWER_DATA,
    ANSWER_END,
    closing_event("completed"),
    closing_event("client_closed"),
)


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_no_order_of_events_breaks_a_builder(records: list[Record]) -> None:
    builder = builder_of(*records)
    assert builder.has_begun == (ASK in records)
    if builder.has_begun:
        builder.build()


def pieces(side: Side) -> st.SearchStrategy[list[Record]]:
    """Pieces of a body, and sometimes one that is none of it."""
    piece = st.builds(
        Data,
        id=st.just(ID),
        at=st.integers(0, 9),
        side=st.sampled_from((side, side, side, "request", "response")),
        data=st.sampled_from((b"", b"some", b"more")),
        kind=st.sampled_from(("data", "data", "data", "text")),
        size=st.sampled_from((None, None, 4, 9)),
        redactions=st.integers(0, 2),
        reencoded=st.booleans(),
    )
    return st.lists(piece, max_size=3)


def message_end(side: Side) -> st.SearchStrategy[Record]:
    return st.builds(
        MessageEnded,
        id=st.just(ID),
        at=st.just(5),
        side=st.sampled_from((side, side, side, "request", "response")),
        size=st.sampled_from((0, 4, 4, 8, 9)),
        truncated=st.booleans(),
        trailers=st.sampled_from(((), (("a", "b"),))),
    )


@settings(max_examples=500)
@example([ASK_DATA], MessageEnded(ID, 2, "request", 3, truncated=True), [ANSWER_DATA], ANSWER_END, None, [])
@given(
    pieces("request"),
    message_end("request"),
    pieces("response"),
    message_end("response"),
    st.sampled_from((*[None] * 12, 0, 1, 2, -1, -2, -3)),
    st.just([]) | st.lists(st.tuples(st.integers(0, 12), st.sampled_from(EVENTS)), max_size=2),
)
def test_an_ordinary_exchange_is_built_as_a_builder_builds_it(
    request: list[Record],
    request_end: Record,
    response: list[Record],
    response_end: Record,
    lost: int | None,
    others: list[tuple[int, Record]],
) -> None:
    records = [ASK, *request, request_end, ANSWER, *response, response_end, closing_event("completed")]
    if lost is not None:
        del records[lost]
    for place, other in others:
        records.insert(place, other)
    if (found := build_ordinary(records)) is None:
        return
    builder = builder_of(*records)
    assert (builder.ignored_events, builder.is_answered, builder.is_closed) == ([], True, True)
    assert found == builder.build()


@given(exchanges())
def test_most_exchanges_are_ordinary(exchange: Exchange) -> None:
    events = list(exchange_events(exchange))
    kinds = [type(event) for event in events if type(event) is not Data]
    is_ordinary = kinds == [RequestStarted, MessageEnded, ResponseStarted, MessageEnded, ExchangeClosed]
    is_websocket = any(type(event) is Data and event.kind != "data" for event in events)
    assert build_ordinary(events) == (exchange if is_ordinary and not is_websocket else None)
