"""What replays files needs no package of the extras, so that CI can leave out the database, the REST API and mitmproxy."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MODULES = {"opentelemetry-proto": "opentelemetry", "rfc3161-client": "rfc3161_client"}
"""Modules whose names differ from their packages'."""

REPLAY = """
import sys
import proxy.cli.record, proxy.cli.replay, proxy.cli.fixtures, proxy.cli.testing, proxy.fixtures.process
import proxy.worker.process, proxy.worker.replay_setup, proxy.worker.stored_recordings, proxy.lane.lane, proxy.lane.h2.client
import proxy.capture.namespace.launch, proxy.fixtures.write_recording, proxy.trust.leaves, proxy.lane.h2.upstreams
print(*{name.partition(".")[0] for name in sys.modules})
"""


WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
sys.argv[:2] = ["playhead"]
from proxy.main import main
main()
"""


def extra_modules() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = [
        wanted.replace("[", ">").partition(">")[0]
        for extra in project["optional-dependencies"].values()
        for wanted in extra
    ]
    return {MODULES.get(name, name.replace("-", "_")) for name in packages}


def test_replaying_imports_nothing_of_an_extra() -> None:
    extras = extra_modules()
    assert {"sqlalchemy", "fastapi", "mitmproxy", "asyncpg"} <= extras
    done = subprocess.run([sys.executable, "-c", REPLAY], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "ngh2" in imported
    assert not imported & extras


@pytest.mark.parametrize("command", ["verify", "export", "backup"])
def test_a_command_that_needs_an_extra_says_so(command: str) -> None:
    words = [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(extra_modules()), command, "run.jsonl"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert re.fullmatch(
        r"playhead: this environment has no \w+, which this command needs: install playhead\[.*\] into it\n",
        done.stderr,
    ), done.stderr


def test_other_people_s_environments_get_one_package_of_the_server_s_plugin() -> None:
    """Its proof is run from the checkout, and nothing of ours may be called `proof` elsewhere."""
    build = tomllib.loads((ROOT / "inference" / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["playhead_inference"]
