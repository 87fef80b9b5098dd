"""Clients of every kind, without any of Playhead's variables: all are recorded, and answered from the recording.

They run in one recording and one replay. Each test checks one of them.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from proxy.capture.command import WITHOUT_RULES
from tests.live import npm
from tests.proxy.capture.grpc_server import METHOD, GrpcServer, serving_grpc
from tests.proxy.capture.running import Station, bare, needs_namespaces, user_without_rights
from tests.proxy.capture.standin import ADDRESSES, ZONE, StandIn, start_stand_in
from tests.support.service import keeping, surroundings
from tests.support.shells import started_interpreter

CHROMIUM = shutil.which("chromium")
HERE = Path(__file__).parent / "clients"

# The recording and the replay take ten seconds of CPU, in each of xdist's workers that runs one of these tests. Modules with a
# longer limit than usual are started first, and so are not divided.
pytestmark = pytest.mark.timeout(240)

PYTHON = (
    *("requests", "httpx_transport", "urllib3", "http_client", "aiohttp", "ssl_socket"),
    *("double_fork", "own_resolver", "listening"),
)
NODE = ("fetch", "https", "http2", "worker", "undici")
OTHERS = (
    "curl",
    "wget",
    "git",
    "java",
    "openssl",
    "go-default",
    "go-noproxy",
    "botocore",
    "ipv4",
    "ipv6",
    "grpc",
    "refund",
)
GRPC = f"grpc.{ZONE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The output of all clients, recorded and replayed."""

    missing: dict[str, str]
    recorded: dict[str, dict[str, Any]]
    replayed: dict[str, dict[str, Any]]
    asked: dict[str, int]
    asked_by_replay: int
    grpc_calls: int
    """The requests of both, as the server counted them."""

    summary: str


def _url(name: str) -> str:
    return f"https://{name.replace('_', '-')}.{ZONE}/{name}"


IMPORTED = (
    "openai",
    "openai.resources.chat.completions.completions",
    "httpx",
    "requests",
    "aiohttp",
    "botocore.session",
)
"""What Python's clients import. One that connects by what this interpreter has itself is started in earnest, and so is gRPC."""


def _commands(place: Path, python: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the clients that are installed, and why others are not. `python` has imported what Python's clients need."""
    ask = [str(python), str(HERE / "ask.py")]
    found = {f"python-{way}": [*ask, way, _url(way)] for way in PYTHON}
    for name in ("python-http_client", "python-double_fork"):
        found[name][0] = sys.executable
    found["botocore"] = [*ask, "botocore", f"https://s3.{ZONE}/x"]
    found["ipv4"] = [*ask, "plain_socket", f"http://{ADDRESSES[0]}/ipv4"]
    found["ipv6"] = [*ask, "plain_socket", f"http://[{ADDRESSES[1]}]/ipv6"]
    found["refund"] = [str(python), str(HERE / "refund.py"), ZONE]
    found["grpc"] = [sys.executable, str(HERE / "ask.py"), "grpc", f"https://{GRPC}{METHOD}"]
    missing: dict[str, str] = {}
    for program, line in {
        "curl": ["-sS", _url("curl")],
        "wget": ["-qO-", _url("wget")],
        "git": ["ls-remote", f"https://git.{ZONE}/repository"],
    }.items():
        if path := shutil.which(program):
            found[program] = [path, *line]
        else:
            missing[program] = f"{program} is not installed here"
    _add_node(found, missing)
    _add_compiled(found, missing, place)
    return found, missing


def _add_node(found: dict[str, list[str]], missing: dict[str, str]) -> None:
    node = shutil.which("node")
    for way in NODE:
        if node is None:
            missing[f"node-{way}"] = "node is not installed here"
            continue
        packages = ""
        if way == "undici":
            try:
                packages = str(npm.packages())
            except pytest.skip.Exception as skipped:
                missing["node-undici"] = str(skipped)
                continue
        found[f"node-{way}"] = [node, str(HERE / "ask.mjs"), way, _url(f"node-{way}"), packages]


def _add_compiled(found: dict[str, list[str]], missing: dict[str, str], place: Path) -> None:
    c, go = str(place / "ask"), str(place / "ask-go")
    builds = {
        "gcc": ["-o", c, str(HERE / "ask.c"), "-lssl", "-lcrypto"],
        "go": ["build", "-o", go, str(HERE / "ask.go")],
        "javac": [*(f"-J{option}" for option in JAVA_QUICK), "-d", str(place), str(HERE / "Ask.java")],
    }
    clients = {
        "gcc": {"openssl": [c, f"c.{ZONE}", "/openssl"]},
        "go": {f"go-{way}": [go, way, _url(f"go-{way}")] for way in ("default", "noproxy")},
        "javac": {"java": ["java", *JAVA_QUICK, "-cp", str(place), "Ask", _url("java")]},
    }
    with ThreadPoolExecutor() as pool:
        reasons = dict(zip(builds, pool.map(_build, builds, builds.values()), strict=True))
    for compiler, lines in clients.items():
        if reason := reasons[compiler]:
            missing.update(dict.fromkeys(lines, reason))
        else:
            found.update(lines)


JAVA_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Options that halve the start time."""


def _build(compiler: str, arguments: list[str]) -> str:
    """Explain why it cannot be compiled here; empty if it can."""
    # The compilers of `uv sync --group go` are beside this interpreter, which may not be on the PATH.
    path = shutil.which(compiler, path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")
    if path is None:
        return f"{compiler} is not installed here" + ("; uv sync --group go" if compiler == "go" else "")
    around = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False, env=around)
    return f"it cannot be compiled here: {done.stderr[-300:]}" if done.returncode else ""


@dataclass(frozen=True, slots=True)
class Scene:
    """A data directory whose store server runs, and the server for its commands' requests."""

    station: Station
    world: StandIn
    grpc: GrpcServer
    place: Path
    python: Path
    """Python's clients run as its forks (`tests/support/shells.py`), but for those of a user without rights."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(module_database_url: str) -> AsyncIterator[Scene]:
    needs_namespaces()
    place = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    os.chmod(place, 0o711)
    station = Station(data=place / "d", config=place / "playhead.toml", database_url=module_database_url)
    with (
        start_stand_in() as world,
        serving_grpc(place, GRPC) as grpc,
        started_interpreter(Path(sys.executable), IMPORTED) as python,
    ):
        first = f'upstream_ca = "{grpc.authority}"\n'
        station.config.write_text(first + world.config + f'"{GRPC}" = "https://127.0.0.1:{grpc.port}"\n')
        async with keeping(station.data, module_database_url):
            yield Scene(station, world, grpc, place, python)
    shutil.rmtree(place, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcome(scene: Scene) -> Outcome:
    place, world = scene.place, scene.world
    commands, missing = _commands(place, scene.python)
    (place / "clients.json").write_text(json.dumps(commands))
    drive = [sys.executable, str(HERE / "drive.py"), str(place / "clients.json")]
    required = ("--isolation", "require")
    made = scene.station.run("record", *required, "--run", "clients", "--", *drive, str(place / "recorded.json"))
    assert made.returncode == 0, made.stderr
    asked = dict(world.asked)
    again = scene.station.run("replay", *required, "clients", "--", *drive, str(place / "replayed.json"))
    return Outcome(
        missing=missing,
        recorded=json.loads((place / "recorded.json").read_text()),
        replayed=json.loads((place / "replayed.json").read_text()),
        asked=asked,
        asked_by_replay=world.asked.total() - sum(asked.values()),
        grpc_calls=scene.grpc.calls,
        summary=again.stderr,
    )


@pytest.mark.parametrize("client", [*(f"python-{way}" for way in PYTHON), *(f"node-{way}" for way in NODE), *OTHERS])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_without_variables_is_recorded_and_replayed(outcome: Outcome, client: str) -> None:
    if client in outcome.missing:
        pytest.skip(outcome.missing[client])
    recorded, replayed = outcome.recorded[client], outcome.replayed[client]
    assert recorded["code"] == 0, recorded["error"]
    assert "answer" in recorded["out"]
    assert replayed["out"] == recorded["out"], replayed["error"]
    assert replayed["code"] == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_the_replay_of_all_clients_asked_nobody(outcome: Outcome) -> None:
    assert outcome.asked_by_replay == 0
    assert "was right: every call was answered from the recording" in outcome.summary, outcome.summary
    assert "not isolated" not in outcome.summary
    assert sum(outcome.asked.values()) >= len(outcome.recorded) - 1
    assert outcome.grpc_calls == 1  # of the recording and the replay


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("outcome")
async def test_a_grpc_call_is_recorded_as_an_exchange_of_http2_with_its_trailers(scene: Scene) -> None:
    bundle = scene.station.run("export", "clients", "--allow-secret", "*").stdout
    exchanges = [line["exchange"] for line in map(json.loads, bundle.splitlines()) if "exchange" in line]
    (call,) = (one for one in exchanges if one["request"]["url"] == f"https://{GRPC}{METHOD}")
    assert (call["request"]["http_version"], call["response"]["http_version"]) == ("HTTP/2", "HTTP/2")
    assert call["request"]["body"]["text"].endswith("ticket 904")
    assert call["response"]["body"]["text"].endswith("answer ticket 904")
    assert ["grpc-status", "0"] in call["response"]["trailers"]
    assert ["refund-number", "1"] in call["response"]["trailers"]


@pytest.mark.asyncio(loop_scope="module")
async def test_without_nf_tables_a_record_is_not_captive_and_a_replay_is(scene: Scene) -> None:
    around = {**surroundings(), WITHOUT_RULES: "1"}
    fetch = [sys.executable, "-c", FETCH, f"https://curl.{ZONE}/few", f"http://curl.{ZONE}/few"]
    required = ("--isolation", "require")
    refused = scene.station.run("record", *required, "--run", "few", "--", *fetch, around=around)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "sudo modprobe -a nf_tables nft_chain_nat nft_redir" in refused.stderr
    recorded = scene.station.run("record", "--run", "few", "--", *fetch, around=around)
    assert recorded.returncode == 0, recorded.stderr
    assert "redirecting its connections (nf_tables) failed" in recorded.stderr
    assert json.loads(scene.station.run("show", "few", "--json").stdout)["isolation"] == "watched"
    asked = scene.world.asked.total()
    # With no variable, on ports 80 and 443.
    replayed = scene.station.run("replay", *required, "few", "--", *bare(fetch, os.environ), around=around)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
    assert "few was right: every call was answered from the recording" in replayed.stderr
    assert scene.world.asked.total() == asked


FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    print(urllib.request.urlopen(url).read().decode())
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_refund_is_made_once_whatever_is_replayed(scene: Scene, outcome: Outcome) -> None:
    # The shop still ran during the replay, and would have accepted another order.
    assert outcome.asked[f"POST shop.{ZONE}/refunds"] == 1
    assert outcome.asked_by_replay == 0
    shown = json.loads(scene.station.run("show", "clients", "--json").stdout)
    assert shown["isolation"] == "captive"


AS_USER = (  # the refund is made by aiohttp
    "curl",
    "python-double_fork",
    "node-fetch",
    "node-http2",
    "go-default",
    "go-noproxy",
    "openssl",
    "refund",
)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("outcome")
async def test_an_unprivileged_user_records_and_replays(scene: Scene) -> None:
    """The same commands as a user without rights."""
    if os.geteuid() != 0:
        pytest.skip("this is an unprivileged user already, as are all tests here")
    with user_without_rights() as as_user, tempfile.TemporaryDirectory(prefix="playhead-test-") as directory:
        os.chmod(directory, 0o777)
        place = Path(directory)
        # Only root can connect to the Postgres of the tests.
        station = Station(data=place / "d", config=place / "playhead.toml", database_url="", user=as_user)
        station.config.write_text(scene.world.config)
        async with keeping(station.data, user=as_user):
            commands = json.loads((scene.place / "clients.json").read_text())
            chosen = {name: commands[name] for name in AS_USER if name in commands}
            chosen["refund"] += ["plain"]
            _record_and_replay_as_user(station, scene.world, chosen)


def _record_and_replay_as_user(station: Station, world: StandIn, chosen: dict[str, list[str]]) -> None:
    place = station.config.parent
    (place / "clients.json").write_text(json.dumps(chosen))
    drive = [sys.executable, str(HERE / "drive.py"), str(place / "clients.json")]
    refunds, required = f"POST shop.{ZONE}/refunds", ("--isolation", "require")
    before = world.asked[refunds]
    made = station.run("record", *required, "--run", "user", "--", *drive, str(place / "recorded.json"))
    assert made.returncode == 0, made.stderr
    recorded = json.loads((place / "recorded.json").read_text())
    assert {name: result["code"] for name, result in recorded.items()} == dict.fromkeys(chosen, 0), recorded
    asked = world.asked.total()
    again = station.run("replay", *required, "user", "--", *drive, str(place / "replayed.json"))
    assert "was right: every call was answered from the recording" in again.stderr
    assert "not isolated" not in again.stderr
    replayed = json.loads((place / "replayed.json").read_text())
    assert [result["out"] for result in replayed.values()] == [result["out"] for result in recorded.values()]
    assert (world.asked.total(), world.asked[refunds]) == (asked, before + 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_service_of_this_machine_is_reached_when_recording_and_in_a_replay_only_if_allowed(
    scene: Scene,
) -> None:
    with _greeting_server() as port:
        ask = [sys.executable, "-c", GREETED, str(port), f"https://curl.{ZONE}/local"]
        recorded = scene.station.run("record", "--run", "local", "--", *ask)
        assert recorded.stdout == "hello from the host\n", recorded.stderr
        assert f"127.0.0.1:{port}" in recorded.stderr
        refused = scene.station.run("replay", "local", "--", *ask)
        assert refused.stdout == "nothing\n"
        assert f"--allow-local 127.0.0.1:{port}" in refused.stderr
        allowed = scene.station.run("replay", "--allow-local", f"127.0.0.1:{port}", "local", "--", *ask)
        assert (allowed.returncode, allowed.stdout) == (0, "hello from the host\n"), allowed.stderr


GREETED = """
import socket, ssl, sys, urllib.request
urllib.request.urlopen(sys.argv[2]).read()
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as client:
        print(client.recv(100).decode() or "nothing")
except OSError:
    print("nothing")
"""


async def test_a_local_service_refuses_the_family_in_which_it_does_not_listen(scene: Scene) -> None:
    """Clients try both addresses of `localhost`, and go on to the second only if the first refuses."""
    with ExitStack() as stack:
        urls = [stack.enter_context(_local_http_service(host)) for host in ("127.0.0.1", "::1", "::")]
        ports = [url.rsplit(":", 1)[1].rstrip("/") for url in urls]
        ask = [sys.executable, "-c", ASKED_IN_BOTH_FAMILIES, *ports]
        direct = _output(ask)
        recorded = scene.station.run("record", "--run", "families", "--", *ask)
    assert recorded.stdout == direct, recorded.stderr
    assert direct.split() == ["local", "refused", "refused", "local", "local", "local"]


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


ASKED_IN_BOTH_FAMILIES = """
import sys, urllib.error, urllib.request
for port in sys.argv[1:]:
    for host in ("127.0.0.1", "[::1]"):
        try:
            print(urllib.request.urlopen(f"http://{host}:{port}/", timeout=60).read().decode())
        except urllib.error.URLError as error:
            print("refused" if isinstance(error.reason, ConnectionRefusedError) else repr(error))
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_browser_with_roots_of_its_own_is_recorded_and_replayed(scene: Scene) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed here")
    profile = scene.place / "profile"
    look = [CHROMIUM, *BROWSER, f"--user-data-dir={profile}", f"https://browser.{ZONE}/browser"]
    recorded = scene.station.run("record", "--isolation", "require", "--run", "browser", "--", *look)
    assert '"path": "/browser"' in recorded.stdout, recorded.stderr
    asked = scene.world.asked.total()
    replayed = scene.station.run("replay", "--isolation", "require", "browser", "--", *look)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert scene.world.asked.total() == asked


BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--no-first-run", "--dump-dom"),
)


async def test_a_local_service_that_is_gone_is_answered_by_the_recording(scene: Scene) -> None:
    ask = [sys.executable, "-c", ASKED_LOCALLY]
    with ExitStack() as stack:
        urls = [stack.enter_context(_local_http_service(host)) for host in ("127.0.0.1", "::1")]
        recorded = scene.station.run("record", "--run", "gone", "--", *ask, *urls)
        assert recorded.stdout == "local\nlocal\n", recorded.stderr
    replayed = scene.station.run("replay", "gone", "--", *ask, *urls)
    assert (replayed.returncode, replayed.stdout) == (0, "local\nlocal\n"), replayed.stderr
    assert "2 served, 0 missed, 0 live, 0 unused" in replayed.stderr
    unknown = scene.station.run("replay", "gone", "--", *ask, "http://127.0.0.1:1/")
    assert "Connection refused" in unknown.stderr, "a port that is not in the recording is closed as before"


ASKED_LOCALLY = """
import sys, urllib.request
for url in sys.argv[1:]:
    print(urllib.request.urlopen(url, timeout=60).read().decode())
"""


@contextmanager
def _local_http_service(host: str) -> Iterator[str]:
    """An HTTP server on this address of the machine, until the block ends."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "5")
            self.end_headers()
            self.wfile.write(b"local")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    with Server((host, 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = f"[{host}]" if ":" in host else host
        yield f"http://{name}:{server.server_address[1]}/"
        server.shutdown()


@contextmanager
def _greeting_server() -> Iterator[int]:
    """A server that speaks first, like a database; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_greet, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        # To close a socket wakes nobody who waits for a connection.
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()


def _greet(server: socket.socket) -> None:
    while True:
        try:
            with server.accept()[0] as connection:
                connection.sendall(b"hello from the host")
        except OSError:
            return
