"""Floods of empty HTTP/2 frames are detected before parsing; frames with data are unlimited."""

import pytest

from proxy.mitm.protocol.flood import (
    ALLOWED_FRAMES,
    BYTES_PER_FRAME,
    FRAMES_PER_SECOND,
    PREFACE,
    RESET_COST,
    FloodGuard,
)


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + (1).to_bytes(4) + payload


FLOODS = {
    "empty data": frame(0),
    "priority": frame(2, bytes(5)),
    "rapid reset": frame(1, b"head", 5) + frame(3, bytes(4)),
    "settings": frame(4),
    "pings": frame(6, bytes(8)),
    "windows": frame(8, bytes(4)),
    "continuations": frame(9, b"x"),
    "unknown": frame(77),
}


@pytest.mark.parametrize("cut", [1, 7, 65536])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_noticed_however_it_is_cut(flood: str, cut: int) -> None:
    guard = FloodGuard(preface=True)
    sent = PREFACE + FLOODS[flood] * 2 * ALLOWED_FRAMES
    places = [at for at in range(0, len(sent), cut) if guard.is_flooded(sent[at : at + cut], 0.0)]
    assert places
    assert places[0] <= len(PREFACE) + len(FLOODS[flood]) * (ALLOWED_FRAMES + 1)


def test_as_many_as_come_in_a_busy_connection_are_none() -> None:
    guard = FloodGuard(preface=False)
    # A download: window updates. An upload: data. A chat: pings, and requests that are reset.
    for n in range(20_000):
        guard.credit_sent(16 << 10)
        assert not guard.is_flooded(frame(8, bytes(4)) * 2, n / 1000)
        assert not guard.is_flooded(frame(0, bytes(1024)), n / 1000)
    for n in range(1000):
        assert not guard.is_flooded(
            frame(6, bytes(8)) + frame(1, b"head") + frame(3, bytes(4)), 20 + n * 6 / FRAMES_PER_SECOND * 2
        )
    assert BYTES_PER_FRAME <= 1024
    assert RESET_COST < ALLOWED_FRAMES
