"""A replay gives its command proxy variables if the recorded one had some, and stays captive: clients make other requests behind a proxy."""

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.proxy.capture.running import Station, open_station
from tests.proxy.capture.standin import ZONE, StandIn

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

# As Claude Code does: without a proxy, it opens a connection ahead.
AGENT = f"""
import os, socket, sys, urllib.request
behind = os.environ.get("HTTP_PROXY", "")
if not behind:
    with socket.create_connection(("{ZONE}", 80), 20) as ahead:
        ahead.sendall(b"GET /ahead HTTP/1.1\\r\\nHost: {ZONE}\\r\\nConnection: close\\r\\n\\r\\n")
        ahead.recv(65536)
print("behind a proxy" if behind else "without a proxy", os.environ.get("NO_PROXY", "-"))
for path in sys.argv[1:]:
    print(urllib.request.urlopen("http://{ZONE}" + path).read().decode())
try:
    with socket.create_connection(("198.51.100.9", 5432), 5) as client:
        client.sendall(bytes(8))
        print("database:", client.recv(1))
except OSError:
    print("database: refused")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    station: Station
    world: StandIn

    def run(self, verb: str, *arguments: str, paths: Sequence[str]) -> "tuple[int, list[str], str]":
        """Run the agent by a command. The user's own environment has NO_PROXY."""
        around = {**os.environ, "NO_PROXY": f"{ZONE},localhost"}
        agent = [sys.executable, "-c", AGENT, *paths]
        done = self.station.run(verb, *arguments, "--", *agent, around=around)
        return done.returncode, done.stdout.splitlines(), done.stderr


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(module_database_url: str) -> AsyncIterator[Scene]:
    async with open_station(module_database_url) as (station, world):
        yield Scene(station=station, world=world)


async def test_a_run_that_was_recorded_behind_a_proxy_is_replayed_behind_one_and_captive(
    scene: Scene, tmp_path: Path
) -> None:
    watched = "--isolation", "off", "--watch", "off"
    recorded = scene.station.run(
        "record", *watched, "--run", "behind", "--", sys.executable, "-c", AGENT, "/one", "/two"
    )
    assert recorded.stdout.startswith("behind a proxy"), recorded.stderr
    before = scene.world.asked.total()
    file = str(tmp_path / "behind.playhead")
    assert scene.station.run("export", "behind", "-o", file).returncode == 0
    for recording in ("behind", file):
        report = tmp_path / "report.json"
        code, said, errors = scene.run(
            "replay", "--isolation", "require", "--report", str(report), recording, paths=("/one", "/two")
        )
        # Nothing of the user's own NO_PROXY is left, by which a client would pass the proxy.
        assert said[0] == "behind a proxy localhost,127.0.0.1,::1", errors
        assert said[1:3] == recorded.stdout.splitlines()[1:3]
        assert said[3] == "database: refused"
        assert "198.51.100.9:5432" in errors
        found = json.loads(report.read_text())
        assert (found["isolation"], found["served"], found["missed"], found["unused"]) == ("captive", 2, 0, 0)
        assert code == 1, "the refused connection alone makes it diverge"
        assert "the command had proxy variables, because the recorded one had" in errors
    assert scene.world.asked.total() == before


async def test_a_fork_of_such_a_run_has_the_variables_and_so_has_its_replay(scene: Scene) -> None:
    watched = "--isolation", "off", "--watch", "off"
    recorded = scene.station.run("record", *watched, "--run", "root", "--", sys.executable, "-c", AGENT, "/three")
    assert recorded.returncode == 0, recorded.stderr
    required = "--isolation", "require"
    _, said, errors = scene.run(
        "fork", *required, "root", "--after-step", "1", "--run", "twig", paths=("/three", "/four")
    )
    assert said[0].startswith("behind a proxy"), errors
    assert scene.world.asked[f"GET {ZONE}/three"] == 1
    assert scene.world.asked[f"GET {ZONE}/four"] == 1
    shown = json.loads(scene.station.run("show", "twig", "--json").stdout)
    assert (shown["isolation"], shown["labels"]["playhead.proxy_variables"]) == ("captive", "yes")
    _, again, errors = scene.run("replay", *required, "twig", paths=("/three", "/four"))
    assert again == said, errors


async def test_a_run_that_was_recorded_captive_is_replayed_without_variables(scene: Scene) -> None:
    _, recorded, errors = scene.run("record", "--run", "captive", paths=("/five",))
    assert recorded[0].startswith("without a proxy"), errors
    _, said, errors = scene.run("replay", "--isolation", "require", "captive", paths=("/five",))
    assert said[:-1] == recorded[:-1], errors
    assert "2 served, 0 missed" in errors
    assert "proxy variables" not in errors
