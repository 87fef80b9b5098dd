"""Calls that are answered before their request ends: what is sent when, and what is refused."""

from typing import Any

import pytest
from msgspec.structs import replace

from calls.model import Body, Chunk, Exchange, Headers, Request, Response
from calls.redaction.redactor import Redactor
from replay.answer import Answer, Duplex
from replay.duplex import is_duplex
from replay.replays import Replays
from tests.replay.strategies import run_of
from tests.replay.test_replays import replays_of

URL = "https://speech.example.com/speech.Speech/Recognize"
GRPC: Headers = (("content-type", "application/grpc"),)
MS = 1_000_000
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


def _body(*pieces: tuple[int, bytes]) -> Body:
    """A body whose pieces came at these milliseconds."""
    chunks, data = [], b""
    for at, piece in pieces:
        chunks.append(Chunk(at * MS, len(data), len(piece)))
        data += piece
    return Body(data=data, chunks=tuple(chunks), size=len(data))


def _call(
    sent: tuple[tuple[int, bytes], ...],
    answers: tuple[tuple[int, bytes], ...],
    *,
    began: int,
    ended: int,
    number: int = 1,
    headers: Headers = GRPC,
) -> Exchange:
    return Exchange(
        id=f"0199aaaa-0000-7000-8000-{number:012d}",
        run="run-1",
        request=Request(method="POST", url=URL, http_version="HTTP/2", headers=headers, body=_body(*sent)),
        response=Response(
            status=200, http_version="HTTP/2", headers=GRPC, body=_body(*answers), trailers=(("grpc-status", "0"),)
        ),
        outcome="completed",
        started_at=number * 1000 * MS,
        first_byte_at=began * MS,
        ended_at=ended * MS,
    )


def turns(first: bytes = b"one", number: int = 1, headers: Headers = GRPC) -> Exchange:
    """The client says two things, and waits for the answer to each."""
    sent, answers = ((1, first), (5, b"two")), ((3, b"ONE"), (7, b"TWO"))
    return _call(sent, answers, began=2, ended=9, number=number, headers=headers)


async def _open(replays: Replays, headers: Headers = GRPC) -> Duplex | None:
    request = Request(method="POST", url=URL, http_version="HTTP/2", headers=headers)
    return await replays.open_duplex(request, run=None, owner="127.0.0.1:1")


async def _open_replays(*exchanges: Exchange, **options: Any) -> tuple[Replays, Duplex]:
    replays = await replays_of(run_of(*exchanges), **options)
    duplex = await _open(replays)
    assert duplex is not None
    return replays, duplex


def _ready(answer: Answer) -> list[bytes]:
    """The pieces that may be sent now."""
    ready: list[bytes] = []
    for piece in answer.pieces:
        assert piece.ready_data is not None
        if (data := piece.ready_data()) is None:
            break
        ready.append(data)
    return ready


def report_of(replays: Replays) -> dict[str, Any]:
    return replays.reports()[0]


async def test_each_piece_waits_for_what_came_before_it() -> None:
    replays, duplex = await _open_replays(turns())
    answer = duplex.receive(b"one")
    assert answer is not None
    assert _ready(answer) == [b"ONE"]
    assert duplex.receive(b"tw") is None
    assert _ready(answer) == [b"ONE"]
    assert duplex.receive(b"o") is None
    assert _ready(answer) == [b"ONE", b"TWO", b""]
    duplex.end()
    assert not duplex.has_diverged
    assert (report_of(replays)["served"], report_of(replays)["missed"]) == (1, 0)


async def test_the_division_of_the_request_does_not_matter() -> None:
    _, duplex = await _open_replays(turns())
    answers = [duplex.receive(bytes([byte])) for byte in b"onetwo"]
    begun = [answer for answer in answers if answer is not None]
    assert len(begun) == 1
    assert _ready(begun[0]) == [b"ONE", b"TWO", b""]


@pytest.mark.parametrize("rest", [b"twX", b"two and more"])
async def test_a_request_that_leaves_the_recording_is_a_miss(rest: bytes) -> None:
    replays, duplex = await _open_replays(turns())
    answer = duplex.receive(b"one")
    assert answer is not None
    assert duplex.receive(rest) is None
    assert duplex.has_diverged
    assert _ready(answer) == []
    [entry] = report_of(replays)["misses"]
    assert (entry["reason"], entry["nearest"]["step"]) == ("no_match", 1)
    assert f"in the first {3 + len(rest)} bytes" in entry["detail"]
    assert report_of(replays)["served"] == 0
    assert report_of(replays)["verdict"] == "diverged"


async def test_a_request_that_ends_too_early_is_a_miss() -> None:
    replays, duplex = await _open_replays(turns())
    assert duplex.receive(b"one") is not None
    duplex.end()
    assert duplex.has_diverged
    assert report_of(replays)["missed"] == 1


async def test_a_request_that_begins_otherwise_is_refused_at_once() -> None:
    """Its client may be waiting for an answer before it sends more."""
    replays, duplex = await _open_replays(turns())
    answer = duplex.receive(b"two")
    assert answer is not None
    assert dict(answer.headers)["grpc-status"] == "3"
    assert report_of(replays)["missed"] == 1
    assert duplex.receive(b"more") is None
    assert not duplex.has_diverged


async def test_where_it_may_be_answered_when_it_is_complete_it_is_not_refused() -> None:
    whole = _call(((1, b"all"),), ((3, b"ALL"),), began=2, ended=4, number=2)
    _, duplex = await _open_replays(turns(), whole)
    assert duplex.receive(b"all") is None


async def test_what_may_go_live_is_not_refused() -> None:
    _, duplex = await _open_replays(turns(), on_miss="live")
    assert duplex.receive(b"two") is None


async def test_the_call_is_found_by_what_it_begins_with() -> None:
    replays = await replays_of(run_of(turns(b"uno"), turns(b"one", 2)))
    for first, step in ((b"one", 2), (b"uno", 1)):
        duplex = await _open(replays)
        assert duplex is not None
        answer = duplex.receive(first)
        assert answer is not None
        assert f"step={step}" in dict(answer.headers)["Playhead"]
    assert await _open(replays) is None  # each answers once


async def test_a_secret_matches_its_placeholder() -> None:
    said = f"\0\0\0\0\x50key {SECRET}\0".encode()
    exchange = turns(said)
    redactor = Redactor(key=b"k" * 32).redact_request_head("POST", URL, GRPC).new_body_redactor()
    redacted = b"".join(piece.data for piece in (*redactor.feed(exchange.request.body.data, 0), *redactor.finish()))
    assert SECRET.encode() not in redacted
    assert len(redacted) == len(exchange.request.body.data)
    recorded = replace(exchange.request, body=replace(exchange.request.body, data=redacted))
    replays, duplex = await _open_replays(replace(exchange, request=recorded))
    answer = duplex.receive(said)
    assert answer is not None
    assert duplex.receive(b"two") is None
    assert _ready(answer) == [b"ONE", b"TWO", b""]
    assert report_of(replays)["missed"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        (("content-type", "application/json"),),
        (("content-type", "application/connect+json"),),
        (("content-type", "multipart/form-data; boundary=x"),),
        (*GRPC, ("content-length", "6")),
    ],
)
async def test_what_has_a_key_of_its_values_or_a_length_waits_for_its_end(headers: Headers) -> None:
    assert await _open(await replays_of(run_of(turns(headers=headers))), headers) is None


def test_only_an_answer_between_the_parts_of_a_request_makes_a_duplex_call() -> None:
    assert is_duplex(turns())
    # Answered when it was complete, as all ordinary calls are.
    assert not is_duplex(_call(((1, b"a"), (2, b"b")), ((4, b"A"),), began=3, ended=5))
    # Refused early: the rest of the request had no part in the answer.
    refused = _call(((1, b"a"), (5, b"b")), ((3, b"A"),), began=2, ended=4)
    assert not is_duplex(refused)
    # What was sent last is answered by trailers alone.
    assert is_duplex(_call(((1, b"a"), (5, b"b")), ((3, b"A"),), began=2, ended=6))


async def test_a_call_to_a_url_that_was_not_recorded_is_refused_when_its_body_begins() -> None:
    replays = await replays_of(run_of(turns()))
    request = Request(method="POST", url=f"{URL}/Other", http_version="HTTP/2", headers=GRPC)
    duplex = await replays.open_duplex(request, run=None, owner="127.0.0.1:1")
    assert duplex is not None
    assert duplex.receive(b"") is None
    answer = duplex.receive(b"one")
    assert answer is not None
    assert dict(answer.headers)["grpc-status"] == "3"
    assert duplex.receive(b"two") is None
    assert report_of(replays)["missed"] == 1


async def test_it_is_not_where_it_may_go_live_or_is_no_grpc() -> None:
    cases: list[tuple[Headers, dict[str, Any]]] = [(GRPC, {"on_miss": "live"}), ((), {})]
    for headers, options in cases:
        replays = await replays_of(run_of(turns()), **options)
        request = Request(method="POST", url=f"{URL}/Other", http_version="HTTP/2", headers=headers)
        assert await replays.open_duplex(request, run=None, owner="127.0.0.1:1") is None
