"""With --block-network pytest runs in its own network namespace: every client is recorded, replayed, or refused and listed."""

import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.clients.suite_directory import SuiteDirectory
from tests.proxy.capture.running import needs_namespaces

pytestmark = pytest.mark.slow

AGENT = """
import asyncio, subprocess
import aiohttp, pytest

URL = "https://tickets.example.com/v2/tickets?client="

@pytest.mark.playhead
def test_aiohttp(playhead_run):
    async def ask():
        async with aiohttp.ClientSession() as session, session.get(URL + "aiohttp") as answer:
            return await answer.json()
    assert asyncio.run(ask())["total"] == 3
    assert playhead_run.calls.path == ["GET tickets.example.com/v2/tickets"]

@pytest.mark.playhead
def test_curl():
    assert '"total": 3' in subprocess.check_output(["env", "-i", CURL, "-sS", URL + "curl"], text=True)
"""


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    needs_namespaces()


def write_agent(suite: SuiteDirectory) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed here")
    suite.write("test_agent.py", AGENT.replace("CURL", repr(curl)))


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_clients_that_read_no_variable_are_recorded_and_replayed(
    suite: SuiteDirectory, workers: tuple[str, ...]
) -> None:
    write_agent(suite)
    flags = "--block-network", "--isolation=require", *workers
    plugins = ("xdist",) if workers else ()
    ran = suite.pytest("--record-mode=once", *flags, plugins=plugins)
    assert ran.counts == {"passed": 2}, ran.out
    assert sorted(suite.upstream_requests) == [f"GET /v2/tickets?client={name}" for name in ("aiohttp", "curl")]
    suite.upstream_requests.clear()
    if not workers:
        ran = suite.pytest(*flags)
        assert ran.counts == {"passed": 2}, ran.out
        assert not suite.upstream_requests


REFUSED = """
import socket, subprocess
import pytest

def test_http():
    subprocess.run([CURL, "-sSf", "https://api.elsewhere.example/a"], check=True)

def test_another_protocol():
    with socket.create_connection(("198.51.100.6", 5432), 5) as connection:
        connection.sendall(bytes(8))
        assert connection.recv(1)

@pytest.mark.playhead
def test_swallowed():
    try:
        with socket.create_connection(("198.51.100.7", 5432), 5) as connection:
            connection.sendall(bytes(8))
            connection.recv(1)
    except OSError:
        pass

def test_datagrams():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.connect(("198.51.100.8", 123))
        sending.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            sending.recv(1)
"""


def test_what_may_not_leave_is_refused_and_named(suite: SuiteDirectory) -> None:
    write_agent(suite)
    suite.write("test_refused.py", "import pytest\n@pytest.mark.playhead\ndef test_swallowed(): pass\n")
    assert suite.pytest("--record-mode=once", "test_refused.py").code == 0
    suite.write("test_refused.py", REFUSED.replace("CURL", repr(shutil.which("curl"))))
    ran = suite.pytest("--block-network", "--isolation=require", "test_refused.py")
    assert ran.counts == {"failed": 3, "passed": 1}, ran.out
    assert "GET https://api.elsewhere.example/a: --block-network is set, and this test has no recording" in ran
    assert "a connection to 198.51.100.6:5432" in ran
    assert "a connection to 198.51.100.7:5432" in ran
    assert "the test passed, but Playhead failed it" in ran
    assert "playhead: refused: udp 198.51.100.8:123" in ran
    assert not suite.upstream_requests


class Greeting(socketserver.BaseRequestHandler):
    """A server that sends the first message."""

    def handle(self) -> None:
        self.request.sendall(b"hello")


@contextmanager
def service() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


LOCAL = """
import os, socket, sys
import pytest

def test_a_service_of_this_machine():
    with socket.create_connection(("127.0.0.1", PORT), 5) as connection:
        assert connection.recv(5) == b"hello"

def test_its_own_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()

def test_nobody_inherits_what_is_ours():
    assert not [name for name in os.environ if name.startswith(("PLAYHEAD_PYTEST_", "PLAYHEAD_SUITE_"))]
    assert os.environ["PYTHONPATH"]

def test_fails():
    print("said by a test")
    assert False
"""


def test_a_suite_is_as_it_was_but_for_its_network(suite: SuiteDirectory) -> None:
    (suite.directory / "tests").mkdir()
    with service() as port:
        suite.write("test_local.py", LOCAL.replace("PORT", str(port)))
        ran = suite.pytest("--block-network", "--isolation=require", "--rootdir", "..", "test_local.py")
    assert ran.counts == {"failed": 1, "passed": 3}, ran.out
    assert ran.code == 1
    assert "said by a test" in ran


def test_where_it_cannot_be_it_is_said(suite: SuiteDirectory, tmp_path_factory: pytest.TempPathFactory) -> None:
    suite.write("test_quiet.py", "def test_quiet(): pass\n")
    # As in a container: no namespace may be created by this pytest and its children.
    limited = tmp_path_factory.mktemp("bin") / "playhead"
    limited.write_text(f"""#!/bin/sh
exec unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_net_namespaces && exec {suite.playhead} "$@"' sh "$@"
""")
    limited.chmod(0o755)
    if not shutil.which("unshare"):
        pytest.skip("unshare is not installed here")
    ran = suite.pytest("--block-network", PLAYHEAD_COMMAND=str(limited))
    assert ran.counts == {"passed": 1}, ran.out
    assert "playhead: not isolated: entering namespaces of its own failed" in ran
    ran = suite.pytest("--block-network", "--isolation=require", PLAYHEAD_COMMAND=str(limited))
    assert ran.code == 4, ran.out
    assert "pytest cannot be isolated here: entering namespaces of its own failed" in ran
    ran = suite.pytest("--block-network", "-n", "1", plugins=("xdist",), PLAYHEAD_COMMAND=str(limited))
    assert "not isolated: entering namespaces of its own failed" in ran
    assert ran.code == 0, ran.out
