"""Captive forks, resumptions and bisections: a client that reads no variable is answered, and no other traffic leaves."""

import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.proxy.capture.running import Station, bare, open_station
from tests.proxy.capture.standin import ZONE, StandIn

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

# Raw sockets read no variable.
ASK = """
import json, socket, sys

def ask(path):
    with socket.create_connection(("ZONE", 80), 20) as client:
        client.sendall(f"GET {path} HTTP/1.1\\r\\nHost: ZONE\\r\\nConnection: close\\r\\n\\r\\n".encode())
        whole = b""
        while piece := client.recv(65536):
            whole += piece
    return whole.partition(b"\\r\\n\\r\\n")[2].decode()
""".replace("ZONE", ZONE)

AGENT = f"""{ASK}
for path in sys.argv[1:]:
    print(ask(path))
try:
    with socket.create_connection(("198.51.100.9", 5432), 5) as client:
        client.sendall(bytes(8))
        print("database:", client.recv(1))
except OSError:
    print("database: refused")
"""

# Reports what happens to it, wherever it can.
REPORTER = f"""{ASK}
try:
    socket.create_connection(("telemetry.invalid", 443), 20)
except socket.gaierror:
    print("no such name")
else:
    print("connected")
print(ask("/reported"))
"""

# The server counts its answers: the last of a bad run has a high number.
JUDGE = f"""{ASK}
answers = [json.loads(ask(path))["answer"] for path in sys.argv[1:]]
sys.exit(answers[-1] > 500)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    station: Station
    world: StandIn

    def agent(self, *paths: str) -> list[str]:
        """Return the agent's command line, without variables."""
        return bare([sys.executable, "-c", AGENT, *paths], os.environ)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(module_database_url: str) -> AsyncIterator[Scene]:
    async with open_station(module_database_url) as (station, world):
        yield Scene(station=station, world=world)


async def test_a_fork_is_captive_and_goes_live_by_the_proxy_alone(scene: Scene) -> None:
    recorded = scene.station.run("record", "--run", "trunk", "--", *scene.agent("/one", "/two"))
    assert recorded.returncode == 0, recorded.stderr
    first, second, *_ = recorded.stdout.splitlines()
    required = "--isolation", "require"
    forked = scene.station.run(
        "fork", *required, "trunk", "--after-step", "1", "--run", "branch", "--", *scene.agent("/one", "/two")
    )
    said = forked.stdout.splitlines()
    assert said[0] == first, forked.stderr
    assert said[1] != second, "it was asked anew"
    assert said[2] == "database: refused"
    assert "198.51.100.9:5432" in forked.stderr
    assert scene.world.asked[f"GET {ZONE}/one"] == 1
    assert scene.world.asked[f"GET {ZONE}/two"] == 2
    assert json.loads(scene.station.run("show", "branch", "--json").stdout)["isolation"] == "captive"


async def test_a_name_that_did_not_resolve_does_not_resolve_in_a_replay(scene: Scene, tmp_path: Path) -> None:
    """Otherwise a program whose telemetry is blocked where it is recorded would make requests in each replay that nothing answers."""
    reporter = bare([sys.executable, "-c", REPORTER], os.environ)
    recorded = scene.station.run("record", "--run", "blocked", "--", *reporter)
    assert recorded.stdout.splitlines()[0] == "no such name", recorded.stderr
    labels = json.loads(scene.station.run("show", "blocked", "--json").stdout)["labels"]
    assert "telemetry.invalid" in labels["playhead.unresolved"].split()
    file = str(tmp_path / "blocked.playhead")
    assert scene.station.run("export", "blocked", "-o", file).returncode == 0
    for recording in ("blocked", file):
        replayed = scene.station.run("replay", "--isolation", "require", recording, "--", *reporter)
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


async def test_a_name_that_does_not_resolve_in_a_fork_does_not_resolve_in_its_replay(scene: Scene) -> None:
    reporter = bare([sys.executable, "-c", REPORTER], os.environ)
    recorded = scene.station.run("record", "--run", "shut", "--", *reporter)
    assert recorded.stdout.splitlines()[0] == "no such name", recorded.stderr
    forked = scene.station.run("fork", "shut", "--after-step", "1", "--run", "shut-fork", "--", *reporter)
    assert forked.stdout.splitlines()[0] == "no such name", forked.stderr
    replayed = scene.station.run("replay", "--isolation", "require", "shut-fork", "--", *reporter)
    assert (replayed.returncode, replayed.stdout) == (0, forked.stdout), replayed.stderr


async def test_a_resumption_is_captive(scene: Scene) -> None:
    assert scene.station.run("record", "--run", "halted", "--", *scene.agent("/three")).returncode == 0
    resumed = scene.station.run(
        "resume", "--isolation", "require", "halted", "--run", "resumed", "--", *scene.agent("/three", "/four")
    )
    said = resumed.stdout.splitlines()
    assert [json.loads(line)["path"] for line in said[:2]] == ["/three", "/four"], resumed.stderr
    assert said[2] == "database: refused"
    assert scene.world.asked[f"GET {ZONE}/three"] == 1
    assert scene.world.asked[f"GET {ZONE}/four"] == 1
    assert json.loads(scene.station.run("show", "resumed", "--json").stdout)["isolation"] == "captive"


async def test_a_bisection_is_captive(scene: Scene) -> None:
    judged = bare([sys.executable, "-c", JUDGE, "/five", "/six"], os.environ)
    good = scene.station.run("record", "--run", "good", "--", *judged)
    assert good.returncode == 0, good.stderr
    scene.world.asked["POST a number above all others"] += 1000
    bad = scene.station.run("record", "--run", "bad", "--", *judged)
    assert bad.returncode == 1, bad.stderr
    before = scene.world.asked.total()
    found = scene.station.run("bisect", "--isolation", "require", "good", "bad", "--json", "--", *judged)
    assert found.returncode == 0, found.stderr
    assert "/six" in found.stdout
    assert scene.world.asked.total() == before
