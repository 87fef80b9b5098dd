"""Turn foreign interactions into a bundle: redacted as the recorder would have, in order, with new ids.

The same file always gives the same bundle. What a file does not contain stays unknown. Only the order of the exchanges is
assumed to be that of the file, because a run needs one.
"""

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from calls.events import Gap
from calls.model import Body, Chunk, ChunkKind, Exchange, Headers, Request, Response, header
from calls.redaction.redactor import Redactor
from store.bundle.bundle import BundleWriter, Entry
from store.foreign.contents import Found, Interaction, NotReadable, SkippedEntry


class Adoption(msgspec.Struct, kw_only=True):
    """Turns the interactions of one file into one run, and collects what to report about it."""

    run: str
    redactor: Redactor
    default_started_at: int
    """The time at which exchanges without one begin, in nanoseconds since the epoch: the file's own time."""

    extra_headers: Headers = ()
    """Headers to add to requests without them, for recorders that omitted headers on which keys depend."""

    exchanges: int = 0
    redactions: int = 0
    skipped: list[SkippedEntry] = msgspec.field(default_factory=list)
    notes: Counter[str] = msgspec.field(default_factory=Counter)
    gaps: list[Gap] = msgspec.field(default_factory=list)
    _latest: int = 0

    def adopt(self, entries: Iterable[Found]) -> Iterator[Exchange]:
        """Yield the exchanges in the order of the file; skipped entries are collected."""
        for one in entries:
            if isinstance(one, SkippedEntry):
                # A reason may quote the file, and the file may hold secrets.
                self.skipped.append(msgspec.structs.replace(one, reason=self.redactor.redact_text(one.reason)))
            else:
                for note in dict.fromkeys(one.notes):
                    self.notes[note] += 1
                yield self._adopt_interaction(one)

    def _adopt_interaction(self, one: Interaction) -> Exchange:
        self.exchanges += 1
        started_at = self._latest = max(self._latest + 1, one.started_at or self.default_started_at)
        # Without measured times the exchange ends at once; a missing `first_byte_at` shows that none were measured.
        ended_at = one.ended_at if one.ended_at is not None else 0
        lacking = tuple(pair for pair in self.extra_headers if header(one.request.headers, pair[0]) is None)
        exchange = Exchange(
            id=self._exchange_id(one, started_at),
            run=self.run,
            request=replace(one.request, headers=(*one.request.headers, *lacking)),
            response=one.response,
            outcome="completed",
            started_at=started_at,
            first_byte_at=one.first_byte_at,
            ended_at=ended_at,
        )
        clean, withheld = redact_exchange(exchange, self.redactor)
        self.redactions += clean.redactions
        self.gaps += [Gap(self.run, started_at, why, clean.id) for why in withheld]
        return clean

    def _exchange_id(self, one: Interaction, started_at: int) -> str:
        """Return a uuidv7 of that time, which is the same each time the file is imported as this run."""
        seed = hashlib.sha256(f"import/1 {self.run} {self.exchanges} {one.request.method} {one.request.url}".encode())
        for data in (one.request.body.data, one.response.body.data):
            seed.update(hashlib.sha256(data).digest())
        random = int.from_bytes(seed.digest()[:10]) & ~(0xF << 76) & ~(0x3 << 62)
        return str(uuid.UUID(int=(started_at // 1_000_000) << 80 | 0x7 << 76 | 0x2 << 62 | random))


def adopt_bundle(adoption: Adoption, entries: Iterable[Found], profiles: str, label: str) -> Iterator[bytes]:
    """Yield the lines of a bundle while the file is read. Raises NotReadable if every entry was skipped."""
    writer = BundleWriter()
    yield writer.head({"id": adoption.run, "labels": {"imported_from": label}}, profiles)
    for exchange in adoption.adopt(entries):
        # Without a call: the reader of the bundle derives it.
        yield writer.exchange(Entry(exchange=exchange))
    if not adoption.exchanges and adoption.skipped:
        raise NotReadable(
            f"every entry was skipped; the first: {adoption.skipped[0].place}: {adoption.skipped[0].reason};"
            " choose another file if this is no recording"
        )
    for gap in adoption.gaps:
        yield writer.gap(gap)
    yield writer.end()


def redact_exchange(exchange: Exchange, redactor: Redactor) -> tuple[Exchange, list[str]]:
    """Redact an exchange as the recorder would, and return why bodies were withheld."""
    request, response = exchange.request, exchange.response
    request_redactor = redactor.for_request(request.method, request.url, request.headers)
    url, in_url = request_redactor.redact_url(request.url)
    request_headers, in_request_headers = redactor.redact_request_headers(request.headers)
    body, in_body, withheld = _redact_body(request_redactor, request.headers, request.body)
    count = in_url + in_request_headers + in_body
    clean: Response | None = None
    if response is not None:
        response_headers, in_response_headers = redactor.redact_response_headers(response.headers)
        answer, in_answer, also = _redact_body(redactor, response.headers, response.body, is_answer=True)
        clean = replace(response, headers=response_headers, body=answer, reason=redactor.redact_text(response.reason))
        count, withheld = count + in_response_headers + in_answer, withheld + also
    cleaned = Request(
        method=request.method,
        url=url,
        http_version=request.http_version,
        headers=request_headers,
        body=body,
        trailers=redactor.redact_request_headers(request.trailers)[0] if request.trailers else (),
    )
    return replace(exchange, request=cleaned, response=clean, redactions=exchange.redactions + count), withheld


def _redact_body(
    redactor: Redactor, headers: Headers, body: Body, *, is_answer: bool = False
) -> tuple[Body, int, list[str]]:
    if any(chunk.kind != "data" for chunk in body.chunks):
        return _redact_messages(redactor, body)
    kind, coding = header(headers, "content-type"), header(headers, "content-encoding")
    work = redactor.new_body_redactor(kind, coding, is_answer=is_answer)
    fed = [piece for c in _chunks_or_whole(body) for piece in work.feed(body.data[c.offset : c.offset + c.size], c.at)]
    pieces = [*fed, *work.finish()]
    if work.withheld_reason:
        return Body(size=body.size, truncated=True), 0, [work.withheld_reason]
    found = sum(piece.redactions for piece in pieces)
    if not found:
        return body, 0, []
    return _join_pieces(body, [(p.at, p.data, "data") for p in pieces], reencoded=work.is_reencoded), found, []


def _chunks_or_whole(body: Body) -> tuple[Chunk, ...]:
    return body.chunks or ((Chunk(0, 0, len(body.data)),) if body.data else ())


def _redact_messages(redactor: Redactor, body: Body) -> tuple[Body, int, list[str]]:
    """Redact the messages of a WebSocket, including secrets that are split over several messages."""
    work = redactor.new_message_redactor()
    fed = [one for c in body.chunks for one in work.feed(body.data[c.offset : c.offset + c.size], c.at, c.kind)]
    messages = [*fed, *work.finish()]
    found = sum(one.redactions for one in messages)
    withheld = [f"a message could not be redacted ({one.fault})" for one in messages if one.fault]
    if not found and not withheld:
        return body, 0, []
    return _join_pieces(body, [(one.at, one.data, one.kind) for one in messages], reencoded=False), found, withheld


def _join_pieces(body: Body, pieces: list[tuple[int, bytes, ChunkKind]], *, reencoded: bool) -> Body:
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
