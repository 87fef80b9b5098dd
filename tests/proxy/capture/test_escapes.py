"""A command with proxy variables alone: connections past the proxy become gaps of its run, and its replay fails."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from proxy.capture.command import CommandResult, _escape_report, with_worker_ends
from proxy.capture.watch.watcher import Escape
from proxy.processes.child_process import UNKNOWN_STATUS
from replay.report import report_with_escapes
from tests.support.service import command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="commands are watched on Linux only"),
]

AGENT = """
import http.client, os, sys, urllib.request
reader, writer = os.pipe()
if not os.fork():
    os.setsid()  # a daemon, whose parent and session are not the command's: its calls are in the command's run all the same
    if not os.fork():
        os.write(writer, urllib.request.urlopen("http://tools.example/order").read())
    os._exit(0)
os.wait()
os.close(writer)
print(os.read(reader, 100).decode())
refund = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))  # as aiohttp does: it looks at no variable
refund.request("POST", "/refund")
refund.getresponse().read()
"""


INHERITING_AGENT = """
import socket, sys, urllib.request
print(urllib.request.urlopen("http://tools.example/order").read())
try:
    shell = socket.socket(fileno=int(sys.argv[1]))
    shell.send(b"POST /refund HTTP/1.1\\r\\nHost: shop\\r\\n\\r\\n")
    shell.recv(1)
except OSError as error:
    print(error)
"""

WORKER_KILLER = """
import glob, os, select, signal, urllib.parse, urllib.request
print(urllib.request.urlopen("http://tools.example/order").read())
port = urllib.parse.urlsplit(os.environ["HTTP_PROXY"]).port
rows = [line.split() for line in open("/proc/net/tcp")]
inode, = (row[9] for row in rows if row[1] == f"0100007F:{port:04X}" and row[3] == "0A")
for link in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(link) == f"socket:[{inode}]":
            worker = os.pidfd_open(int(link.split("/")[2]))
            signal.pidfd_send_signal(worker, signal.SIGKILL)
            select.select([worker], [], [])
    except OSError:
        pass
try:
    urllib.request.urlopen("http://tools.example/order")
except OSError as error:
    print(error)
"""

WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
"""For a user namespace of its own: no network namespace may be created in it."""


class Shop:
    """Orders, and the refunds that were made."""

    port = 0
    refunds = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.refunds += head.startswith(b"POST /refund")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    found = Shop()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.port = server.sockets[0].getsockname()[1]
        yield found


async def playhead(
    name: str, data: Path, *arguments: str, within: Sequence[str] = (), inherited: Sequence[int] = ()
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *within,
        *command(name, "--data", str(data), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=inherited,
        env={key: value for key, value in os.environ.items() if "proxy" not in key.lower()},
    )
    async with asyncio.timeout(90):
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_refund_past_the_proxy_is_named_and_its_replay_is_not_right(
    shop: Shop, data: Path, database_url: str
) -> None:
    config = data.with_name("playhead.toml")
    config.write_text(
        f'database_url = "{database_url}"\n[upstreams]\n"tools.example" = "http://127.0.0.1:{shop.port}"\n'
    )
    agent = "--config", str(config), "--isolation", "off", "--", sys.executable, "-c", AGENT, str(shop.port)
    place = f"127.0.0.1:{shop.port}"

    code, _, err = await playhead("record", data, "--run", "r1", *agent)
    assert (code, shop.refunds) == (0, 1), err
    if "system does not allow watching" in err:
        pytest.skip("no seccomp user notification here")
    assert f"WENT PAST THE PROXY, and is not in the recording: {place}" in err

    bundle, report = data.with_name("r1.jsonl"), data.with_name("report.json")
    code, _, err = await playhead("export", data, "r1", "-o", str(bundle), "--config", str(config))
    assert code == 0, err
    lines = bundle.read_text().splitlines()
    assert [json.loads(line)["exchange"]["request"]["url"] for line in lines if '"exchange"' in line[:20]] == [
        "http://tools.example/order"
    ]
    gaps = [json.loads(line) for line in lines if '"gap"' in line]
    assert any(place in json.dumps(gap) for gap in gaps), gaps

    code, _, err = await playhead("replay", data, str(bundle), "--report", str(report), *agent)
    assert code == 1, err
    assert "connections bypassed the proxy and reached the real network" in err
    assert f"--allow-local {place}" in err
    document = json.loads(report.read_text())
    assert (document["verdict"], document["escaped"], document["isolation"]) == ("diverged", 1, "watched")

    code, _, err = await playhead("replay", data, str(bundle), "--allow-local", place, *agent)
    assert code == 0, err
    assert "right, not isolated: no connection that bypassed the proxy was seen" in err


async def test_where_no_namespace_can_be_had_a_replay_refuses_the_refund(
    shop: Shop, data: Path, database_url: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can take away the right to make namespaces")
    config = data.with_name("playhead.toml")
    config.write_text(
        f'database_url = "{database_url}"\n[upstreams]\n"tools.example" = "http://127.0.0.1:{shop.port}"\n'
    )
    agent = "--config", str(config), "--", sys.executable, "-c", AGENT, str(shop.port)
    place, report = f"127.0.0.1:{shop.port}", data.with_name("report.json")

    code, _, err = await playhead("record", data, "--run", "r2", "--isolation", "off", *agent)
    assert (code, shop.refunds) == (0, 1), err
    if "system does not allow watching" in err:
        pytest.skip("no seccomp user notification here")

    bundle = data.with_name("r2.jsonl")
    code, _, err = await playhead("export", data, "r2", "-o", str(bundle), "--config", str(config))
    assert code == 0, err
    without = ("unshare", "--user", "--map-root-user", "sh", "-c", WITHOUT_NAMESPACES, "sh")
    code, _, err = await playhead("replay", data, str(bundle), "--report", str(report), *agent, within=without)
    assert "not isolated" in err
    assert (code, shop.refunds) == (1, 1), err
    assert f"refused: {place}: its client ignores the proxy variables" in err
    assert f"--allow-local {place}" in err
    document = json.loads(report.read_text())
    assert (document["verdict"], document["refused"], document["escaped"], document["isolation"]) == (
        "diverged",
        1,
        0,
        "watched",
    )
    assert document["refusals"][0]["destination"] == place

    code, _, err = await playhead("replay", data, str(bundle), "--allow-local", place, *agent, within=without)
    assert (code, shop.refunds) == (0, 2), err


@pytest.mark.parametrize(
    ("path", "is_refused", "verdict"),
    [
        ("/run/user/1000/bus", True, "right"),
        ("/run/user/1000/bus", False, "diverged"),
        ("/run/mysqld/mysqld.sock", True, "diverged"),
    ],
)
def test_a_bus_that_a_watched_replay_refuses_does_not_count(path: str, is_refused: bool, verdict: str) -> None:
    """As with a captive command: desktop libraries look there by themselves."""
    report = _escape_report(Escape(protocol="unix", destination=path, count=1, is_refused=is_refused))
    whole = {"verdict": "right", "refused": 0, "refusals": [], "first_divergence": None, "connections": [report]}
    assert report_with_escapes(whole)["verdict"] == verdict


def test_a_worker_of_whose_end_nothing_is_known_is_no_gap() -> None:
    """The process that forked it was killed, and it went on."""
    ran = CommandResult(code=0, isolation="captive")
    assert with_worker_ends(ran, [0, UNKNOWN_STATUS]).worker_end == ""
    assert with_worker_ends(ran, [0, 1]).worker_end == "ended with status 1"


@pytest.mark.parametrize("isolation", ["auto", "off"])
async def test_a_refund_on_a_connection_of_the_shell_is_named_and_not_made_again(
    shop: Shop, data: Path, database_url: str, isolation: str
) -> None:
    config = data.with_name("playhead.toml")
    config.write_text(
        f'database_url = "{database_url}"\n[upstreams]\n"tools.example" = "http://127.0.0.1:{shop.port}"\n'
    )
    options = ("--config", str(config), "--isolation", isolation)

    async def run_agent(name: str, *arguments: str) -> tuple[int, str, str]:
        _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        try:
            number = writer.get_extra_info("socket").fileno()
            agent = [sys.executable, "-c", INHERITING_AGENT, str(number)]
            return await playhead(name, data, *arguments, "--", *agent, inherited=[number])
        finally:
            writer.close()

    code, out, err = await run_agent("record", *options, "--run", "shell")
    assert (code, shop.refunds) == (0, 1), err
    assert f"inherited 127.0.0.1:{shop.port} (" in err
    code, gaps, err = await playhead("show", data, "shell", "--json", "--config", str(config))
    assert "open before the command began" in gaps, gaps + err
    code, out, err = await run_agent("replay", "shell", *options)
    assert (code, shop.refunds) == (0, 1), err
    assert "Bad file descriptor" in out
    assert f"refused: inherited 127.0.0.1:{shop.port}" in err


async def test_a_worker_that_was_killed_is_a_gap_of_the_run(shop: Shop, data: Path, database_url: str) -> None:
    config = data.with_name("playhead.toml")
    config.write_text(
        f'database_url = "{database_url}"\n[upstreams]\n"tools.example" = "http://127.0.0.1:{shop.port}"\n'
    )
    options = ("--config", str(config), "--isolation", "off", "--run", "killed")
    code, out, err = await playhead("record", data, *options, "--", sys.executable, "-c", WORKER_KILLER)
    assert (code, "refused" in out) == (0, True), out + err
    sentence = "the proxy worker was killed (SIGKILL)"
    assert sentence in err
    assert "recorded killed: 1 call" in err
    _, shown, err = await playhead("show", data, "killed", "--json", "--config", str(config))
    assert sentence in shown, err
