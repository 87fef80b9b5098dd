"""Ports are drawn and reserved without another process being able to take them."""

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from typing import Any

import pytest

from proxy.errors import Failure
from proxy.processes import ports
from proxy.processes.ports import free_port, reserve_port

REUSE = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


@contextmanager
def listening(host: str, port: int, *options: int) -> Iterator[None]:
    with socket.socket() as one:
        for option in options:
            one.setsockopt(socket.SOL_SOCKET, option, 1)
        one.bind((host, port))
        one.listen()
        yield


def test_a_reserved_port_is_not_drawn_and_is_left_to_those_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = "127.0.0.1"
    with reserve_port(host, 0) as port, monkeypatch.context() as patch, ExitStack() as stack:
        draw_only(patch, port)
        assert free_port(host, 0) != port
        with reserve_port(host, 0) as other:
            assert other != port
        if sys.platform == "linux":
            # The store server, again after it has ended.
            for _ in range(2):
                with listening(host, port, socket.SO_REUSEADDR), pytest.raises(Failure, match="choose another port"):
                    free_port(host, port)
        for _ in range(2):
            stack.enter_context(listening(host, port, *REUSE))
        with pytest.raises(OSError, match="in use"):
            stack.enter_context(listening(host, port, socket.SO_REUSEADDR))


def draw_only(patch: pytest.MonkeyPatch, port: int) -> None:
    class Generator:
        def sample(self, _population: Any, count: int) -> Sequence[int]:
            return list(repeat(port, count))

    patch.setattr(ports, "_random", Generator())
