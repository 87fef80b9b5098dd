"""The proxy worker's control socket: launchers send the listening sockets of captured commands, and request reports.

Each message is a JSON object, with sockets attached by SCM_RIGHTS. A capture ends when its connection ends.
"""

import asyncio
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from proxy.capture.control_path import remove_directory_elsewhere
from proxy.errors import Failure
from store.private_file import listen_privately, remove_abandoned_sockets

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES: Final = 64 << 10
MAX_SOCKETS: Final = 64
MAX_CONNECTIONS: Final = 256
"""Concurrent captures of one worker."""

type Kind = Literal["tcp", "dns"]


class CaptureRefused(Exception):
    """A capture cannot begin. The message is for the launcher."""


class PassedSocket(msgspec.Struct, frozen=True):
    """A socket that was created in the command's namespace."""

    kind: Kind
    is_redirected: bool
    endpoint: socket.socket


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher's first message."""

    run: str
    token: str
    passes_other_tcp: bool
    allow_local: frozenset[tuple[str, int]]
    unresolved_names: frozenset[str] = frozenset()
    """Host names that did not resolve when the run that is replayed was recorded."""

    sockets: Sequence[PassedSocket]


class RunningCapture(Protocol):
    """A capture, as the control socket uses it."""

    def report(self) -> Mapping[str, Any]: ...
    async def recorded_ports(self) -> Sequence[int]: ...
    async def end(self) -> None: ...


type Begin = Callable[[CaptureRequest], Awaitable[RunningCapture]]


class ControlSocket:
    """A socket that listens for launchers of the same user."""

    def __init__(self, path: Path, begin: Begin) -> None:
        self.path = path
        self._begin = begin
        self._listener = _listen(path)
        self._connections: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        """Close the socket, and end every capture."""
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        self.path.unlink(missing_ok=True)
        remove_directory_elsewhere(self.path)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS or _peer_user(connection) not in (os.geteuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        capture: RunningCapture | None = None
        try:
            while message := await _receive_message(connection):
                if capture is None:
                    capture, reply = await self._begin_capture(*message)
                    if capture is not None:
                        reply = {**reply, "recorded_ports": await capture.recorded_ports()}
                else:
                    _close_all(message[1])
                    reply = _report_reply(capture, message[0])
                await _send_message(connection, reply)
        except (OSError, ValueError) as error:
            logger.warning("a capture's control connection broke: %s", error)
        except Exception as fault:  # a guard: no code awaits this task
            logger.error("a capture ended because of an internal error", exc_info=fault)
        finally:
            connection.close()
            if capture is not None:
                await asyncio.shield(capture.end())

    async def _begin_capture(self, text: bytes, files: list[int]) -> tuple[RunningCapture | None, Mapping[str, Any]]:
        try:
            return await self._begin(_parse_request(text, files)), {"ready": True}
        except CaptureRefused as refused:
            return None, {"failed": str(refused)}


def _report_reply(capture: RunningCapture, text: bytes) -> Mapping[str, Any]:
    try:
        wants_report = json.loads(text) == {"report": True}
    except ValueError:
        wants_report = False
    return capture.report() if wants_report else {"failed": 'unknown message: send {"report": true}'}


def _listen(path: Path) -> socket.socket:
    _prepare_directory(path)
    try:
        return listen_privately(path, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise Failure(
            f"cannot listen on the control socket {path}: {error.strerror or error}; choose another or a shorter data"
            " directory with --data DIR"
        ) from error


def _prepare_directory(path: Path) -> None:
    """Create the directory, and remove the sockets of killed workers from it."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.parent.stat().st_uid != os.geteuid():
            raise Failure(f"{path.parent} belongs to another user; choose a shorter data directory with --data DIR")
        remove_abandoned_sockets(path.parent, "*.sock", socket.SOCK_SEQPACKET)
    except OSError as error:
        raise Failure(
            f"cannot use the directory of control sockets {path.parent}: {error.strerror}; choose another data directory"
            " with --data DIR"
        ) from error


def _peer_user(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


async def _receive_message(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive a message with its descriptors; None at the end."""
    await _wait_until_ready(connection, write=False)
    data, files, flags, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_SOCKETS, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        _close_all(files)
        raise ValueError(f"a message has more than {MAX_MESSAGE_BYTES} bytes or {MAX_SOCKETS} sockets")
    return (data, files) if data else None


async def _send_message(connection: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    # A message is one packet, so a long report needs a large enough send buffer.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data) + (64 << 10))
    while True:
        try:
            connection.send(data)
        except BlockingIOError:
            await _wait_until_ready(connection, write=True)
        else:
            return


async def _wait_until_ready(connection: socket.socket, *, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add(connection.fileno(), set_ready)
    try:
        await ready
    finally:
        remove(connection.fileno())


def _parse_request(text: bytes, files: list[int]) -> CaptureRequest:
    """Parse the first message. Raises CaptureRefused, after closing the descriptors."""
    sockets: list[socket.socket] = []
    try:
        sockets = [socket.socket(fileno=file) for file in files]
        message = json.loads(text)
        kinds = message["sockets"]
        if len(kinds) != len(sockets):
            raise CaptureRefused(
                f"the message describes {len(kinds)} sockets and has {len(sockets)}: send as many as it describes"
            )
        other_tcp = message.get("other_tcp", "refuse")
        if other_tcp not in ("pass", "refuse") or any(kind["kind"] not in ("tcp", "dns") for kind in kinds):
            raise CaptureRefused(
                "invalid message: other_tcp must be pass or refuse, and the kind of each socket must be tcp or dns"
            )
        return CaptureRequest(
            run=str(message["run"]),
            token=message.get("token") or "",
            passes_other_tcp=other_tcp == "pass",
            allow_local=frozenset((str(host), int(port)) for host, port in message.get("allow_local", ())),
            unresolved_names=frozenset(map(str, message.get("unresolved_names", ()))),
            sockets=[
                PassedSocket(kind["kind"], kind.get("destination") == "redirected", endpoint)
                for kind, endpoint in zip(kinds, sockets, strict=True)
            ],
        )
    except BaseException as error:
        for one in sockets:
            one.close()
        _close_all(files[len(sockets) :])
        if isinstance(error, (ValueError, TypeError, KeyError, AttributeError, OSError)):
            raise CaptureRefused(
                f"the message to the control socket cannot be read ({type(error).__name__}: {error})"
            ) from error
        raise


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
