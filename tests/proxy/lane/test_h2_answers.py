"""Answers from a record over HTTP/2."""

from pathlib import Path

import pytest

from replay.answer import Answer, Piece
from tests.support.h2wire import Peer, StreamBroken
from tests.support.wire import ScriptedAnswerer, connected, opened


@pytest.mark.parametrize("pieces", [3, 200, 2000])
async def test_a_cut_comes_behind_all_that_came_before_it(tmp_path: Path, pieces: int) -> None:
    """Also where that is more than the client's window: a reset overtakes what waits for it."""
    answer = Answer(status=200, reason="OK", headers=(), pieces=(Piece(0, bytes(1000)),) * pieces, end="cut")
    async with opened(tmp_path, answerer=ScriptedAnswerer(answer, alpn=("h2",))) as door:
        peer = Peer(*await connected(door, "api.test:443", alpn=("h2",)), client=True)
        stream = peer.ask("api.test", "/")
        with pytest.raises(StreamBroken, match=r"code 2$"):
            await peer.answer(stream)
        peer.writer.close()
    assert len(peer.streams[stream].body) == 1000 * pieces
