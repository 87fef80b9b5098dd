"""What Hypothesis draws for this room: JSON values, exchanges, and cuts of a body into pieces."""

from decimal import Decimal
from typing import get_args

from hypothesis import strategies as st

from calls.model import Body, Chunk, ChunkKind, Exchange, Headers, Json, Outcome, Request, Response

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

# Hypothesis's own decimals take three times as long.
decimals = st.builds(
    lambda number, exponent: Decimal(number).scaleb(exponent), st.integers(-(10**20), 10**20), st.integers(-40, 20)
)

scalars: st.SearchStrategy[Json] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**40), 10**40), decimals, texts
)

json_values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data, cut anywhere, empty pieces among them."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.sampled_from(["a", "B", "content-type"]), texts), max_size=3
).map(tuple)


@st.composite
def bodies(draw: st.DrawFn, *, kinds: tuple[ChunkKind, ...] = ("data",), cut: bool = False) -> Body:
    """A body as the recorder leaves it: chunks that lie side by side, in time."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=6), max_size=5))
    kind = draw(st.sampled_from(kinds))
    chunks, offset, at = [], 0, 0
    for part in parts:
        at += draw(st.integers(0, 9))
        chunks.append(Chunk(at, offset, len(part), kind))
        offset += len(part)
    truncated = not cut and draw(st.booleans())
    reencoded = bool(parts) and not truncated and draw(st.booleans())
    more = draw(st.integers(1, 9)) if truncated else 0
    size = draw(st.integers(0, 99)) if reencoded and not cut else offset + more
    return Body(data=b"".join(parts), chunks=tuple(chunks), size=size, truncated=truncated, reencoded=reencoded)


outcomes: st.SearchStrategy[Outcome] = st.sampled_from(get_args(Outcome.__value__))


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    """Any exchange that a fold can come to."""
    outcome = draw(outcomes)
    whole = outcome == "completed"
    kinds: tuple[ChunkKind, ...] = ("data",) if draw(st.booleans()) else ("text", "binary", "close")
    answered = whole or draw(st.booleans())
    request = Request(
        method=draw(st.sampled_from(["GET", "POST"])),
        url="https://example.com/",
        headers=draw(headers),
        body=draw(bodies(kinds=kinds if answered else ("data",))),
        trailers=draw(headers),
    )
    response = Response(
        status=draw(st.integers(200, 599)),
        headers=draw(headers),
        body=draw(bodies(kinds=kinds, cut=not whole)),
        trailers=draw(headers) if whole else (),
    )
    return Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run="run",
        request=request,
        response=response if answered else None,
        outcome=outcome,
        started_at=draw(st.integers(0, 2**62)),
        first_byte_at=draw(st.integers(0, 9)) if answered else None,
        ended_at=draw(st.integers(0, 2**40)),
        redactions=draw(st.integers(0, 3)),
        run_evidence=(("credentials", "run"),),
        step=draw(st.none() | st.integers(0, 9)),
        actor=draw(st.none() | texts),
        error=draw(st.none() | texts),
    )
