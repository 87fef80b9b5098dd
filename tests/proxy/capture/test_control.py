"""The control socket: each message has one answer, and a capture ends with its connection."""

import asyncio
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from proxy.capture import capture as capture_module
from proxy.capture import control as control_module
from proxy.capture.control import CaptureRefused, CaptureRequest, ControlSocket
from proxy.capture.control_path import MAX_PATH_BYTES, control_path
from proxy.wire.access import Access
from store.private_file import listen_privately
from tests.proxy.capture.conftest import Capturing, Launcher, listening
from tests.support.wire import MemoryRecorder, ScriptedAnswerer

TCP = {"kind": "tcp", "destination": "local"}


async def test_only_the_user_may_connect(capturing: Capturing) -> None:
    async with capturing(MemoryRecorder()) as capture:
        path = capture.worker.config.control
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"no JSON", "cannot be read"),
        (b"[]", "cannot be read"),
        ({"run": "run-1"}, "cannot be read"),
        ({"run": "run-1", "sockets": [TCP]}, "describes 1 sockets and has 0"),
        ({"run": "no run/", "sockets": []}, "cannot name a run"),
        ({"run": "run-1", "other_tcp": "maybe", "sockets": []}, "pass or refuse"),
        ({"run": "run-1", "other_tcp": "pass", "sockets": [{"kind": "udp"}]}, "describes 1 sockets"),
        ({"run": "run-1", "token": "wrong", "sockets": []}, "invalid token for this proxy worker"),
    ],
)
async def test_a_wrong_message_is_refused_with_a_sentence(
    capturing: Capturing, message: bytes | dict[str, Any], words: str
) -> None:
    async with capturing(MemoryRecorder(), access=Access(tokens=("right",)), message={"token": "right"}) as capture:
        path = capture.worker.config.control
        assert path is not None
        launcher = Launcher(path)
        reply = await launcher.send(message)
        launcher.close()
        assert words in reply["failed"]


class _StuckAnswerer(ScriptedAnswerer):
    """Loads a recording for ever."""

    async def recorded_authorities(self, run: str) -> Iterable[str]:
        await asyncio.Event().wait()
        return ()


async def test_a_recording_that_takes_long_to_load_does_not_keep_the_command_from_being_captured(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "LOAD_TIMEOUT", 0.05)
    async with capturing(None, _StuckAnswerer()) as capture:
        assert await capture.report() == []


async def test_what_is_no_listening_socket_is_refused(capturing: Capturing) -> None:
    async with capturing(MemoryRecorder()) as capture:
        path = capture.worker.config.control
        assert path is not None
        launcher = Launcher(path)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            reply = await launcher.send({"run": "run-1", "sockets": [TCP]}, [datagrams])
        launcher.close()
        assert "cannot be served" in reply["failed"]


async def test_the_end_of_the_connection_ends_the_capture(capturing: Capturing) -> None:
    async with capturing(None, ScriptedAnswerer()) as capture:
        address = await capture.address("some.test")
        _, waiting = await asyncio.open_connection(address, capture.port)
        capture.launcher.close()
        # The worker closes its listening socket after it has read the end of the control connection.
        async with asyncio.timeout(60):
            while await _accepts(address, capture.port):
                pass
        waiting.close()


async def _accepts(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionError:
        return False
    writer.close()
    return True


async def test_an_unknown_second_message_is_answered_with_a_sentence(capturing: Capturing) -> None:
    async with capturing(MemoryRecorder()) as capture:
        assert "unknown message" in (await capture.launcher.send({"what": 1}))["failed"]
        assert await capture.report() == []


async def test_sockets_of_a_refused_message_are_closed(capturing: Capturing) -> None:
    async with capturing(MemoryRecorder()) as capture:
        path = capture.worker.config.control
        assert path is not None
        launcher = Launcher(path)
        listener = listening(9, 0)
        address = listener.getsockname()
        await launcher.send({"run": "no run/", "sockets": [TCP]}, [listener])
        listener.close()
        launcher.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


def test_a_worker_that_starts_leaves_another_that_starts_its_socket(tmp_path: Path) -> None:
    """Each removes sockets of dead workers: what nobody listens on yet is none of those."""
    begin_to_listen = socket.socket.listen

    def start_another_first(self: socket.socket, backlog: int) -> None:
        control_module._prepare_directory(second)
        begin_to_listen(self, backlog)

    first, second = tmp_path / "control" / "one.sock", tmp_path / "control" / "two.sock"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket.socket, "listen", start_another_first)
        listener = control_module._listen(first)
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(first))


def test_a_long_data_directory_has_its_socket_elsewhere(tmp_path: Path) -> None:
    near, far = control_path(tmp_path / "a", "up-0"), control_path(tmp_path / ("b" * 120), "up-0")
    assert near == tmp_path / "a" / "control" / "up-0.sock"
    assert len(bytes(far)) <= MAX_PATH_BYTES
    assert far != control_path(tmp_path / ("c" * 120), "up-0")


async def test_a_directory_of_sockets_elsewhere_is_removed_with_its_last_socket(tmp_path: Path) -> None:
    root = tmp_path / ("b" * 120)

    async def refuse(_request: CaptureRequest) -> NoReturn:
        raise CaptureRefused("no capture begins here")

    first, second = (ControlSocket(control_path(root, name), refuse) for name in ("up-0", "up-1"))
    await first.close()
    assert second.path.is_socket()
    await second.close()
    assert not second.path.parent.exists()


def test_a_directory_that_another_process_removes_at_that_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "control" / "one.sock"
    make = Path.mkdir

    def make_and_lose(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make(self, mode, parents, exist_ok)
        if not times:
            times.append(self)
            self.rmdir()

    times: list[Path] = []
    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    with listen_privately(path, socket.SOCK_SEQPACKET), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
    assert times
