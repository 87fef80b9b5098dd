"""Run Playhead's commands on a test's data directory, like a user."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.proxy.capture.standin import StandIn, start_stand_in
from tests.support.service import command, keeping, surroundings

BARE = ("PATH", "HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A data directory with its configuration."""

    data: Path
    config: Path
    database_url: str
    user: Sequence[str] = ()
    """The prefix of a command line that runs it as another user (`unprivileged`)."""

    def run(
        self,
        verb: str,
        *arguments: str,
        around: Mapping[str, str] | None = None,
        timeout: float = 150,
    ) -> "subprocess.CompletedProcess[str]":
        """Run `playhead VERB --data … ARGUMENTS`."""
        flags = ["--data", str(self.data), "--config", str(self.config)]
        if self.database_url:
            flags += ["--database-url", self.database_url]
        return subprocess.run(
            [*self.user, *command(verb, *flags, *arguments)],
            env=around or surroundings(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )


def bare(program: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return a command line that runs a program with only PATH and HOME."""
    return ["env", "-i", *(f"{name}={variables[name]}" for name in BARE if name in variables), *program]


@cache
def reason_not_captive() -> str | None:
    """Explain why commands cannot be captive on this machine."""
    if Path("/proc/self/ns/user").exists():
        probe = "import os; os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"no namespaces here: {done.stderr.strip().splitlines()[-1]}"
    return "namespaces are a feature of Linux"


def needs_namespaces() -> None:
    """Skip the test if a command cannot be captive."""
    if reason := reason_not_captive():
        pytest.skip(reason)


@contextmanager
def user_without_rights() -> Iterator[list[str]]:
    """Return the prefix with which root runs a command line as a user without rights. Skips if that is impossible.

    Only root may be able to read this interpreter (in /root), so a mount namespace shows it to the other user.
    """
    for tool in ("unshare", "setpriv", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed here")
    top = Path("/", *Path(sys.base_prefix).parts[1:2])
    place = Path(tempfile.mkdtemp(prefix="playhead-user-"))
    (place / "python").mkdir()
    (place / "home").mkdir(mode=0o777)
    (place / "home").chmod(0o777)
    place.chmod(0o755)
    shown = f"""
mount --make-rprivate /
if [ "$(stat -c %a {top} | tail -c 2)" = 0 ]; then
    mount --bind {sys.base_prefix} {place}/python && mount -t tmpfs -o mode=755 none {top} &&
    mkdir -p {sys.base_prefix} && mount --bind {place}/python {sys.base_prefix} || exit 99
fi
export HOME={place}/home TMPDIR={place}/home
exec setpriv --reuid 65534 --regid 65534 --groups 4,65534 --bounding-set -all --inh-caps -all "$@"
"""
    try:
        yield ["unshare", "-m", "sh", "-c", shown, "sh"]
    finally:
        shutil.rmtree(place, ignore_errors=True)


@asynccontextmanager
async def open_station(database_url: str) -> AsyncIterator[tuple[Station, StandIn]]:
    """Yield a data directory with a store server that stays, and the services that its commands reach. Requires
    namespaces.
    """
    needs_namespaces()
    place = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    station = Station(data=place / "d", config=place / "playhead.toml", database_url=database_url)
    with start_stand_in() as world:
        station.config.write_text(world.config)
        async with keeping(station.data, database_url):
            yield station, world
    shutil.rmtree(place, ignore_errors=True)
