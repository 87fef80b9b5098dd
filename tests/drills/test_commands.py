"""Commands that share a data directory with nobody's `up` running: at once, one in the other's way, one after the other."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.drills.house import bundle, environment, get, up
from tests.drills.ledger import NAME, Ledger, Seen
from tests.drills.upstream import HOST, expected, upstream
from tests.support.service import command

TARGET = "/whole?size=2000"

ASKER = """
import sys, time, urllib.request
host, target, header, name, first, last, pause = sys.argv[1:]
for n in range(int(first), int(last)):
    asked = urllib.request.Request(f"http://{host}{target}", headers={header: f"{name}.{n}"})
    assert len(urllib.request.urlopen(asked).read()) == 2000
    time.sleep(float(pause))
"""


async def playhead(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, output, errors."""
    process = await asyncio.create_subprocess_exec(
        *command(*map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def recording(data: Path, run: str, first: int, last: int, pause: float = 0) -> list[str | Path]:
    """The command line that records requests `first` to `last` of a run."""
    flags = ("--data", data, "--config", data.with_suffix(".toml"), "--run", run)
    asker = (sys.executable, "-c", ASKER, HOST, TARGET, NAME, run)
    return ["record", *flags, "--", *asker, *map(str, (first, last, pause))]


def answered(run: str, count: int) -> Ledger:
    """What an asker saw that ended well."""
    names = [f"{run}.{n}" for n in range(count)]
    whole = [expected(TARGET, name) for name in names]
    return Ledger(
        [
            Seen(name=name, run=run, expected=body, status=200, body=body, end="whole")
            for name, body in zip(names, whole, strict=True)
        ]
    )


@pytest.mark.slow
async def test_two_recordings_at_once_and_one_that_goes_on_are_all_there(embedded: Path) -> None:
    async with upstream() as source:
        embedded.with_suffix(".toml").write_text(source.config)
        both = await asyncio.gather(
            playhead(*recording(embedded, "long", 0, 30, pause=0.1)), playhead(*recording(embedded, "short", 0, 5))
        )
        later = await playhead(*recording(embedded, "short", 5, 9))
    assert [done[0] for done in (*both, later)] == [0, 0, 0], (both, later)
    assert not list((embedded / "log").glob("door-*.log")), "doors that had nothing to say left an empty file each"
    async with up(embedded) as house:
        listed = (await get(house.api, "/runs"))["items"]
        found = {run: await bundle(house.api, run) for run in ("long", "short")}
    wanted = {"long": (30, True), "short": (9, True)}
    assert {run["id"]: (run["exchanges"], run["complete"]) for run in listed} == wanted
    for run, (count, _) in wanted.items():
        asked = [name for name in source.asked if name.startswith(run)]
        comparison = answered(run, count).compare(found[run].exchanges, asked)
        assert comparison.sound, str(comparison)
        assert not found[run].gaps
