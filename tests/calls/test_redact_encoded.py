"""Compressed bodies and framed ones: opened to be redacted, and right again afterwards."""

import gzip
import json
import random
import struct
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.encoding import ContentEncoder, decode_content, parse_codings
from calls.redaction.body import BodyRedactor, DeferredBody, Piece
from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY, SECRETS, TOKENS
from tests.calls.strategies import pieces

REDACTOR = Redactor(key=KEY)
NAMES = ("gzip", "deflate", "br", "zstd", "gzip, br")
TOKEN = TOKENS[0].encode()
CLEAN = json.dumps({"messages": [{"role": "user", "content": "nothing to see here " * 20}]}).encode()
DIRTY = json.dumps(
    {"messages": [{"role": "user", "content": f"my key is {TOKENS[0]}, and"}], "password": SECRETS[0]}
).encode()


def encode_body(data: bytes, names: str) -> bytes:
    encoder = ContentEncoder(parse_codings(names))
    return encoder.feed(data) + encoder.finish()


def through(parts: list[bytes], names: str, media: str | None = None) -> tuple[list[Piece], bool, str | None]:
    body = REDACTOR.new_body_redactor(media, names)
    assert body.is_heavy
    out = [piece for at, part in enumerate(parts) for piece in body.feed(part, at)] + body.finish()
    return out, body.is_reencoded, body.withheld_reason


@pytest.mark.parametrize("names", NAMES)
@given(data=st.data())
def test_a_body_without_secrets_leaves_as_it_came(names: str, data: st.DataObject) -> None:
    parts = data.draw(pieces(encode_body(CLEAN, names)))

    out, reencoded, withheld = through(parts, names)

    assert [(piece.at, piece.data, piece.redactions, piece.size) for piece in out] == [
        (at, part, 0, len(part)) for at, part in enumerate(parts)
    ]
    assert (reencoded, withheld) == (False, None)


@pytest.mark.parametrize("names", NAMES)
@given(data=st.data())
def test_a_body_with_secrets_is_compressed_again_in_its_pieces(names: str, data: st.DataObject) -> None:
    parts = data.draw(pieces(encode_body(DIRTY, names)))

    out, reencoded, withheld = through(parts, names)

    assert decode_content(b"".join(piece.data for piece in out), names) == REDACTOR.redact_body(DIRTY)[0]
    assert [(piece.at, piece.size) for piece in out] == [(at, len(part)) for at, part in enumerate(parts)]
    assert sum(piece.redactions for piece in out) == 2
    assert (reencoded, withheld) == (True, None)


@pytest.mark.parametrize("names", NAMES)
def test_each_event_of_a_compressed_stream_stays_a_piece(names: str) -> None:
    events = [b"data: one\n\n", b"data: " + TOKEN + b"\n\n", b"data: [DONE]\n\n"]
    encoder = ContentEncoder(parse_codings(names))
    parts = [encoder.feed(event) for event in events]
    parts[-1] += encoder.finish()

    out, _, _ = through(parts, names, "text/event-stream")

    opened = [len(decode_content(b"".join(piece.data for piece in out[: n + 1]), names)) for n in range(3)]
    assert opened == [len(b"".join(events[: n + 1])) for n in range(3)]


@pytest.mark.parametrize("names", ["gzip", "br", "zstd"])
def test_a_compressed_body_is_redacted_once_and_for_all(names: str) -> None:
    once, count, reencoded = REDACTOR.redact_body(encode_body(DIRTY, names), "application/json", names)

    assert (count, reencoded) == (2, True)
    assert REDACTOR.redact_body(once, "application/json", names) == (once, 0, False)


def test_a_body_that_broke_off_stays_broken_off() -> None:
    whole = encode_body(DIRTY + CLEAN, "gzip")

    new, count, _ = REDACTOR.redact_body(whole[:-20], None, "gzip")

    assert count == 2
    assert TOKEN not in decode_content(new, "gzip")
    with pytest.raises(EOFError):
        gzip.decompress(new)


def test_a_mislabelled_body_is_redacted_as_what_it_is() -> None:
    assert REDACTOR.redact_body(DIRTY, "application/json", "gzip") == REDACTOR.redact_body(DIRTY, "application/json")


@pytest.mark.parametrize("names", ["gzip", "deflate", "zstd", "br"])
def test_a_damaged_body_that_showed_a_secret_is_not_kept(names: str) -> None:
    if names == "gzip":
        damaged = gzip.compress(DIRTY)[:-8] + bytes(8)  # all of it opens, and then the checksum is wrong
    else:
        damaged = (
            ContentEncoder(parse_codings(names)).feed(DIRTY + random.Random(3).randbytes(20_000))[:-50] + b"\xff" * 300
        )

    out, _, withheld = through([damaged], names)

    assert out == []
    assert withheld is not None


def test_a_damaged_body_without_a_secret_is_kept_as_it_came() -> None:
    damaged = gzip.compress(CLEAN)[:-8] + b"\0" * 8

    out, reencoded, withheld = through([damaged], "gzip")

    assert ([piece.data for piece in out], reencoded, withheld) == ([damaged], False, None)


def test_a_secret_behind_the_end_is_not_kept() -> None:
    assert TOKEN not in REDACTOR.redact_body(gzip.compress(CLEAN) + b" " + TOKEN, None, "gzip")[0]


def test_a_bomb_is_not_kept() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(300 << 20))

    out, _, withheld = through([bomb], "zstd")

    assert out == []
    assert withheld is not None
    assert "exceeds the size limit" in withheld


def test_an_unknown_coding_is_searched_as_it_is() -> None:
    assert TOKEN not in REDACTOR.redact_body(DIRTY, None, "aws-chunked")[0]


def test_a_large_body_is_left_to_a_thread() -> None:
    body = REDACTOR.new_body_redactor(None, "br")
    # Numbers: what compresses to less than a hundredth, as zeros do, is refused for that.
    body.feed(brotli.compress(DIRTY + b" ".join(b"%d" % number for number in range(200_000)), quality=5), 0)

    assert body.finish_within(1 << 16, lambda: True) is None
    assert sum(piece.redactions for piece in body.finish()) == 2


SLOW = b"token=" * 4000 + TOKEN
"""A secret may begin at each of its words: searching it takes 10 µs for each byte."""


def collecting(body: bytes, names: str, media: str | None = None) -> BodyRedactor:
    """Return the redactor of a body that is searched at its end, and has it in three pieces."""
    new = REDACTOR.new_body_redactor(media, names)
    collected = new if new.is_heavy else DeferredBody(new)
    encoded = encode_body(body, names)
    third = len(encoded) // 3
    for at, part in enumerate((encoded[:third], encoded[third : 2 * third], encoded[2 * third :])):
        collected.feed(part, at)
    return collected


@pytest.mark.parametrize("names", ["", "gzip", "zstd"])
@pytest.mark.parametrize("body", [SLOW, DIRTY * 40, CLEAN * 20])
def test_a_body_that_takes_long_is_left_to_a_thread(body: bytes, names: str) -> None:
    asked: list[int] = []

    def stop_at_third() -> bool:
        asked.append(1)
        return len(asked) < 3

    one, other = collecting(body, names), collecting(body, names)
    assert one.finish_within(1 << 16, stop_at_third) is None
    assert 1 < len(asked) <= 3
    quick = other.finish_within(1 << 16, lambda: True)
    for found in (one.finish(), quick if quick is not None else other.finish()):
        assert decode_content(b"".join(piece.data for piece in found), names) == REDACTOR.redact_body(body, None)[0]
        assert [piece.at for piece in found] == [0, 1, 2]


@pytest.mark.parametrize("names", ["", "gzip"])
def test_what_a_search_holds_back_is_left_to_a_thread(names: str) -> None:
    """In a stream, a message without an end is searched when it ends: then nothing could stop it."""
    body = collecting(b"data: " + SLOW, names, "text/event-stream")
    asked: list[int] = []

    def note_ask() -> bool:
        asked.append(1)
        return True

    assert body.finish_within(1 << 16, note_ask) is None
    assert len(asked) < 6


@pytest.mark.parametrize("body", [SLOW, gzip.compress(SLOW)[:-20] + bytes(20), gzip.compress(SLOW) + b"surplus"])
def test_a_body_that_is_not_what_it_says_is_left_to_a_thread(body: bytes) -> None:
    damaged = REDACTOR.new_body_redactor(None, "gzip")
    damaged.feed(body, 0)
    assert damaged.finish_within(1 << 16, lambda: True) is None
    assert TOKEN not in b"".join(piece.data for piece in damaged.finish())


def frame(payload: bytes) -> bytes:
    """One message of application/vnd.amazon.eventstream, with one header."""
    headers = b"\x0b:event-type\x07" + struct.pack(">H", 5) + b"chunk"
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    head = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return head + struct.pack(">I", zlib.crc32(head))


def frames(stream: bytes) -> list[bytes]:
    """The payloads, every checksum verified."""
    found = []
    while stream:
        total, headers = struct.unpack_from(">II", stream)
        assert struct.unpack_from(">I", stream, 8)[0] == zlib.crc32(stream[:8])
        assert struct.unpack_from(">I", stream, total - 4)[0] == zlib.crc32(stream[: total - 4])
        found.append(stream[12 + headers : total - 4])
        stream = stream[total:]
    return found


@given(st.data())
def test_an_aws_event_stream_has_right_checksums_again(data: st.DataObject) -> None:
    payloads = [b'{"p":"abc"}', b'{"text":"' + TOKEN + b'"}', b"", b'{"password":"x"}', CLEAN]
    stream = b"".join(map(frame, payloads))
    body = REDACTOR.new_body_redactor("application/vnd.amazon.eventstream")

    out = [p for at, part in enumerate(data.draw(pieces(stream))) for p in body.feed(part, at)] + body.finish()

    assert frames(b"".join(piece.data for piece in out)) == [REDACTOR.redact_body(payload)[0] for payload in payloads]


def test_a_wrong_checksum_that_nothing_changed_stays_wrong() -> None:
    stream = frame(CLEAN)[:-1] + b"\0" + frame(CLEAN)

    assert REDACTOR.redact_body(stream, "application/vnd.amazon.eventstream")[0] == stream


@given(st.binary(max_size=100))
def test_what_is_no_event_stream_passes(data: bytes) -> None:
    assert REDACTOR.redact_body(data, "application/vnd.amazon.eventstream")[0] == REDACTOR.redact_body(data)[0]
