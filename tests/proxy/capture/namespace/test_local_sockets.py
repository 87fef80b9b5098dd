"""A captive command's connections to services that are not in its network: unix sockets of this machine, and multicast."""

import asyncio
import ctypes
import errno
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.capture.control_path import effects_path
from proxy.capture.namespace.launch import Captive, CapturePlan, CaptureReport
from proxy.capture.namespace.trust_files import AuthorityFiles
from proxy.capture.watch.local_services import is_message_bus
from proxy.trust.ca import ensure_ca
from replay.report import report_with_escapes
from tests.proxy.capture.daemon import Daemon
from tests.proxy.capture.receiver import receiving
from tests.proxy.capture.running import needs_namespaces


def _io_uring_result() -> str:
    """Whether this system already refuses io_uring, as Docker does."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(425, 1, ctypes.create_string_buffer(120))
    if descriptor >= 0:
        os.close(descriptor)
    return "refused" if descriptor < 0 and ctypes.get_errno() == errno.EPERM else "as usual"


IO_URING_BEFORE = _io_uring_result()


class Service:
    """A service of this machine at a unix socket, which counts what reaches it."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "service.sock")
        self.datagrams = str(directory / "datagrams.sock")
        self.visits = 0
        self.keeps_visitors = False
        self._visitors: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self.receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.receiver.bind(self.datagrams)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            visitor, _ = self._listener.accept()
            with visitor:
                if visitor.recv(10) == b"end":
                    return
                self.visits += 1
                if self.keeps_visitors:
                    self._visitors.append(visitor.dup())
                visitor.sendall(b"served")

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.path)
            last.sendall(b"end")
        self._thread.join()
        for one in (*self._visitors, self._listener, self.receiver):
            one.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path)
    yield found
    found.close()


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[CapturePlan]:
    needs_namespaces()
    (tmp_path / "worker").mkdir()
    authority = AuthorityFiles(certificate=ensure_ca(tmp_path / "keys").certificate, java=None)
    with receiving(tmp_path / "worker") as receiver:
        yield CapturePlan(
            control=str(receiver.path), run="r", token=None, authority=authority, passes_other_tcp=True, is_replay=False
        )


def skip_if_unwatched(report: CaptureReport) -> None:
    """Skip the test if the system does not let connections be watched. Any other reason is a failure."""
    if "system does not allow" in report.unwatched_reason:
        pytest.skip(report.unwatched_reason)
    assert not report.unwatched_reason


async def run_captive(capture: CapturePlan, program: str, *arguments: str) -> dict[str, tuple[str, str, int]]:
    """Run a program that must succeed. Returns protocol, outcome and count of what was noticed, by destination."""
    async with Captive([sys.executable, "-c", "import socket, sys\n" + program, *arguments], capture) as captive:
        assert await captive.run(os.environ) == 0
        report = await captive.report()
    skip_if_unwatched(report)
    return {one["destination"]: (one["protocol"], one["outcome"], one["count"]) for one in report.connections}


VISIT = """
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1]); one.sendall(b"x"); assert one.recv(10) == b"served"
"""

REFUSED = """
import errno
with socket.socket(socket.AF_UNIX) as one:
    assert one.connect_ex(sys.argv[1]) == errno.ECONNREFUSED
"""


async def test_a_unix_socket_of_this_machine_passes_in_a_recording_and_is_named(
    capture: CapturePlan, service: Service
) -> None:
    assert await run_captive(capture, VISIT + VISIT, service.path) == {service.path: ("unix", "passed", 2)}
    assert service.visits == 2
    there = f"import os; os.chdir({os.path.dirname(service.path)!r}); sys.argv.append('service.sock')\n"
    assert await run_captive(capture, there + VISIT) == {service.path: ("unix", "passed", 1)}


async def test_each_connection_counts_also_while_another_is_open(capture: CapturePlan, service: Service) -> None:
    both = """
first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
for one in (first, second):
    one.connect(sys.argv[1]); one.sendall(b"x"); assert one.recv(10) == b"served"
"""
    service.keeps_visitors = True
    assert await run_captive(capture, both, service.path) == {service.path: ("unix", "passed", 2)}


async def test_it_is_refused_and_named_in_a_replay(capture: CapturePlan, service: Service) -> None:
    replay = replace(capture, passes_other_tcp=False, is_replay=True)
    assert await run_captive(replay, REFUSED, service.path) == {service.path: ("unix", "refused", 1)}
    assert service.visits == 0


@pytest.mark.parametrize("directory", ["/proc/self/fd", "/proc/thread-self/fd", "/dev/fd"])
async def test_a_path_by_way_of_a_descriptor_is_the_same_service(
    capture: CapturePlan, service: Service, directory: str
) -> None:
    program = f"""
import os
opened = os.open(os.path.dirname(sys.argv[1]), os.O_PATH)
sys.argv[1] = f"{directory}/{{opened}}/{{os.path.basename(sys.argv[1])}}"
"""
    replay = replace(capture, passes_other_tcp=False, is_replay=True)
    assert await run_captive(replay, program + REFUSED, service.path) == {service.path: ("unix", "refused", 1)}
    assert service.visits == 0


async def test_a_summary_says_so_if_addresses_cannot_be_read(
    capture: CapturePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> bytes:
        ctypes.set_errno(errno.EPERM)
        return b""

    monkeypatch.setattr("proxy.capture.watch.local_sockets.socket_address", refuse)
    program = "import socket; socket.socket(socket.AF_UNIX).connect_ex('/nowhere')"
    async with Captive([sys.executable, "-c", program], capture) as captive:
        assert await captive.run(os.environ) == 0
        assert "does not allow reading" in (await captive.report()).unwatched_reason


async def test_a_bug_in_reading_an_address_lets_no_connection_wait(
    capture: CapturePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("proxy.capture.watch.local_sockets.outside_service", fail)
    program = "import socket; [socket.socket(socket.AF_UNIX).connect_ex('/nowhere') for _ in range(2)]"
    async with Captive([sys.executable, "-c", program], capture) as captive:
        async with asyncio.timeout(20):
            assert await captive.run(os.environ) == 0
        assert "a bug" in (await captive.report()).unwatched_reason


@pytest.mark.parametrize(("is_bus", "verdict"), [(False, "diverged"), (True, "right")])
async def test_a_replay_without_a_service_is_not_right_except_for_a_message_bus(
    capture: CapturePlan, service: Service, monkeypatch: pytest.MonkeyPatch, is_bus: bool, verdict: str
) -> None:
    """Like a refused connection over TCP. At a bus, libraries of desktops look on their own account."""
    if is_bus:
        monkeypatch.setattr("proxy.capture.watch.local_services._MESSAGE_BUS", re.compile(re.escape(service.path)))
    replay = replace(capture, passes_other_tcp=False, is_replay=True)
    line = [sys.executable, "-c", "import socket, sys\n" + REFUSED, service.path]
    async with Captive(line, replay) as captive:
        assert await captive.run(os.environ) == 0
        report = await captive.report()
    skip_if_unwatched(report)
    right = {"verdict": "right", "refused": 0, "refusals": [], "first_divergence": None}
    assert report_with_escapes(right | {"connections": report.connections})["verdict"] == verdict


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/run/dbus/system_bus_socket", True),
        ("/run/user/1000/bus", True),
        ("/run/user/1000/at-spi/bus_0", True),
        ("/run/postgresql/.s.PGSQL.5432", False),
        ("/home/me/run/user/1000/bus", False),
    ],
)
def test_message_buses_are_known_by_their_paths(path: str, expected: bool) -> None:
    assert is_message_bus(path) == expected


SET_UP_IO_URING = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
descriptor = libc.syscall(425, 1, ctypes.create_string_buffer(120))
assert (descriptor < 0 and ctypes.get_errno() == errno.EPERM) == (sys.argv[1] == "refused"), ctypes.get_errno()
"""


async def test_a_replay_refuses_io_uring_by_which_connections_would_not_be_noticed(capture: CapturePlan) -> None:
    assert await run_captive(capture, SET_UP_IO_URING, IO_URING_BEFORE) == {}
    replay = replace(capture, passes_other_tcp=False, is_replay=True)
    found = await run_captive(replay, SET_UP_IO_URING, "refused")
    assert found == {"io_uring_setup": ("io_uring", "refused", 1)}


async def test_a_replay_reaches_of_the_sockets_of_playhead_that_of_its_effects_alone(
    capture: CapturePlan, tmp_path: Path
) -> None:
    """Behind the others are processes that have the network: a `playhead record` in a replay would record from it."""
    # The other one stands for the control socket of another worker, in the same directory.
    with closing(Service(Path(capture.control).parent)) as up, socket.socket(socket.AF_UNIX) as effects:
        effects.bind(str(effects_path(capture.control)))
        effects.listen()
        reach = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[2])\n"
        assert await run_captive(capture, reach + VISIT, up.path, effects.getsockname()) == {}
        replay = replace(capture, passes_other_tcp=False, is_replay=True)
        found = await run_captive(replay, reach + REFUSED, up.path, effects.getsockname())
        assert found == {up.path: ("unix", "refused", 1)}
        assert up.visits == 1


async def test_allow_local_lets_a_replay_reach_it(capture: CapturePlan, service: Service) -> None:
    replay = replace(capture, passes_other_tcp=False, is_replay=True, allow_local=[(service.path, 0)])
    assert await run_captive(replay, VISIT, service.path) == {}
    assert service.visits == 1


async def test_datagrams_to_a_unix_socket_are_noticed(capture: CapturePlan, service: Service) -> None:
    send = "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', sys.argv[1])"
    assert await run_captive(capture, send, service.datagrams) == {service.datagrams: ("unix", "passed", 1)}
    assert service.receiver.recv(10) == b"x"


async def test_its_own_unix_sockets_are_its_own(capture: CapturePlan, tmp_path: Path) -> None:
    own = """
import os, threading
os.chdir(sys.argv[1])
for bound, named in (("a.sock", "a.sock"), (sys.argv[1] + "/b.sock", sys.argv[1] + "/c.sock"), ("\\0own", "\\0own")):
    server = socket.socket(socket.AF_UNIX)
    server.bind(bound); server.listen()
    if named != bound:
        os.rename(bound, named)
    client = socket.socket(socket.AF_UNIX)
    client.connect(named)
    server.accept()[0].sendall(b"own"); assert client.recv(3) == b"own"
"""
    for refuses in (False, True):
        place = tmp_path / f"own-{refuses}"
        place.mkdir()
        assert await run_captive(replace(capture, passes_other_tcp=not refuses), own, str(place)) == {}


async def test_a_socket_of_this_machine_with_the_name_of_an_own_one_is_not_its_own(
    capture: CapturePlan, service: Service, tmp_path: Path
) -> None:
    """Postgres binds its socket relatively to its data, and has the same name everywhere."""
    (tmp_path / "data").mkdir()
    own = f"""
import os
os.chdir({str(tmp_path / "data")!r})
server = socket.socket(socket.AF_UNIX)
server.bind("service.sock"); server.listen()
socket.socket(socket.AF_UNIX).connect(os.path.abspath("service.sock"))
"""
    replay = replace(capture, passes_other_tcp=False, is_replay=True)
    assert await run_captive(replay, own + REFUSED, service.path) == {service.path: ("unix", "refused", 1)}
    assert service.visits == 0


async def test_what_outlives_a_replay_is_refused_and_does_not_hang(
    capture: CapturePlan, service: Service, tmp_path: Path
) -> None:
    daemon = Daemon(tmp_path, "socket.socket(socket.AF_UNIX).connect(sys.argv[1])")
    assert await run_captive(replace(capture, passes_other_tcp=False), daemon.script, service.path) == {}
    assert await daemon.act() == "Connection refused"
    assert service.visits == 0


async def test_multicast_is_named_like_other_datagrams(capture: CapturePlan) -> None:
    send = """
for family, place in ((socket.AF_INET, ("224.0.0.251", 5353)), (socket.AF_INET6, ("ff02::fb", 5353))):
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", place)
"""
    assert await run_captive(capture, send) == {
        "224.0.0.251:5353": ("udp", "refused", 1),
        "[ff02::fb]:5353": ("udp", "refused", 1),
    }
