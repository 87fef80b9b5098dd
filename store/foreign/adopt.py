"""Turn foreign interactions into a bundle: redacted as the recorder would have, in order, with ids of their own.

Read twice, a file gives the same bundle. What it does not tell stays unknown: only that the exchanges came one after the
other is made up, since a run has an order.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from calls.events import Gap
from calls.model import Body, Chunk, ChunkKind, Exchange, Headers, Request, Response, header
from calls.redaction.redactor import Redactor
from store.bundle.bundle import Entry, Writer
from store.foreign.contents import Found, Interaction, NotReadable, SkippedEntry


@dataclass(slots=True, kw_only=True)
class Adoption:
    """Takes the interactions of one file into one run, and keeps what is to be said about it."""

    run: str
    redactor: Redactor
    at: int
    """When the first one began where the file does not say, in nanoseconds since the epoch: the file's own time."""

    added: Headers = ()
    """Headers for requests that lack them, where a recorder left out what keys are made of."""

    exchanges: int = 0
    redactions: int = 0
    skipped: list[SkippedEntry] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    gaps: list[Gap] = field(default_factory=list)
    _latest: int = 0

    def adopted(self, found: Iterable[Found]) -> Iterator[Exchange]:
        """The exchanges, in their order."""
        for one in found:
            if isinstance(one, SkippedEntry):
                # A reason may quote the file, and the file may hold secrets.
                self.skipped.append(replace(one, reason=self.redactor.text(one.reason)))
            else:
                for note in dict.fromkeys(one.notes):
                    self.notes[note] += 1
                yield self._exchange(one)

    def _exchange(self, one: Interaction) -> Exchange:
        self.exchanges += 1
        started_at = self._latest = max(self._latest + 1, one.started_at or self.at)
        # A time that nobody measured is none: the first byte's tells whether any was.
        ended_at = one.ended_at if one.ended_at is not None else 0
        lacking = tuple(pair for pair in self.added if header(one.request.headers, pair[0]) is None)
        made = Exchange(
            id=self._id(one, started_at),
            run=self.run,
            request=replace(one.request, headers=(*one.request.headers, *lacking)),
            response=one.response,
            outcome="completed",
            started_at=started_at,
            first_byte_at=one.first_byte_at,
            ended_at=ended_at,
        )
        clean, withheld = redacted(made, self.redactor)
        self.redactions += clean.redactions
        self.gaps += [Gap(self.run, started_at, why, clean.id) for why in withheld]
        return clean

    def _id(self, one: Interaction, started_at: int) -> str:
        """A uuidv7 of that moment, the same one whenever this is imported under this name."""
        seed = hashlib.sha256(f"import/1 {self.run} {self.exchanges} {one.request.method} {one.request.url}".encode())
        for data in (one.request.body.data, one.response.body.data):
            seed.update(hashlib.sha256(data).digest())
        random = int.from_bytes(seed.digest()[:10]) & ~(0xF << 76) & ~(0x3 << 62)
        return str(uuid.UUID(int=(started_at // 1_000_000) << 80 | 0x7 << 76 | 0x2 << 62 | random))


def bundle_of(adoption: Adoption, found: Iterable[Found], profiles: str, label: str) -> Iterator[bytes]:
    """The lines of a bundle of what is found, as it is found. Raises NotReadable where all of it had to be left out."""
    writer = Writer()
    yield writer.head({"id": adoption.run, "labels": {"imported_from": label}}, profiles)
    for exchange in adoption.adopted(found):
        # Whoever reads it derives the call: this is evidence only.
        yield writer.exchange(Entry(exchange=exchange))
    if not adoption.exchanges and adoption.skipped:
        raise NotReadable(f"none of it can be: {adoption.skipped[0].place}: {adoption.skipped[0].reason}")
    for gap in adoption.gaps:
        yield writer.gap(gap)
    yield writer.end()


def redacted(exchange: Exchange, redactor: Redactor) -> tuple[Exchange, list[str]]:
    """The exchange as the recorder would have kept it, and why it would have withheld a body."""
    request, response = exchange.request, exchange.response
    ours = redactor.of(request.method, request.url, request.headers)
    url, in_url = ours.url(request.url)
    asked, in_asked = redactor.request_headers(request.headers)
    body, in_body, withheld = _body(ours, request.headers, request.body)
    count = in_url + in_asked + in_body
    clean: Response | None = None
    if response is not None:
        answered, in_answered = redactor.response_headers(response.headers)
        answer, in_answer, also = _body(redactor, response.headers, response.body)
        clean = replace(response, headers=answered, body=answer, reason=redactor.text(response.reason))
        count, withheld = count + in_answered + in_answer, withheld + also
    cleaned = Request(
        method=request.method,
        url=url,
        http_version=request.http_version,
        headers=asked,
        body=body,
        trailers=redactor.request_headers(request.trailers)[0] if request.trailers else (),
    )
    return replace(exchange, request=cleaned, response=clean, redactions=exchange.redactions + count), withheld


def _body(redactor: Redactor, headers: Headers, body: Body) -> tuple[Body, int, list[str]]:
    if any(chunk.kind != "data" for chunk in body.chunks):
        return _messages(redactor, body)
    work = redactor.stream(header(headers, "content-type"), header(headers, "content-encoding"))
    fed = [piece for c in _chunks(body) for piece in work.feed(body.data[c.offset : c.offset + c.size], c.at)]
    pieces = [*fed, *work.finish()]
    if work.withheld:
        return Body(size=body.size, truncated=True), 0, [work.withheld]
    found = sum(piece.redactions for piece in pieces)
    if not found:
        return body, 0, []
    return _joined(body, [(p.at, p.data, "data") for p in pieces], reencoded=work.reencoded), found, []


def _chunks(body: Body) -> tuple[Chunk, ...]:
    return body.chunks or ((Chunk(0, 0, len(body.data)),) if body.data else ())


def _messages(redactor: Redactor, body: Body) -> tuple[Body, int, list[str]]:
    """A WebSocket's messages, without what is secret in one of them and what they spell out together."""
    work = redactor.messages()
    fed = [one for c in body.chunks for one in work.feed(body.data[c.offset : c.offset + c.size], c.at, c.kind)]
    messages = [*fed, *work.finish()]
    found = sum(one.redactions for one in messages)
    withheld = [f"a message could not be redacted ({one.fault})" for one in messages if one.fault]
    if not found and not withheld:
        return body, 0, []
    return _joined(body, [(one.at, one.data, one.kind) for one in messages], reencoded=False), found, withheld


def _joined(body: Body, pieces: list[tuple[int, bytes, ChunkKind]], *, reencoded: bool) -> Body:
    chunks: list[Chunk] = []
    offset = 0
    for at, data, kind in pieces:
        chunks.append(Chunk(at, offset, len(data), kind))
        offset += len(data)
    return Body(
        data=b"".join(data for _, data, _ in pieces),
        chunks=tuple(chunks),
        size=body.size,
        truncated=body.truncated,
        reencoded=body.reencoded or reencoded,
    )
