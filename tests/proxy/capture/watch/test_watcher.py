"""Every connection past the worker of a command that is not captive is noticed, and the command runs as usual."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from proxy.capture.watch.seccomp import linux_version
from proxy.capture.watch.watcher import Escape, How, WatchResult, run_watched
from tests.proxy.capture.daemon import Daemon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are watched on Linux only")

NOWHERE = "203.0.113.5"
"""An address for documentation (RFC 5737), which no host has."""


@pytest_asyncio.fixture
async def elsewhere() -> AsyncIterator[int]:
    """A server of this machine that the command did not start."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, backlog=512)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def watch_script(
    script: str, *arguments: object, how: How = "seccomp", own: int = 1, refuses: bool = False, **env: str
) -> WatchResult:
    line = [sys.executable, "-c", "import socket, sys\n" + script, *map(str, arguments)]
    found = await run_watched(line, {**os.environ, **env}, [("127.0.0.1", own)], how=how, refuses=refuses)
    if how == "seccomp" and found.how != "seccomp":
        assert "system does not allow" in found.reason
        pytest.skip(found.reason)
    return found


def escapes(found: WatchResult) -> set[tuple[str, str, int]]:
    return {(one.protocol, one.destination, one.count) for one in found.escapes}


CONNECT = "socket.create_connection(('127.0.0.1', int(sys.argv[1]))).close()\n"


async def test_a_hundred_short_connections_are_all_noticed(elsewhere: int) -> None:
    found = await watch_script(f"for _ in range(100): {CONNECT}", elsewhere)
    assert found.code == 0
    assert found.escapes == (Escape(protocol="tcp", destination=f"127.0.0.1:{elsewhere}", count=100),)
    assert "100 times" in found.escapes[0].sentence


async def test_a_bug_in_reading_an_address_lets_no_connection_wait(
    elsewhere: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("proxy.capture.watch.notifications.outside_service", fail)
    async with asyncio.timeout(20):
        assert (await watch_script(CONNECT + CONNECT, elsewhere)).code == 0
    assert "was not noticed" in caplog.text


async def test_what_reaches_the_worker_or_the_command_s_own_server_is_no_escape(elsewhere: int) -> None:
    own = """
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
socket.socketpair()
"""
    assert (await watch_script(own + CONNECT, elsewhere, own=elsewhere)).escapes == ()


async def test_a_port_of_this_machine_on_which_nobody_listens_is_no_escape() -> None:
    script = "assert socket.socket().connect_ex(('127.0.0.1', 1)) == 111"
    found = await watch_script(script)
    assert (found.code, found.escapes) == (0, ())


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("s.sendto(b'x', a)", 1),
        ("s.sendmsg([b'x'], [], 0, a)", 1),
        ("s.connect(a); import time; time.sleep(1)", 1),
        ("s.connect(a); s.close()", 0),
        ("s.sendto(b'x', (a[0], 53))", 0),
    ],
    ids=["sendto", "sendmsg", "connected", "a route that is looked up", "a name that is looked up"],
)
async def test_datagrams_are_noticed_and_lookups_are_not(script: str, seen: int) -> None:
    found = await watch_script(
        f"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); a = ({NOWHERE!r}, 443)\n"
        f"try:\n    {script}\nexcept OSError: pass  # no route is none of our business\n"
    )
    assert escapes(found) == ({("udp", f"{NOWHERE}:443", 1)} if seen else set())


async def test_a_unix_socket_is_noticed_unless_the_command_listens_on_it(tmp_path: Path) -> None:
    path = str(tmp_path / "service.sock")
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), path)
    script = """
own = socket.socket(socket.AF_UNIX)
own.bind(sys.argv[1] + ".own"); own.listen()
for path in (sys.argv[1], sys.argv[1] + ".own"):
    socket.socket(socket.AF_UNIX).connect(path)
"""
    async with server:
        found = await watch_script(script, path)
    assert (found.code, escapes(found)) == (0, {("unix", path, 1)})
    assert found.escapes[0].sentence.startswith(f"a connection was opened to unix {path} past the proxy")


OWN_SOCKETS = {
    "the directory changes before it listens": """
os.chdir(sys.argv[1]); s.bind("own"); os.chdir("/"); s.listen(); socket.socket(socket.AF_UNIX).connect(sys.argv[1] + "/own")
""",
    "it is renamed": """
s.bind(sys.argv[1] + "/first"); s.listen(); os.rename(sys.argv[1] + "/first", sys.argv[1] + "/own")
socket.socket(socket.AF_UNIX).connect(sys.argv[1] + "/own")
""",
    "it takes datagrams": """
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind(sys.argv[1] + "/own")
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(sys.argv[1] + "/own")
""",
}


@pytest.mark.parametrize("script", OWN_SOCKETS.values(), ids=OWN_SOCKETS)
async def test_a_replay_lets_a_command_reach_its_own_sockets(script: str, tmp_path: Path) -> None:
    found = await watch_script("import os; s = socket.socket(socket.AF_UNIX)\n" + script, tmp_path, refuses=True)
    assert (found.code, found.escapes) == (0, ())


async def test_a_path_that_a_command_cannot_have_is_not_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "service.sock")
    script = """
import errno
s = socket.socket(socket.AF_UNIX)
try:
    s.bind(sys.argv[1])
except OSError as error:
    assert error.errno == errno.EADDRINUSE  # there is another instance, which it asks
assert s.connect_ex(sys.argv[1]) == errno.ECONNREFUSED
"""
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), path):
        found = await watch_script(script, path, refuses=True)
    assert (found.code, escapes(found)) == (0, {("unix", path, 1)})


async def test_what_outlives_a_replay_may_still_listen(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "socket.create_server(('127.0.0.1', 0))")
    await watch_script(daemon.script, refuses=True)
    assert await daemon.act() == "done"


async def test_a_replay_refuses_io_uring_which_is_not_watched() -> None:
    script = (
        "import ctypes, errno; libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0 and ctypes.get_errno() == errno.EPERM"
    )
    found = await watch_script(script, refuses=True)
    assert found.code == 0
    assert [(one.protocol, one.destination, one.is_refused) for one in found.escapes] == [
        ("io_uring", "io_uring_setup", True)
    ]


async def test_a_replay_refuses_what_would_go_past_the_proxy(tmp_path: Path) -> None:
    visits: list[str] = []

    def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(str(writer.get_extra_info("sockname")))
        writer.close()

    path = str(tmp_path / "service.sock")
    script = f"""
own = socket.create_server(("127.0.0.1", 0))
assert socket.socket().connect_ex(own.getsockname()) == 0
assert socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))) == 0
for family, place in ((socket.AF_INET, ("127.0.0.1", int(sys.argv[2]))), (socket.AF_UNIX, sys.argv[3])):
    assert socket.socket(family).connect_ex(place) == 111
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ({NOWHERE!r}, 123))
except ConnectionRefusedError:
    print("refused")
"""
    allowed = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    refused = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with allowed, refused, await asyncio.start_unix_server(serve, path):
        ports = [one.sockets[0].getsockname()[1] for one in (allowed, refused)]
        found = await watch_script(script, *ports, path, own=ports[0], refuses=True)
    assert (found.code, visits) == (0, [])
    assert {(one.destination, one.is_refused) for one in found.escapes} == {
        (f"127.0.0.1:{ports[1]}", True),
        (path, True),
        (f"{NOWHERE}:123", True),
    }


@pytest.mark.skipif(linux_version() < (5, 19), reason="older kernels interrupt the call")
async def test_a_signal_while_a_connection_is_noted_does_not_interrupt_it(
    elsewhere: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python handles signals without SA_RESTART: a call that is interrupted fails, and a connection that fails so seems to be made."""
    number, handled = tmp_path / "pid", tmp_path / "handled"

    def interrupt(*_: object) -> bool:
        os.kill(int(number.read_text()), signal.SIGUSR1)
        for _attempt in range(20):
            # It is handled at once if the call is interrupted, and else when it has been answered.
            if handled.exists():
                break
            time.sleep(0.01)
        return False

    monkeypatch.setattr("proxy.capture.watch.watcher.EscapeCounter.is_own", interrupt)
    script = """
import os, signal
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[3], "w").close())
open(sys.argv[2], "w").write(str(os.getpid()))
one = socket.socket()
one.connect(("127.0.0.1", int(sys.argv[1])))
one.getpeername()
"""
    found = await watch_script(script, elsewhere, number, handled)
    assert (found.code, escapes(found), handled.exists()) == (0, {("tcp", f"127.0.0.1:{elsewhere}", 1)}, True)


async def test_a_kernel_that_lets_no_call_continue_is_not_asked_to_report_it() -> None:
    """Linux 5.0 to 5.4 report calls, but every one of them would wait for ever."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from proxy.capture.watch.seccomp import install_filter
here = os.uname()
os.uname = lambda: os.uname_result((here.sysname, here.nodename, "5.4.0-216-generic", here.version, here.machine))
try:
    install_filter(("connect",), may_lose_privileges=True)
except OSError as error:
    assert "5.5" in str(error)
else:
    sys.exit("installed")
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    assert await process.wait() == 0


@pytest.mark.parametrize("starter", ["subprocess", "double fork"])
async def test_what_the_command_starts_is_watched(starter: str, elsewhere: int) -> None:
    line = f"[sys.executable, '-c', {'import socket, sys; ' + CONNECT!r}, sys.argv[1]]"
    detached = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execv(sys.executable, {line})
    os._exit(0)
os.wait(); os.close(1)
import time; time.sleep(1)
"""
    script = f"import subprocess; subprocess.run({line}, check=True)" if starter == "subprocess" else detached
    assert escapes(await watch_script(script, elsewhere)) == {("tcp", f"127.0.0.1:{elsewhere}", 1)}


async def test_what_outlives_the_command_can_still_connect(elsewhere: int, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, CONNECT)
    found = await watch_script(daemon.script, elsewhere)
    assert found.code == 0
    assert await daemon.act() == "done"


async def test_a_command_s_exit_code_signals_and_environment_are_its_own() -> None:
    assert (await watch_script("sys.exit(7)")).code == 7
    assert (await watch_script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")).code == 137
    pipes = "import signal; assert signal.signal(signal.SIGPIPE, signal.SIG_IGN) in (signal.SIG_IGN, signal.SIG_DFL)"
    assert (await watch_script(pipes)).code == 0
    code = (await run_watched(["sh", "-c", 'test -z "$LC_CTYPE"'], {"PATH": os.environ["PATH"], "LANG": "C"}, [])).code
    assert code == 0
    missing = await run_watched(["/nowhere/at/all"], dict(os.environ), [])
    assert missing.code == 125


async def test_polling_notices_what_stays_open(elsewhere: int) -> None:
    script = "c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); import time; time.sleep(1)"
    found = await watch_script(script, elsewhere, how="poll")
    assert escapes(found) == {("tcp", f"127.0.0.1:{elsewhere}", 1)}
    assert found.how == "poll"


async def test_where_no_filter_can_be_installed_it_is_polled(elsewhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A task can have only one listener, so a watched command inside a watched command has none.
    inner = f"""
import asyncio, os
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from proxy.capture.watch.watcher import run_watched
line = [sys.executable, '-c', 'import socket, sys, time; c = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); time.sleep(1)', sys.argv[1]]
found = asyncio.run(run_watched(line, dict(os.environ), []))
assert found.how == 'poll', found
assert found.escapes, found
assert 'seccomp' in found.reason
"""
    assert (await watch_script(inner, elsewhere)).code == 0


def test_an_address_in_both_forms_is_the_same() -> None:
    from proxy.capture.watch.watcher import EscapeCounter

    seen = EscapeCounter([("::ffff:127.0.0.1", 8080)])
    seen.note("tcp", "127.0.0.1", 8080)
    seen.note("tcp", "::ffff:10.0.0.1", 80)
    seen.note("tcp", "10.0.0.1", 80)
    seen.note("tcp", "2001:db8::1", 443)
    assert {(one.destination, one.count) for one in seen.escapes()} == {("10.0.0.1:80", 2), ("[2001:db8::1]:443", 1)}
    for port in range(2000):
        seen.note("tcp", "10.0.0.2", port)
    assert len(seen.escapes()) == 1000
