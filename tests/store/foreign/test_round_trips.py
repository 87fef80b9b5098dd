"""An exported and imported run has the same calls, keys and bodies; VCR.py and mitmproxy read the files as well."""

import gzip
import http.client
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest
import vcr
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from vcr.cassette import Cassette

from calls.derive import derive_call
from calls.model import Call, Chunk, ChunkKind, Exchange, Headers, Request, Response
from calls.redaction.redactor import Redactor
from store.active_profiles import load_profiles
from store.bundle.bundle import Entry
from store.foreign import har
from store.foreign import vcr as cassettes
from store.foreign.adopt import Adoption
from store.foreign.contents import Found, Interaction
from store.foreign.parts import messages_body, one_chunk_body
from store.foreign.write import Export
from tests.store.exchanges import conversation, exchange
from tests.store.foreign.har12 import SCHEMA
from tests.support.corpus import RecordedExchange
from tests.support.corpus import cassettes as corpus
from tests.support.examples import many_examples

PROFILES = load_profiles(None)
REDACTOR = Redactor(key=b"k" * 32, profiles=PROFILES)
SAMPLE = 25
"""The test reads one of so many cassettes of the corpus."""


def adopt_all(found: Iterable[Found]) -> list[Exchange]:
    adoption = Adoption(run="a", redactor=REDACTOR, default_started_at=1)
    made = list(adoption.adopt(found))
    assert adoption.skipped == []
    return made


def entries(made: Iterable[Exchange]) -> list[Entry]:
    return [Entry(exchange=one) for one in made]


def through_vcr(made: Sequence[Exchange]) -> list[Exchange]:
    return adopt_all(cassettes.from_yaml(b"".join(Export().vcr(entries(made)))))


def through_har(made: Sequence[Exchange]) -> list[Exchange]:
    data = b"".join(Export().har(entries(made), "0"))
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(data))
    return adopt_all(har.read_har(data))


def same(made: Sequence[Exchange], again: Sequence[Exchange]) -> None:
    """Check that everything that a foreign format can represent is unchanged."""
    assert len(made) == len(again)
    for one, other in zip(made, again, strict=True):
        assert one.response is not None
        assert other.response is not None
        assert (other.request.method, other.request.url) == (one.request.method, one.request.url)
        assert other.request.body.data == one.request.body.data
        assert (other.response.status, other.response.body.data) == (one.response.status, one.response.body.data)
        assert group_headers(other.response.headers) == group_headers(one.response.headers)
        assert meaning(derive_call(other, PROFILES)) == meaning(derive_call(one, PROFILES))


def group_headers(headers: Headers) -> Headers:
    """Group headers by name, with the values of each in order, which is all that a cassette keeps."""
    return tuple(sorted(((name.lower(), value) for name, value in headers), key=lambda pair: pair[0]))


def meaning(call: Call) -> Call:
    return replace(call, exchanges=())


@pytest.fixture(scope="module")
def talk() -> list[Exchange]:
    """A conversation, a compressed answer, an image, a stream, an empty answer."""
    packed = gzip.compress(b'{"object": "chat.completion", "choices": []}')
    stream = b'data: {"choices": []}\r\n\r\ndata: [DONE]\n\n'
    odd = [
        answering(packed, ("content-type", "application/json"), ("content-encoding", "gzip")),
        answering(b"\x89PNG\r\n\x1a\n\x00\xff", ("Content-Type", "image/png")),
        answering(stream, ("content-type", "text/event-stream"), ("Set-Cookie", "a=***"), ("set-cookie", "b=***")),
        answering(b""),
    ]
    return [replace(one, started_at=n * 1000) for n, one in enumerate([*conversation(3), *odd], 1)]


def answering(data: bytes, *headers: tuple[str, str]) -> Exchange:
    made = exchange(b'{"model": "m", "messages": []}', b"")
    assert made.response is not None
    response = replace(made.response, headers=headers, body=one_chunk_body(data))
    return replace(made, response=response)


def test_a_run_goes_through_a_cassette(talk: list[Exchange]) -> None:
    same(talk, through_vcr(talk))


def test_a_run_goes_through_an_archive_with_its_times(talk: list[Exchange]) -> None:
    again = through_har(talk)
    same(talk, again)
    assert [one.request.headers for one in again] == [one.request.headers for one in talk]
    assert [(one.first_byte_at, one.ended_at) for one in again] == [(one.first_byte_at, one.ended_at) for one in talk]


line = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12).map(str.strip)
names = st.from_regex(r"x-[a-z]{1,5}", fullmatch=True)
headers: st.SearchStrategy[Headers] = st.lists(st.tuples(names, line), max_size=4).map(tuple)
lines = st.text(st.sampled_from(list("ab: -#|>'\"\n\r\t\x85\u2028\ufeff\xa0é😀.[{&*!%@")), max_size=40)
data = st.binary(max_size=60) | (st.text(max_size=60) | lines).map(str.encode)
whole = st.builds(
    Exchange,
    id=st.just("a"),
    run=st.just("a"),
    request=st.builds(
        Request,
        method=st.sampled_from(["GET", "POST"]),
        url=st.just("https://api.example.com/v1/things?a=1"),
        http_version=st.sampled_from(["", "HTTP/1.1", "HTTP/2"]),
        headers=headers,
        body=data.map(one_chunk_body),
    ),
    response=st.builds(
        Response,
        status=st.integers(200, 599),
        reason=st.sampled_from(["", "OK"]),
        http_version=st.just("HTTP/1.1"),
        headers=headers,
        body=data.map(one_chunk_body),
    ),
    outcome=st.just("completed"),
    started_at=st.integers(0, 2**40).map(lambda n: n * 1000),
    first_byte_at=st.integers(0, 2**40),
    ended_at=st.integers(2**40, 2**41),
)


@settings(max_examples=many_examples(150))
@given(st.lists(whole, max_size=3))
def test_any_whole_exchange_goes_through_both(made: list[Exchange]) -> None:
    clean = [replace(one, started_at=n * 1000) for n, one in enumerate(_redact_exchanges(made), 1)]
    same(clean, through_vcr(clean) if clean else [])
    same(clean, through_har(clean) if clean else [])


def _redact_exchanges(made: Iterable[Exchange]) -> list[Exchange]:
    """Redact exchanges as a worker does before it records them."""
    return adopt_all(
        Interaction(place="x", request=one.request, response=one.response, first_byte_at=1, ended_at=2)
        for one in made
        if one.response is not None
    )


def test_what_a_format_cannot_hold_is_left_out_and_named(talk: list[Exchange]) -> None:
    cut = replace(talk[0], outcome="server_closed")
    none = replace(talk[0], response=None)
    torn = replace(talk[0], request=replace(talk[0].request, body=replace(talk[0].request.body, truncated=True)))
    assert talk[0].response is not None
    messages = replace(one_chunk_body(b"hi"), chunks=(Chunk(5, 0, 2, "text"),))
    spoken = replace(talk[0], response=replace(talk[0].response, status=101, body=messages))
    export = Export()
    list(export.vcr(entries([cut, none, torn, spoken, talk[0]])))
    assert [(one.place, one.reason.partition(",")[0]) for one in export.skipped] == [
        ("step 1", "its answer is incomplete (server_closed)"),
        ("step 2", "it has no response"),
        ("step 3", "its bodies were not recorded completely"),
        ("step 4", "it is a WebSocket"),
    ]
    assert export.exported == 1
    [again] = through_har([spoken])
    assert again.response is not None
    assert [(chunk.kind, chunk.size) for chunk in again.response.body.chunks] == [("text", 2)]


SPOKEN: tuple[tuple[Sequence[tuple[ChunkKind, bytes]], Sequence[tuple[ChunkKind, bytes]]], ...] = (
    ([("text", b'{"a": 1}')], [("text", b"{}")]),
    ([("binary", b"\0\xff"), ("close", b"\x03\xe8")], [("binary", b"\0"), ("close", b"\x03\xe8bye")]),
    ([("close", b"")], []),
)
"""What clients and servers say on WebSockets."""


@pytest.mark.parametrize(("asked", "answered"), SPOKEN)
def test_a_websocket_has_the_same_messages(
    talk: list[Exchange], asked: Sequence[tuple[ChunkKind, bytes]], answered: Sequence[tuple[ChunkKind, bytes]]
) -> None:
    assert talk[0].response is not None
    bodies = [
        messages_body([(at * 1000, kind, data) for at, (kind, data) in enumerate(side, 1)])
        for side in (asked, answered)
    ]
    socket = replace(
        talk[0],
        request=replace(talk[0].request, method="GET", body=bodies[0]),
        response=replace(talk[0].response, status=101, body=bodies[1]),
    )
    [again] = through_har([socket])
    assert again.response is not None
    for body, other in zip(bodies, (again.request.body, again.response.body), strict=True):
        assert body.data == other.data
        assert [(one.kind, one.offset, one.size) for one in body.chunks] == [
            (one.kind, one.offset, one.size) for one in other.chunks
        ]


def test_a_stream_that_its_client_left_at_the_end_marker_is_whole(talk: list[Exchange]) -> None:
    left = replace(talk[0], outcome="client_closed")
    export = Export()
    list(export.vcr([Entry(exchange=left, call={"complete": True}), Entry(exchange=left, call={"complete": False})]))
    assert (export.exported, [one.place for one in export.skipped]) == (1, ["step 2"])


def test_an_edited_archive_counts_as_it_reads(talk: list[Exchange]) -> None:
    archive = json.loads(b"".join(Export().har(entries([talk[3]]), "0")))
    archive["log"]["entries"][0]["response"]["content"]["text"] = '{"edited": true}'
    [again] = adopt_all(har.read_har(json.dumps(archive).encode()))
    assert again.response is not None
    assert again.response.body.data == b'{"edited": true}'
    assert "content-encoding" not in dict(again.response.headers)


def test_vcr_py_loads_and_plays_what_we_write(talk: list[Exchange], tmp_path: Path) -> None:
    file = tmp_path / "talk.yaml"
    plain = [replace(one, request=replace(one.request, url=f"http://stand.example/{n}")) for n, one in enumerate(talk)]
    file.write_bytes(b"".join(Export().vcr(entries(plain))))
    with play_cassette(file) as cassette:
        for n, one in enumerate(plain):
            # By its module: VCR.py puts its own there.
            line = http.client.HTTPConnection("stand.example")
            line.request("POST", f"/{n}", body=one.request.body.data)
            got = line.getresponse()
            assert one.response is not None
            assert (got.status, got.read()) == (one.response.status, one.response.body.data)
        assert cassette.all_played


@contextmanager
def play_cassette(file: Path) -> Iterator[Cassette]:
    """Let VCR.py answer from a file, and from nothing else."""
    recorder = vcr.VCR(record_mode=vcr.mode.NONE, match_on=["method", "uri", "body"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of VCR.py's own
        with recorder.use_cassette(str(file)) as cassette:
            yield cassette


def test_mitmproxy_reads_the_archive_as_we_mean_it(talk: list[Exchange]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it is built on
        from mitmproxy.io.har import request_to_flow

    archive = json.loads(b"".join(Export().har(entries(talk), "0")))
    for entry, one in zip(archive["log"]["entries"], talk, strict=True):
        flow = request_to_flow(entry)
        assert one.response is not None
        assert flow.response is not None
        assert (flow.request.method, flow.request.pretty_url) == (one.request.method, one.request.url)
        assert flow.request.content == one.request.body.data
        assert flow.response.status_code == one.response.status


def test_the_corpus_goes_through_a_cassette() -> None:
    for tape in corpus()[::SAMPLE]:
        made = adopt_all(_interaction(n, one) for n, one in enumerate(tape.exchanges, 1))
        same(made, through_vcr(made))


def test_the_corpus_goes_through_an_archive() -> None:
    for tape in corpus()[::SAMPLE]:
        made = adopt_all(_interaction(n, one) for n, one in enumerate(tape.exchanges, 1))
        same(made, through_har(made))


def _interaction(n: int, one: RecordedExchange) -> Interaction:
    coding = {name.lower(): value for name, value in one.response_headers}.get("content-encoding")
    honest = coding is None or one.response_body[:2] == b"\x1f\x8b"
    headers = (
        one.response_headers
        if honest
        else tuple(pair for pair in one.response_headers if pair[0].lower() != "content-encoding")
    )
    return Interaction(
        place=str(n),
        request=Request(
            method=one.method, url=one.url, headers=one.request_headers, body=one_chunk_body(one.request_body)
        ),
        response=Response(status=one.status, headers=headers, body=one_chunk_body(one.response_body)),
        first_byte_at=1_000_000,
        ended_at=2_000_000,
    )
