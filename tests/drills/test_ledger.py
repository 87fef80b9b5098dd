"""The auditor audited: a ledger finds every way in which a record can be wrong, or the drills would prove nothing."""

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from calls.model import Body, Exchange, Request, Response
from tests.drills.ledger import NAME, Comparison, Ledger, SeenRequest

BODY = b"all of it"


def seen_request(number: int, **differently: object) -> SeenRequest:
    one = SeenRequest(name=f"agent.{number}", run="run", expected=BODY, status=200, body=BODY, end="whole")
    return dataclasses.replace(one, **differently)  # type: ignore[arg-type]


def exchange(number: int, body: bytes = BODY) -> Exchange:
    return Exchange(
        id=f"id-{number}",
        run="run",
        request=Request(method="GET", url="http://x/", headers=((NAME, f"agent.{number}"),)),
        response=Response(status=200, body=Body(data=body, size=len(body))),
        outcome="completed",
        started_at=number,
        first_byte_at=1,
        ended_at=2,
    )


def compare_ledger(agents: list[SeenRequest], record: list[Exchange]) -> Comparison:
    return Ledger(agents).compare(record)


def test_a_record_of_all_that_was_seen_is_sound() -> None:
    agents = [
        seen_request(0),
        seen_request(1, end="cut", body=BODY[:3]),
        seen_request(2, end="cut", status=None, body=b""),
    ]
    cut = replace(exchange(1, BODY[:5]), outcome="server_closed", ended_at=None)
    comparison = compare_ledger(agents, [exchange(0), cut])
    assert comparison.sound, str(comparison)
    assert not comparison.shorter


@pytest.mark.parametrize(
    ("word", "record"),
    [
        ("lost", list),
        ("doubled", lambda: [exchange(0), exchange(0)]),
        ("doubled", lambda: [exchange(0), replace(exchange(0), id="other")]),
        ("changed", lambda: [exchange(0, BODY[:-1] + b"?")]),
        ("changed", lambda: [replace(exchange(0), ended_at=None)]),
        ("overstated", lambda: [exchange(0, BODY[:4])]),
        ("invented", lambda: [replace(exchange(0, BODY + b"more"), outcome="server_closed")]),
        ("unknown", lambda: [exchange(0), exchange(9)]),
    ],
)
def test_what_is_wrong_with_a_record_is_found(word: str, record: Callable[[], list[Exchange]]) -> None:
    comparison = compare_ledger([seen_request(0)], record())
    assert not comparison.sound
    assert getattr(comparison, word), str(comparison)


def test_what_the_upstream_was_asked_and_nobody_recorded_is_found() -> None:
    comparison = Ledger([seen_request(0)]).compare([exchange(0)], asked=["agent.0", "agent.1"])
    assert comparison.silent == ["agent.1"]
    assert not comparison.sound


def test_an_order_that_is_not_the_order_of_asking_is_found() -> None:
    comparison = compare_ledger([seen_request(0), seen_request(1)], [exchange(1), exchange(0)])
    assert comparison.disordered == ["agent.0"]
    assert not comparison.sound


def test_less_than_an_agent_saw_of_a_cut_answer_is_counted_and_not_condemned() -> None:
    comparison = compare_ledger(
        [seen_request(0, end="cut", body=BODY[:6])], [replace(exchange(0, BODY[:2]), outcome="server_closed")]
    )
    assert comparison.shorter == ["agent.0"]
    assert comparison.sound
