"""Connections that nftables or iptables redirect, in network namespaces of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import wire

PROGRAM = Path(__file__).parent / "programs" / "redirected_host.py"
ROOT = Path(__file__).parents[3]


def _missing_support(text_format: str) -> str | None:
    """Explain why this cannot be tested here."""
    if os.geteuid() != 0:
        return "only root may start programs as another user, whom the rules do not leave out"
    for program in ("ip", "curl", text_format):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run(
        ["unshare", "--net", text_format, *(["list", "ruleset"] if text_format == "nft" else ["-t", "nat", "-S"])],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no {text_format} in a network namespace here: {tried.stderr.strip()}" if tried.returncode else None


@pytest.mark.parametrize(
    ("engine", "text_format"), [("lane", "nft"), ("mitmproxy", "nft"), ("lane", "iptables")], ids=str
)
def test_redirected_connections_are_recorded(engine: str, text_format: str, tmp_path: Path) -> None:
    assert engine in wire.ENGINES
    if why := _missing_support(text_format):
        pytest.skip(why)
    # Another user must be able to read the CA here.
    directory = Path(f"/tmp/playhead-{os.getpid()}-{tmp_path.name}")
    directory.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), engine, text_format, str(directory)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=directory,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for name in ("apply", "again", "loop_apply", "remove", "remove_again"):
        assert found[name][0] == 0, found
    # Of the rules that were applied before, in the other format, none is left.
    assert "443" in found["in_force"], found["in_force"]
    assert "12121" not in found["in_force"], found["in_force"]
    for name in ("tls", "tls6", "plain", "literal", "after"):
        assert found[name] == [0, "200"], (name, found)
    assert "220 ready" in found["mail"][1], found
    assert "220 ready" in found["mail6"][1], found
    assert found["urls"][:4] == [
        "https://api.test/tls",
        "https://api.test/tls6",
        "http://api.test/plain",
        "https://11.22.33.2/literal",
    ]
    # Each program is a run of its own, named after the process behind the connection that the kernel redirected.
    owners = found["owners"][:4]
    assert all(run.startswith("curl-") and "curl" in evidence["process"] for run, evidence in owners), owners
    assert len({run for run, _ in owners}) == 4, owners
    # Requests of the worker's own user are not redirected: they reach a server whose CA curl does not know.
    assert found["excluded"][0] == 60
    assert found["direct"][0] != 0
    assert found["loop"][1].endswith(("502", "000")), found
    assert "220" not in found["loop_mail"][1], found
    assert any("own connection, redirected back" in gap for gap in found["gaps"])
    assert not any(url.endswith(("/own", "/after")) for url in found["urls"])
