"""Any exchange that the models allow, for Hypothesis; and a few that read like real ones."""

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from calls.effects.items import Item, count_results, encode_items
from calls.events import EffectBatch, Gap
from calls.model import Body, Chunk, ChunkKind, Exchange, Request, Response
from store.bundle.bundle import Bundle, Entry

RUN = "night-run"
STARTED = 1_795_300_000_123_456_789
CHUNK_KINDS: st.SearchStrategy[ChunkKind] = st.sampled_from(["data", "text", "binary", "close"])
OUTCOMES = st.sampled_from(["completed", "client_closed", "server_closed", "timed_out", "refused"])

latin_1 = st.text(st.characters(max_codepoint=0xFF), max_size=20)
lines = st.text(st.characters(max_codepoint=0xFF, exclude_characters="\0\r\n"), max_size=20)
names = st.text("!#$%&'*+-.^_`|~09AZaz", min_size=1, max_size=20)
header_lists = st.lists(st.tuples(names, lines), max_size=4).map(tuple)
durations = st.integers(0, 2**53)


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """Bytes or text, cut anywhere, whole or not."""
    data = draw(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode()))
    cuts = sorted({0, *draw(st.lists(st.integers(0, len(data)), max_size=3)), len(data)})
    chunks = tuple(
        Chunk(draw(durations), start, end - start, draw(CHUNK_KINDS)) for start, end in itertools.pairwise(cuts)
    )
    return Body(
        data=data,
        chunks=chunks,
        size=draw(st.integers(0, 2**40)),
        truncated=draw(st.booleans()),
        reencoded=draw(st.booleans()),
    )


requests = st.builds(
    Request,
    method=st.sampled_from(["GET", "POST"]) | latin_1,
    url=st.sampled_from(["https://api.example.com/v1/chat", "wss://live.example.com/x?y=1"])
    | latin_1.map("https://api.example.com/".__add__),
    http_version=st.sampled_from(["HTTP/1.0", "HTTP/1.1", "HTTP/2.0"]),
    headers=header_lists,
    body=bodies(),
    trailers=header_lists,
)
responses = st.builds(
    Response,
    status=st.just(101) | st.integers(200, 999),
    reason=lines,
    headers=header_lists,
    body=bodies(),
    trailers=header_lists,
)
exchanges = st.builds(
    Exchange,
    id=st.uuids().map(str),
    run=st.just(RUN),
    request=requests,
    response=st.none() | responses,
    outcome=OUTCOMES,
    started_at=st.integers(0, 2**63 - 1 - 2**53),
    first_byte_at=st.none() | durations,
    ended_at=st.none() | durations,
    redactions=st.integers(0, 1000),
    run_evidence=st.lists(st.tuples(latin_1, latin_1), max_size=2).map(tuple),
    step=st.none() | st.integers(-(2**62), 2**62),
    actor=st.none() | latin_1,
    error=st.none() | st.text(max_size=20),
)
gaps = st.builds(
    Gap,
    run=st.just(RUN),
    happened_at=st.integers(0, 2**63 - 1),
    reason=st.text(max_size=20),
    exchange=st.none() | st.uuids().map(str),
)


def body(data: bytes, at: Sequence[int] = (1_000_000,)) -> Body:
    """A body that came in as many pieces as there are times."""
    size = -(-len(data) // len(at))
    chunks = tuple(Chunk(time, n * size, len(data[n * size : (n + 1) * size])) for n, time in enumerate(at))
    return Body(data=data, chunks=chunks, size=len(data))


def exchange(
    asked: bytes,
    answered: bytes,
    *,
    n: int = 0,
    run: str = RUN,
    url: str = "https://api.example.com/v1/chat/completions",
) -> Exchange:
    """A POST of JSON and its answer."""
    return Exchange(
        id=f"01932f4e-0000-7000-8000-{n:012d}",
        run=run,
        request=Request(
            method="POST",
            url=url,
            headers=(("Host", "api.example.com"), ("Content-Type", "application/json")),
            body=body(asked),
        ),
        response=Response(
            status=200,
            reason="OK",
            headers=(("content-type", "application/json"),),
            body=body(answered, (2_000_000, 3_000_000)),
        ),
        outcome="completed",
        started_at=STARTED + n * 1_000_000_000,
        first_byte_at=1_500_000,
        ended_at=3_100_000,
    )


def conversation(turns: int) -> list[Exchange]:
    """An agent that sends its whole history with every request."""
    history = ['{"role":"system","content":"You are a careful assistant. ' + "Answer in one sentence. " * 60 + '"}']
    made = []
    for turn in range(turns):
        history.append(f'{{"role":"user","content":"Question {turn}: ' + f"what of {turn * 7919}? " * 30 + '"}')
        asked = (
            '{"messages":[' + ",".join(history) + '],"model":"gpt-4o","tools":[' + '{"type":"function"},' * 9 + "{}]}"
        )
        answer = f'{{"role":"assistant","content":"Answer {turn}: ' + f"it is {turn * 104729}. " * 30 + '"}'
        history.append(answer)
        made.append(exchange(asked.encode(), answer.encode(), n=turn))
    return made


def effect_batch(number: int = 0, run: str = RUN, at: int = STARTED) -> EffectBatch:
    """What the first process of a run observed."""
    began: Item = {"kind": "process.start", "first": str(STARTED)}
    items: list[Item] = [
        *([began] if number == 0 else []),
        {"kind": "time.time", "task": "main", "at": "agent.py:3", "first": str(STARTED), "ns": [800, -3]},
        {
            "kind": "os.environ",
            "at": "agent.py:4",
            "args": {"name": "REGION"},
            "results": ["eu é", None],
            "counts": [4, 1],
        },
    ]
    name = f"01932f4e-0000-7000-8000-{number + 0xEFFEC7:012x}"
    return EffectBatch(run, name, at + number, "0", number, count_results(items), encode_items(items))


def bundle(made: Sequence[Exchange], found: Sequence[Gap] = ()) -> Bundle:
    """The bundle of a run."""
    entries = tuple(Entry(exchange=each) for each in made)
    return Bundle(run={"id": RUN}, profiles="sha256:" + "0" * 64, entries=entries, gaps=tuple(found))
