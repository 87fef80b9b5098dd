"""A captive command in its network, with a fake proxy worker: what arrives, what is refused, and what stays as usual."""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from proxy.capture.command import IsolationOptions, PreparedCommand
from proxy.capture.namespace import mirror
from proxy.capture.namespace.isolation import NotCaptive
from proxy.capture.namespace.launch import PORTS_WITHOUT_REDIRECT, Captive, CapturePlan, InsideProcess
from proxy.capture.namespace.trust_files import AuthorityFiles
from proxy.errors import Failure
from proxy.processes.ports import free_port
from proxy.trust.ca import ensure_ca
from tests.proxy.capture.receiver import Receiver, receiving
from tests.proxy.capture.running import needs_namespaces, user_without_rights

PYTHON = sys.executable


@dataclass(frozen=True, slots=True)
class Bench:
    """What a captive command needs, and the file for its output."""

    capture: CapturePlan
    receiver: Receiver
    place: Path

    async def run(self, *command: str, capture: CapturePlan | None = None) -> tuple[int, str]:
        """Return the exit code and the output."""
        said = self.place / "said"
        with said.open("w") as out:
            async with Captive(command, capture or self.capture, stdout=out.fileno()) as captive:
                code = await captive.run(os.environ)
        return code, said.read_text()

    async def python(self, program: str, *arguments: str) -> str:
        """Return the output of a program that must succeed."""
        code, said = await self.run(PYTHON, "-c", program, *arguments)
        assert code == 0, said
        return said


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> AuthorityFiles:
    """One CA for all: the first command that is captive copies the system's roots beside it, as in a data directory."""
    return AuthorityFiles(certificate=ensure_ca(tmp_path_factory.mktemp("ca") / "keys").certificate, java=None)


@pytest.fixture
def bench(tmp_path: Path, authority: AuthorityFiles) -> Iterator[Bench]:
    needs_namespaces()
    with receiving(tmp_path) as receiver:
        capture = CapturePlan(
            control=str(receiver.path),
            run="bench",
            token=None,
            authority=authority,
            passes_other_tcp=True,
        )
        yield Bench(capture, receiver, tmp_path)


ASK = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), 10) as connection:
        print(connection.recv(100).decode())
"""


async def test_a_connection_to_any_address_and_port_arrives(bench: Bench) -> None:
    places = ("api.example.com:443", "10.9.8.7:5432", "8.8.8.8:53", "[2001:db8::5]:1", "[2606:4700::1]:443")
    said = await bench.python(ASK, *places)
    assert said.splitlines() == ["198.18.0.9 443", "10.9.8.7 5432", "8.8.8.8 53", "2001:db8::5 1", "2606:4700::1 443"]
    assert bench.receiver.message["other_tcp"] == "pass"
    assert bench.receiver.message["run"] == "bench"


async def test_nothing_is_temporary_that_a_killed_launcher_would_leave(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    kept = []
    for _ in range(2):
        async with Captive(["cat", "/etc/nsswitch.conf", "/etc/resolv.conf"], bench.capture) as captive:
            assert await captive.run(os.environ) == 0
            assert not list(temporary.iterdir())
        kept.append(sorted(bench.capture.authority.copies.iterdir()))
    assert kept[0] == kept[1]


@pytest.mark.parametrize("protocol", [socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE])
async def test_datagrams_are_refused_and_named(bench: Bench, protocol: int) -> None:
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, protocol).close()
    except OSError as error:
        pytest.skip(f"no protocol {protocol} here: {error}")
    send = f"""
import socket
for family, host, port in ((socket.AF_INET, "1.1.1.1", 443), (socket.AF_INET, "192.0.2.1", 123), (socket.AF_INET6, "2001:db8::7", 8125)):
    with socket.socket(family, socket.SOCK_DGRAM, {int(protocol)}) as one:
        one.connect((host, port))
        one.send(b"x")
        try:
            one.recv(1)
        except ConnectionRefusedError:
            print("refused")
"""
    async with Captive([PYTHON, "-c", send], bench.capture) as captive:
        assert await captive.run(os.environ) == 0
        found = {one["destination"]: one for one in (await captive.report()).connections}
    assert set(found) == {"1.1.1.1:443", "192.0.2.1:123", "[2001:db8::7]:8125"}
    assert {one["outcome"] for one in found.values()} == {"refused"}


async def test_what_it_listens_on_is_its_own_from_inside(bench: Bench) -> None:
    said = await bench.python("""
import socket
with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    port = server.getsockname()[1]
    for host in ("127.0.0.1", "::1", "localhost", "127.9.8.7", socket.gethostname()):
        try:
            client = socket.create_connection((host, port), 5)
        except socket.gaierror:
            continue
        with client, server.accept()[0] as accepted:
            accepted.sendall(host.encode())
            print(client.recv(100).decode())
    other = socket.create_connection(("10.1.2.3", port), 5)
    print(other.recv(100).decode())
try:
    socket.create_connection(("127.0.0.1", port), 5)
except ConnectionRefusedError:
    print("nobody")
""")
    assert said.splitlines()[:3] == ["127.0.0.1", "::1", "localhost"]
    # A port of another machine is not the command's own, even with the same number.
    assert said.splitlines()[-2].startswith("10.1.2.3 ")
    assert said.splitlines()[-1] == "nobody"


SERVE = """
import socket, sys
with socket.create_server((sys.argv[2], int(sys.argv[3])), family=socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET) as server:
    open(sys.argv[1], "w").write(str(server.getsockname()[1]) + "\\n")
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
async def test_what_it_listens_on_is_reachable_from_the_host(bench: Bench, address: str) -> None:
    os.mkfifo(bench.place / "port")
    command = [PYTHON, "-c", SERVE, str(bench.place / "port"), address, str(_own_port())]
    async with Captive(command, bench.capture) as captive:
        running = asyncio.get_running_loop().create_task(captive.run(os.environ))
        port = int(await asyncio.to_thread((bench.place / "port").read_text))
        await _ask_from_the_host("::1" if ":" in address else "127.0.0.1", port)
        assert await running == 0


async def test_it_is_reachable_where_a_service_of_the_host_has_the_same_port(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.capture.namespace.mirror.HOST_POLL_EVERY", 1_000_000)
    os.mkfifo(bench.place / "port")
    with socket.create_server(("127.0.0.1", _own_port())) as service:
        command = [PYTHON, "-c", SERVE, str(bench.place / "port"), "::1", str(service.getsockname()[1])]
        async with Captive(command, bench.capture) as captive:
            running = asyncio.get_running_loop().create_task(captive.run(os.environ))
            port = int(await asyncio.to_thread((bench.place / "port").read_text))
            await _ask_from_the_host("::1", port)
            assert await running == 0


_drawn_ports: Final = itertools.count()


def _own_port() -> int:
    """Return a port that no other program has, inside or on the host: it is above those that kernels and Playhead draw."""
    # The process is asked now: xdist's workers are forks of one that has imported this.
    return 61_000 + (101 * os.getpid() + next(_drawn_ports)) % 4_500


async def _ask_from_the_host(host: str, port: int) -> None:
    reader, writer = await _connect_repeatedly(host, port)
    with closing(writer):
        writer.write(b"from the host")
        assert await reader.read() == b"FROM THE HOST"


async def _connect_repeatedly(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)  # listening sockets are polled


async def test_a_service_of_the_host_arrives_and_a_port_of_nobody_is_refused(bench: Bench) -> None:
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with (
        both as server,
        socket.create_server(("127.0.0.1", 0)) as closed,
        socket.create_server(("127.0.0.1", 0)) as one,
    ):
        port, free, single = (service.getsockname()[1] for service in (server, closed, one))
        closed.close()
        assert await bench.python(ASK, f"127.0.0.1:{port}", f"[::1]:{port}") == f"127.0.0.1 {port}\n::1 {port}\n"
        assert await bench.python(ASK, f"127.0.0.1:{single}") == f"127.0.0.1 {single}\n"
        for nobody in (f"127.0.0.1:{free}", f"[::1]:{free}", f"[::1]:{single}"):
            code, _ = await bench.run(PYTHON, "-c", ASK, nobody)
            assert code == 1
    assert [port for _, port in bench.receiver.destinations] == [port, port, single]


async def test_a_service_of_one_address_of_the_host_arrives_at_this_address_alone(bench: Bench) -> None:
    ask = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 10) as connection:
            print(connection.recv(100).decode())
    except ConnectionRefusedError:
        print("refused")
"""
    mapped = socket.socket(socket.AF_INET6)
    mapped.bind(("::ffff:127.0.0.3", 0))
    mapped.listen()
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.2", 0)) as second,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as third,
        socket.create_server(("0.0.0.0", 0)) as every,
        mapped,
    ):
        ports = [service.getsockname()[1] for service in (first, second, third, mapped, every)]
        hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "[::1]")
        said = await bench.python(ask, *(f"{host}:{port}" for port in ports for host in hosts))
    found = [line == "refused" for line in said.splitlines()]
    assert [found[start : start + 4] for start in range(0, 20, 4)] == [
        [False, True, True, True],
        [True, False, True, True],
        [True, True, True, False],
        [True, True, False, True],
        [False, False, False, True],
    ], said
    assert len(bench.receiver.destinations) == 7


async def test_a_service_that_the_host_starts_later_arrives(bench: Bench) -> None:
    wait = """
import socket, sys, time
print(flush=True)
while True:
    try:
        print(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60).recv(100).decode())
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
"""
    port = free_port("127.0.0.1", 0)
    async with Captive([PYTHON, "-c", wait, str(port)], bench.capture) as captive:
        running = asyncio.get_running_loop().create_task(captive.run(os.environ))
        with socket.create_server(("127.0.0.1", port)):
            assert await running == 0
    assert bench.receiver.destinations == [("127.0.0.1", port)]


async def test_without_packet_rules_a_record_is_not_captive_and_says_which_modules_are_missing(bench: Bench) -> None:
    reason = "redirecting its connections .nf_tables. failed: .*; load the modules: sudo modprobe -a nf_tables"
    with pytest.raises(NotCaptive, match=reason):
        await bench.run("true", capture=replace(bench.capture, may_redirect=False))


async def test_without_packet_rules_a_replay_takes_ports_80_and_443_and_any_other_is_refused(bench: Bench) -> None:
    replay = replace(bench.capture, may_redirect=False, passes_other_tcp=False)
    places = ("api.example.com:443", "10.9.8.7:80", "[2001:db8::5]:443", "127.0.0.1:80")
    code, said = await bench.run(PYTHON, "-c", ASK, *places, capture=replay)
    assert (code, said.split("\n")) == (0, ["198.18.0.9 443", "10.9.8.7 80", "2001:db8::5 443", "127.0.0.1 80", ""])
    code, _ = await bench.run(PYTHON, "-c", ASK, "10.9.8.7:8443", capture=replay)
    assert code == 1
    assert len(bench.receiver.destinations) == 4


async def test_without_packet_rules_what_it_listens_on_is_reachable_and_our_listeners_are_not(bench: Bench) -> None:
    os.mkfifo(bench.place / "port")
    replay = replace(bench.capture, may_redirect=False, passes_other_tcp=False)
    is_free = {port: _is_refused(port) for port in PORTS_WITHOUT_REDIRECT}
    command = [PYTHON, "-c", SERVE, str(bench.place / "port"), "127.0.0.1", str(_own_port())]
    async with Captive(command, replay) as captive:
        running = asyncio.get_running_loop().create_task(captive.run(os.environ))
        port = int(await asyncio.to_thread((bench.place / "port").read_text))
        with socket.create_server(("127.0.0.1", 0)):  # a new port of the host, which no rule has yet
            await asyncio.sleep(mirror.POLL_INTERVAL * (mirror.HOST_POLL_EVERY + 2))
        reader, writer = await _connect_repeatedly("127.0.0.1", port)
        assert {port: _is_refused(port) for port in PORTS_WITHOUT_REDIRECT} == is_free
        writer.write(b"from the host")
        assert await reader.read() == b"FROM THE HOST"
        writer.close()
        assert await running == 0


def _is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


async def test_our_own_api_is_reached_past_the_worker(bench: Bench) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the API")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        place = server.sockets[0].getsockname()
        with_api = replace(bench.capture, services=[place])
        _, said = await bench.run(PYTHON, "-c", ASK, f"127.0.0.1:{place[1]}", capture=with_api)
    assert said == "the API\n"
    assert bench.receiver.destinations == []


async def test_a_worker_that_comes_again_gets_the_sockets_once_more(bench: Bench) -> None:
    following = replace(bench.capture, outlives_worker=True)
    async with Captive([PYTHON, "-c", ASK, "10.9.8.7:443"], following) as captive:
        assert bench.receiver.launchers.acquire(timeout=60)
        bench.receiver.hang_up()
        assert await asyncio.to_thread(bench.receiver.launchers.acquire, timeout=60)
        assert await captive.run(os.environ) == 0
    assert bench.receiver.destinations == [("10.9.8.7", 443)]


async def test_exit_codes_and_signals_are_the_commands_own(bench: Bench) -> None:
    assert (await bench.run("sh", "-c", "exit 7"))[0] == 7
    assert (await bench.run("sh", "-c", "kill -TERM $$"))[0] == 128 + 15


async def test_a_signal_that_reaches_us_reaches_the_command(bench: Bench) -> None:
    os.mkfifo(bench.place / "begun")
    trap = f"trap 'exit 9' TERM; echo > {bench.place}/begun; while :; do sleep 0.05; done"
    async with Captive(["bash", "-c", trap], bench.capture) as captive:
        running = asyncio.get_running_loop().create_task(captive.run(os.environ))
        await asyncio.to_thread((bench.place / "begun").read_text)
        os.kill(os.getpid(), 15)
        assert await running == 9


async def test_who_it_is_and_where_is_as_without_us(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.place)
    said = await bench.python("""
import os
print(os.getuid(), os.geteuid(), os.getgid(), os.getpgrp(), os.getppid(), os.getcwd())
open("made", "w").close()
""")
    expected = (os.getuid(), os.geteuid(), os.getgid(), os.getpgrp(), os.getpid(), bench.place)
    assert said.split() == [str(one) for one in expected]
    made = (bench.place / "made").stat()
    assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())


async def test_its_environment_is_exactly_what_it_was_given(bench: Bench) -> None:
    with (bench.place / "environment").open("wb") as out:
        async with Captive(["/usr/bin/env"], bench.capture, stdout=out.fileno()) as captive:
            assert await captive.run({"A": "b\udc80"}) == 0
    assert (bench.place / "environment").read_bytes() == b"A=b\x80\n"


async def test_standard_input_and_inherited_descriptors_arrive(bench: Bench) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"passed on purpose")
    os.close(writer)
    os.set_inheritable(reader, True)
    try:
        assert await bench.python(f"import os; print(os.read({reader}, 100).decode())") == "passed on purpose\n"
    finally:
        os.close(reader)


async def test_no_descriptor_of_ours_is_inherited(bench: Bench) -> None:
    said = await bench.python("""
import os, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and int(name) > 2:
            print(name)
    except OSError:
        pass
""")
    assert said == ""


async def test_unix_sockets_of_the_host_are_reached(bench: Bench) -> None:
    path = str(bench.place / "service.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        client = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); s.sendall(b'hello')"
        await bench.python(client)
        with server.accept()[0] as connection:
            assert connection.recv(100) == b"hello"


async def test_it_cannot_go_back_to_the_hosts_network(bench: Bench) -> None:
    host = os.readlink("/proc/self/ns/net")
    said = await bench.python(
        f"""
import ctypes, os, socket
assert os.readlink("/proc/self/ns/net") != {host!r}
libc = ctypes.CDLL(None, use_errno=True)
for pid in ({os.getpid()}, 1, os.getppid()):
    try:
        namespace = os.open(f"/proc/{{pid}}/ns/net", os.O_RDONLY)
    except OSError:
        continue
    assert libc.setns(namespace, 0x40000000) == -1, "it left"
# The rules and routes belong to another user namespace, whoever this is.
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)
    raise SystemExit("it has CAP_NET_ADMIN")
except PermissionError:
    print("held")
"""
    )
    assert said == "held\n"


async def test_a_command_that_is_not_there_is_named(bench: Bench) -> None:
    with pytest.raises(Failure, match="cannot run no-such-command"):
        await bench.run("no-such-command")


async def test_a_worker_that_refuses_is_a_reason(bench: Bench) -> None:
    bench.receiver.answer = {"failed": "it is full"}
    with pytest.raises(NotCaptive, match="the proxy worker refused its connections: it is full"):
        await bench.run("true")


async def test_a_worker_that_is_gone_is_a_reason(bench: Bench) -> None:
    nowhere = replace(bench.capture, control=str(bench.place / "nowhere.sock"))
    with pytest.raises(NotCaptive, match="does not answer at"):
        await bench.run("true", capture=nowhere)


def test_all_of_this_holds_for_an_unprivileged_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("this is an unprivileged user already")
    needs_namespaces()
    with user_without_rights() as as_user:
        files = [__file__, str(Path(__file__).parents[1] / "watch" / "test_watcher.py")]
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *files]
        done = subprocess.run([*as_user, *tests], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 skipped" in done.stdout


async def test_a_process_that_was_started_before_its_plan_becomes_the_command(bench: Bench) -> None:
    said = bench.place / "said"
    with said.open("w") as out:
        inside = await InsideProcess.start(out.fileno())
        async with Captive([PYTHON, "-c", "import os; print(os.getpid())"], bench.capture, inside=inside) as captive:
            assert await captive.run(os.environ) == 0
    assert said.read_text() == f"{inside.process.pid}\n"


async def test_a_process_that_gets_no_plan_ends_with_its_command() -> None:
    needs_namespaces()
    async with PreparedCommand() as prepared:
        await prepared.start(IsolationOptions(mode="off"))
        assert prepared.take() is None
        await prepared.start(IsolationOptions())
        inside = prepared.take()
        assert inside is not None
        await inside.end()
        await prepared.start(IsolationOptions())
        unused = prepared._inside
    assert unused is not None
    assert inside.process.returncode == unused.process.returncode == -9
