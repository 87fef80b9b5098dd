"""On both engines, the process behind a connection names the run if the client names none."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proxy.capture import owner
from proxy.capture.owner import Holder, Owner, Owners, ProcessSearch, _read_proc_net, socket_inode
from proxy.capture.process import read_process
from proxy.wire.access import Access
from tests.support import wire
from tests.support.wire import MemoryRecorder, answering, open_worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="owners are read from /proc and by sock_diag")

CLIENT = """
import os, urllib.request
print(os.getpid(), flush=True)
for _ in range(2):
    urllib.request.urlopen("http://tools.example/x").read()
"""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_tells_whose_socket_it_is(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        taken, peer = server.accept()
        with taken:
            inode = os.fstat(client.fileno()).st_ino
            assert socket_inode(peer[:2], server.getsockname()[:2]) == inode
            assert _read_proc_net(family, peer[1], server.getsockname()[1]) == inode
            # This is the worker's own process, which is not an agent.
            assert ProcessSearch(server.getsockname()[1]).find_holder(peer[:2], server.getsockname()[:2]) is None
    assert socket_inode(peer[:2], ("127.0.0.1", 1)) is None


async def test_no_more_connections_wait_than_there_is_room_for_and_another_machine_is_not_looked_for() -> None:
    owners = Owners("1f")
    assert owners.can_find(("127.0.0.1", 5), ("127.0.0.1", 6))
    assert owners.can_find(("10.0.0.2", 5), ("10.0.0.2", 6))
    assert not owners.can_find(("10.0.0.3", 5), ("10.0.0.2", 6))
    assert owners.machine_owner(("10.0.0.3", 5)) == "1f-10.0.0.3"
    assert owners.machine_owner(("127.0.0.1", 5)) == "1f"
    owners._waiting = 128
    assert not owners.can_find(("127.0.0.1", 5), ("127.0.0.1", 6))


class FinishedPool(ThreadPoolExecutor):
    """Has finished each piece of work when it is submitted."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work(*args, **options))
        return future


async def test_an_owner_that_was_found_counts_although_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that did not run for a while sees the result and the end of its time at once."""
    monkeypatch.setattr(owner, "FIND_TIMEOUT", 0)
    owners, port = Owners("1f"), 6
    holder = Holder(pid=1, start_time=2, descriptors=(3,), owner=Owner("agent.py-1-2"))
    search = ProcessSearch(port)
    monkeypatch.setattr(search, "find_holder", lambda *_: holder)
    owners._search, owners._pool = search, FinishedPool(1)
    assert await owners.find(("127.0.0.1", 5), ("127.0.0.1", port)) == "agent.py-1-2"


def test_a_busy_machine_does_not_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps of the search hours may pass: only its own work counts."""
    hours = count(0, 3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(hours)))
    search = ProcessSearch(1)
    with socket.socket() as sought, socket.socket():
        inode, descriptor = os.fstat(sought.fileno()).st_ino, sought.fileno()
        monkeypatch.setattr(search, "_candidate_pids", lambda: iter((1, os.getppid(), os.getpid())))
        assert search._find_descriptor(inode) == (os.getpid(), descriptor)


@pytest.mark.parametrize("engine", list(wire.ENGINES))
@pytest.mark.parametrize("user", ["", "per-process:secret@"])
async def test_a_client_that_names_no_run_is_recorded_under_its_process(
    tmp_path: Path, engine: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "engine", engine)
    # A request does not wait longer than three seconds for the name of its process; here a busy machine must not decide.
    monkeypatch.setattr(owner, "FIND_TIMEOUT", 30)
    recorder = MemoryRecorder()
    async with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as origin,
        open_worker(
            tmp_path,
            recorder,
            finds_owners=True,
            upstreams={"tools.example": f"http://127.0.0.1:{origin.port}"},
            access=Access(tokens=("secret",) if user else ()),
        ) as worker,
    ):
        proxy = {"http_proxy": f"http://{user}127.0.0.1:{worker.port}", "no_proxy": ""}
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, "--api-key", "hush", env=proxy, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        pid = int(await client.stdout.readline())
        process = read_process(pid)
        assert await client.wait() == 0
    assert process is not None
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == [process.run] * 2
    evidence = dict(recorder.exchanges[0].begun["run_evidence"])
    assert evidence["owner"] == process.run
    assert f"pid {pid}," in evidence["process"]
    assert "hush" not in evidence["process"]


CLIENT_OF_MANY = """
import socket, sys
address = (sys.argv[1], int(sys.argv[2]))
for line in sys.stdin:
    connections = [socket.create_connection(address) for _ in range(int(line))]
"""


async def test_a_process_that_had_a_connection_before_is_found_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        owners = Owners("1f", here[1])
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT_OF_MANY, here[0], str(here[1]), stdin=asyncio.subprocess.PIPE
        )
        assert client.stdin is not None
        client.stdin.write(b"40\n")
        accepted = [await asyncio.to_thread(server.accept) for _ in range(40)]
        peers = [peer for _, peer in accepted]

        assert owners.find_at_once(peers[0], here) is None
        run = await owners.find(peers[0], here)
        assert f"-{client.pid}-" in run
        # The others were seen during the first search, or have the next descriptors.
        assert [owners.find_at_once(peer, here) for peer in peers] == [run] * 40

        client.stdin.write(b"1\n")
        again, peer = await asyncio.to_thread(server.accept)
        assert owners.find_at_once(peer, here) == run
        # Another process with the same pid is another agent.
        monkeypatch.setattr("proxy.capture.owner.start_of_process", lambda pid: -1)
        assert owners.find_at_once(peer, here) is None
        for connection in (again, *(one for one, _ in accepted)):
            connection.close()
        client.stdin.close()
        await client.wait()
    # A connection that the kernel does not know has no owner, and no search is made.
    monkeypatch.setattr("proxy.capture.owner._read_proc_net", lambda *_: pytest.fail("the list was read"))
    assert owners.find_at_once(("127.0.0.1", 1), here) == "1f"
    assert socket_inode(("127.0.0.1", 1), here) is None
