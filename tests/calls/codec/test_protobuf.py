"""Protobuf without its schema: what a person can compare."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.protobuf import MAX_SIZE, read_protobuf


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def test_fields_have_their_numbers_and_nest() -> None:
    inner = field(1, b"Ann") + field(3, 7)
    data = field(1, "grüße".encode()) + field(2, -1) + field(4, inner) + field(4, inner) + field(9, b"")
    assert read_protobuf(data) == {
        "1": "grüße",
        "2": -1,
        "4": [{"1": "Ann", "3": 7}, {"1": "Ann", "3": 7}],
        "9": "",
    }


def test_numbers_of_fixed_size_are_read_as_floats_where_they_are_usual_ones() -> None:
    data = varint(1 << 3 | 1) + struct.pack("<d", 0.25) + varint(2 << 3 | 5) + struct.pack("<I", 7)
    assert read_protobuf(data) == {"1": 0.25, "2": 7}


def test_bytes_that_are_neither_text_nor_message_have_a_digest() -> None:
    digest = hashlib.sha256(b"\xff\xfe\x00").hexdigest()
    assert read_protobuf(field(1, b"\xff\xfe\x00")) == {"1": {"sha256": digest, "size": 3}}


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x07", b"\x00\x01", b"\x08", b"\xff" * 11, b"\0" * (MAX_SIZE + 1)])
def test_what_is_no_message_is_not_read(data: bytes) -> None:
    assert read_protobuf(data) is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    read_protobuf(data)


def test_bytes_that_nest_without_end_are_read_in_bounded_work() -> None:
    data = b"\xff"
    for _ in range(200):
        data = field(1, data)
    assert read_protobuf(data) is not None
    assert read_protobuf(field(1, 1) * 30_000) is None
