"""WebSocket frames: the same messages as wsproto reads, however they are split; floods cost little, and compression bombs are
not decompressed."""

import itertools
import os
import struct
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameProtocol, ParseFailed

from proxy.mitm.protocol.websocket_frames import (
    ALWAYS_ALLOWED,
    MAX_RATIO,
    DecompressedTooLarge,
    FrameMessage,
    FrameReader,
    NoRoom,
)
from proxy.wire.memory_budget import MemoryBudget

MESSAGES = st.lists(st.one_of(st.text(max_size=300), st.binary(max_size=300)), max_size=5)


def deflate() -> PerMessageDeflate:
    extension = PerMessageDeflate()
    extension.finalize("permessage-deflate")
    return extension


def frame(first: int, payload: bytes) -> bytes:
    size = len(payload)
    length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size) if size < 1 << 16 else b""
    return bytes([first]) + (length or b"\x7f" + struct.pack(">Q", size)) + payload


def compress_frame(opened: int, data: bytes = b"a") -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(data * opened) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


@given(MESSAGES, st.booleans(), st.booleans(), st.integers(1, 200), st.integers(1, 50))
def test_messages_are_read_as_they_were_sent(
    messages: list[str | bytes], by_client: bool, is_compressed: bool, cut: int, fragment: int
) -> None:
    sender = FrameProtocol(client=by_client, extensions=[deflate()] if is_compressed else [])
    sent = bytearray()
    for message in messages:
        sent += sender.ping(b"here")
        pieces = [message[at : at + fragment] for at in range(0, len(message), fragment)] or [message]
        for number, piece in enumerate(pieces):
            sent += sender.send_data(piece, fin=number == len(pieces) - 1)
    sent += sender.close(CloseReason.NORMAL_CLOSURE, "bye")
    listener = FrameReader(to_server=by_client, extensions=[deflate()] if is_compressed else [], budget=MemoryBudget())
    said = [one for at in range(0, len(sent), cut) for one in listener.feed(bytes(sent[at : at + cut]))]
    wanted = [
        one
        for message in messages
        for one in (
            FrameMessage("ping", b"here"),
            FrameMessage("text", message.encode()) if isinstance(message, str) else FrameMessage("binary", message),
        )
    ]
    assert said == [*wanted, FrameMessage("close", b"\x03\xe8bye")]


@pytest.mark.parametrize(
    "data",
    [
        frame(0x91, b""),
        frame(0x83, b"x"),
        frame(0x80, b"x"),
        frame(0x09, b"x"),
        frame(0x8B, b""),
        frame(0x89, b"x" * 126),
        frame(0xC1, b"x"),
        frame(0x81, b"\xff"),
        frame(0x01, b"x") + frame(0x81, b"x"),
        frame(0x88, b"\x03"),
        frame(0x88, b"\x03\xed"),
        frame(0x88, b"\x0b\xb8\xff"),
        b"\x81\x81abcdx",
        b"\x81\x7e\x00\x05hello",
        b"\x81\x7f" + b"\xff" * 8,
    ],
)
def test_what_breaks_the_protocol_is_refused_as_wsproto_refuses_it(data: bytes) -> None:
    with pytest.raises(ParseFailed):
        list(FrameReader(to_server=False, extensions=[], budget=MemoryBudget()).feed(data))
    theirs = FrameProtocol(client=True, extensions=[])
    theirs.receive_bytes(data)
    with pytest.raises(ParseFailed):
        list(theirs.received_frames())


def test_a_message_that_opens_too_far_is_not_opened() -> None:
    bomb = frame(0xC1, compress_frame(64 << 20))
    assert len(bomb) < 100_000
    listener = FrameReader(to_server=False, extensions=[deflate()], budget=MemoryBudget())
    began = time.process_time()
    with pytest.raises(DecompressedTooLarge):
        list(itertools.chain.from_iterable(listener.feed(bomb[at : at + 65536]) for at in range(0, len(bomb), 65536)))
    assert time.process_time() - began < 1


@pytest.mark.parametrize("opened", [ALWAYS_ALLOWED, ALWAYS_ALLOWED // 10])
def test_a_small_message_may_repeat_itself(opened: int) -> None:
    listener = FrameReader(to_server=False, extensions=[deflate()], budget=MemoryBudget())
    (said,) = listener.feed(frame(0xC1, compress_frame(opened)))
    assert said == FrameMessage("text", b"a" * opened)


def test_a_large_message_that_does_not_is_read() -> None:
    data = os.urandom(3 << 20).hex().encode()
    packed = compress_frame(1, data)
    assert len(data) < MAX_RATIO * len(packed)
    (said,) = FrameReader(to_server=False, extensions=[deflate()], budget=MemoryBudget()).feed(frame(0xC1, packed))
    assert said.data == data


def test_a_flood_of_pings_takes_no_time() -> None:
    listener = FrameReader(to_server=False, extensions=[], budget=MemoryBudget())
    flood = frame(0x89, b"ping") * 200_000
    began = time.process_time()
    pings = sum(1 for at in range(0, len(flood), 65536) for _ in listener.feed(flood[at : at + 65536]))
    assert pings == 200_000
    assert time.process_time() - began < 1


def test_all_messages_that_are_coming_share_one_budget() -> None:
    budget = MemoryBudget(1000)
    begun = frame(0x02, b"a" * 400)
    listeners = [FrameReader(to_server=False, extensions=[], budget=budget) for _ in range(3)]
    for listener in listeners[:2]:
        assert list(listener.feed(begun)) == []
    with pytest.raises(NoRoom):
        list(listeners[2].feed(begun))
    # Complete messages and closed connections have returned their memory.
    assert list(listeners[0].feed(frame(0x80, b"b"))) == [FrameMessage("binary", b"a" * 400 + b"b")]
    del listeners[1:], listener
    assert budget.free_bytes == 1000
