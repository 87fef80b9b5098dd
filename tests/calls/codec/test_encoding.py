"""Content codings are decoded in pieces, up to where they break off, and within size limits."""

import gzip
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.encoding import ContentDecoder, ContentEncoder, TooLarge, Undecodable, decode_content, parse_codings
from tests.calls.strategies import pieces

NAMES = ("gzip", "deflate", "br", "zstd")
TEXT = b"".join(b"line %d of a text that is worth compressing\n" % n for n in range(2000))


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush()


FOREIGN: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=3),
    "zstd": zstandard.ZstdCompressor().compress,
    "deflate raw": raw_deflate,
}


@pytest.mark.parametrize("coding", FOREIGN)
@given(data=st.data(), body=st.one_of(st.binary(max_size=2000), st.just(TEXT)))
def test_what_others_encode_opens_however_it_is_cut(coding: str, data: st.DataObject, body: bytes) -> None:
    encoded = FOREIGN[coding](body)
    decoder = ContentDecoder(parse_codings(coding.split()[0]))

    assert b"".join(decoder.feed(piece) for piece in data.draw(pieces(encoded))) == body
    assert decoder.is_complete
    assert not decoder.has_surplus


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
def test_each_piece_that_we_encode_opens_by_itself(parts: list[bytes], names: list[str]) -> None:
    encoder, decoder = ContentEncoder(tuple(names)), ContentDecoder(tuple(names))

    assert [decoder.feed(encoder.feed(part)) for part in parts] == parts
    assert decoder.feed(encoder.finish()) == b""
    assert decoder.is_complete


@pytest.mark.parametrize("coding", NAMES)
def test_a_body_that_breaks_off_opens_as_far_as_it_goes(coding: str) -> None:
    encoder = ContentEncoder((coding,))
    encoded = encoder.feed(TEXT) + encoder.feed(b"never seen")

    decoder = ContentDecoder((coding,))
    opened = decoder.feed(encoded[: len(encoded) - 4])

    assert opened.startswith(TEXT)
    assert not decoder.is_complete
    assert decode_content(encoded[:-4], coding) == opened


@pytest.mark.parametrize("coding", NAMES)
def test_a_bomb_is_stopped_at_the_limit(coding: str) -> None:
    bomb = FOREIGN[coding](bytes(32 << 20))
    assert len(bomb) < 1 << 16

    with pytest.raises(TooLarge):
        decode_content(bomb, coding, limit=1 << 20)
    assert len(decode_content(FOREIGN[coding](bytes(1000)), coding, limit=1000)) == 1000
    with pytest.raises(TooLarge):
        decode_content(FOREIGN[coding](bytes(1001)), coding, limit=1000)


def test_a_bomb_in_a_bomb_is_stopped_too() -> None:
    bomb = gzip.compress(gzip.compress(bytes(32 << 20)))
    assert len(bomb) < 1000

    with pytest.raises(TooLarge):
        decode_content(bomb, "gzip, gzip", limit=1 << 20)


def test_ten_thousand_tiny_members_take_no_quadratic_time() -> None:
    members = gzip.compress(b"x") * 50_000

    assert decode_content(members, "gzip") == b"x" * 50_000


@pytest.mark.parametrize("coding", NAMES)
@given(data=st.data())
def test_damage_is_said_or_harmless_but_never_a_crash(coding: str, data: st.DataObject) -> None:
    encoded = bytearray(FOREIGN[coding](TEXT[:500]))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    try:
        decode_content(bytes(encoded), coding, 1 << 20)
    except Undecodable:
        pass


@pytest.mark.parametrize("coding", NAMES)
@given(st.binary(min_size=8, max_size=200))
def test_any_bytes_open_or_are_undecodable(coding: str, body: bytes) -> None:
    try:
        decode_content(body, coding, 1 << 20)
    except Undecodable:
        pass


@pytest.mark.parametrize("coding", NAMES)
def test_bytes_behind_the_end_are_noticed_and_not_read(coding: str) -> None:
    decoder = ContentDecoder((coding,))

    assert decoder.feed(FOREIGN[coding](TEXT)) == TEXT
    assert decoder.feed(b"trailing") == b""
    assert decoder.is_complete
    assert decoder.has_surplus


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_bytes_behind_the_end_in_the_same_piece_too(coding: str) -> None:
    # The brotli library does not say what is wrong.
    decoder = ContentDecoder((coding,))

    assert decoder.feed(FOREIGN[coding](TEXT) + b"trailing") == TEXT
    assert decoder.has_surplus


def test_streams_may_follow_one_another_where_the_format_says_so() -> None:
    assert decode_content(gzip.compress(b"one ") + gzip.compress(b"two"), "x-gzip") == b"one two"
    assert decode_content(FOREIGN["zstd"](b"one ") + FOREIGN["zstd"](b"two"), "ZSTD") == b"one two"


def test_codings_are_undone_from_the_last_one_on() -> None:
    assert decode_content(brotli.compress(gzip.compress(TEXT)), "gzip, br") == TEXT


@pytest.mark.parametrize("value", ["compress", "aws-chunked", "gzip, x", "gzip,gzip,gzip,gzip"])
def test_what_nobody_knows_is_undecodable(value: str) -> None:
    with pytest.raises(Undecodable):
        parse_codings(value)


@pytest.mark.parametrize("value", [None, "", "identity", " identity , none"])
def test_no_coding_is_none(value: str | None) -> None:
    assert parse_codings(value) == ()
    assert decode_content(TEXT, value) == TEXT


def test_a_zstd_window_that_nobody_must_take_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    noise = random.Random(1).randbytes(9 << 20)
    encoded = zstandard.ZstdCompressor(compression_params=parameters).compress(noise + os.urandom(8))

    with pytest.raises(Undecodable):
        decode_content(encoded, "zstd")


BOMBS = """
import brotli, gzip, resource, sys, zlib, zstandard
from calls.codec.encoding import TooLarge, decode_content
from calls.redaction.redactor import Redactor

def make_bomb(name, size):
    block = bytes(1 << 20)
    if name == "br":
        stream = brotli.Compressor(quality=1)
        return b"".join([*(stream.process(block) for _ in range(size)), stream.finish()])
    if name == "zstd":
        stream = zstandard.ZstdCompressor(level=1).compressobj()
    else:
        stream = zlib.compressobj(9, zlib.DEFLATED, 31 if name == "gzip" else 15)
    return b"".join([*(stream.compress(block) for _ in range(size)), stream.flush()])

again = {"gzip": lambda data: gzip.compress(data), "br": lambda data: brotli.compress(data, quality=3)}
bombs = [(name, make_bomb(name, 300)) for name in ("gzip", "deflate", "br", "zstd")]
bombs += [(f"{name}, {outer}", again[outer](data)) for name, data in bombs for outer in again]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, data in bombs:
    try:
        decode_content(data, name)
        sys.exit(f"{name} was opened")
    except TooLarge:
        pass
    body = Redactor(key=b"k" * 32).new_body_redactor("application/json", name)
    body.feed(data, 0)
    assert body.finish() == [] and body.withheld_reason, name
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_no_bomb_takes_more_memory_than_the_ratio_allows() -> None:
    """Runs in its own process, whose memory shows what the libraries allocate."""
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48 << 10, "KiB"
