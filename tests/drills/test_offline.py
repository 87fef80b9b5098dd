"""Replay by proxy variables where there is no network at all: no route, no name that resolves, no socket to anybody else.

Of captive commands, which are what a replay is where the system allows it: tests/proxy/capture."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.up_processes import environment, save_bundle, up
from tests.drills.upstream import HOST, upstream
from tests.support.service import command

CLIENT = """
import hashlib, httpx, os, sys
with httpx.Client(timeout=60, base_url=f"https://{sys.argv[1]}") as client:
    for target in ("/whole?size=5000", "/stream?pieces=20", "/whole?size=70000"):
        with client.stream("GET", target) as answer:
            pieces = list(answer.iter_raw())
        print(target, answer.status_code, hashlib.sha256(b"".join(pieces)).hexdigest())
print(os.environ["HTTPS_PROXY"].rpartition(":")[2], file=sys.stderr)
"""

CONNECT = re.compile(r'connect\(\d+, \{sa_family=(\w+), (?:sin6?_port=htons\((\d+)\), .*?"([^"]*)"|sun_path="([^"]*)")')


@pytest.mark.slow
async def test_replay_speaks_to_nobody(data: Path, database_url: str) -> None:
    client = (sys.executable, "-c", CLIENT, HOST)
    file = data.with_suffix(".toml")
    async with upstream() as source, up(data, "--database-url", database_url, config=source.config) as processes:
        flags = ("--data", str(data), "--config", str(file))
        live = await _run_command(command("record", *flags, "--isolation", "off", "--run", "night", "--", *client))
        recording = await save_bundle(processes.api, "night", data.with_suffix(".jsonl"))
        asked = len(source.asked)
    trace = data.with_suffix(".strace")
    replay = command("replay", "--data", str(data), "--isolation", "off", str(recording), "--", *client)
    offline = await _run_command(_cut_off([*_strace_command(trace), *replay]))
    assert offline[0] == live[0]
    assert live[0].count(b" 200 ") == 3
    assert len(source.asked) == asked
    port = offline[1].splitlines()[0].decode()
    connected = CONNECT.findall(trace.read_text())
    assert connected, "nothing was traced"
    # Whether loopback is there is asked with a datagram's socket, over which nothing is sent (proxy/processes/ports.py).
    assert {(family, to, where) for family, to, where, _ in connected if family != "AF_UNIX"} - {
        ("AF_INET", "9", "127.0.0.1")
    } == {("AF_INET", port, "127.0.0.1")}
    assert {path for *_, path in connected if path} <= {"/var/run/nscd/socket"}


async def _run_command(line: list[str]) -> tuple[bytes, bytes]:
    """Output and errors of a command that must succeed."""
    process = await asyncio.create_subprocess_exec(
        *line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out, err


def _strace_command(trace: Path) -> list[str]:
    if shutil.which("strace") is None:
        pytest.skip("no strace here to see what is connected to")
    return ["strace", "-f", "-qq", "-e", "trace=connect", "-o", str(trace)]


def _cut_off(line: list[str]) -> list[str]:
    """The command in a network namespace of its own, which has a loopback and no route."""
    apart = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    up = "ip link set lo up && ! ip route | grep -q . && ! ip -6 route show default | grep -q ."
    if subprocess.run([*apart, "sh", "-c", up], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    return [*apart, "sh", "-c", f"ip link set lo up && exec {shlex.join(line)}"]
