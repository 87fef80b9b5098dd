"""Modes by host: what the settings say, and what a replay lets out of the machine."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.generations import next_generation_name
from proxy.errors import Failure
from proxy.settings import load_settings
from proxy.trust.ca import ensure_ca
from proxy.wire.config import EngineConfig
from store.bundle.bundle import bundle_lines
from store.generations.names import GENERATION_LABEL, newest_generation
from tests.drills.up_processes import environment
from tests.drills.upstream import HOST, upstream
from tests.replay.strategies import exchange, ok, post, run_of
from tests.support.service import command


def load_modes(path: Path, text: str, **flags: Any) -> dict[str, str]:
    path.write_text(text)
    return dict(load_settings(flags, path).host_modes)


def test_allowed_hosts_pass_and_a_mode_of_their_own_counts_more(tmp_path: Path) -> None:
    text = 'allowed_hosts = ["A.test", "b.test"]\n[modes]\n"b.test" = "replay"\n"*.C.test" = "auto"\n'
    wanted = {"a.test": "passthrough", "b.test": "replay", "*.c.test": "auto"}
    assert load_modes(tmp_path / "playhead.toml", text) == wanted


def test_a_mode_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"modes\.a\.test"):
        load_modes(tmp_path / "playhead.toml", '[modes]\n"a.test" = "sometimes"\n')


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        ("a.test", "passthrough"),
        ("A.TEST", "passthrough"),
        ("deep.b.test", "auto"),
        ("deep.inner.b.test", "record"),
        ("inner.b.test", "auto"),
        ("b.test", "replay"),
        ("other.example", "replay"),
    ],
)
def test_the_closest_name_decides(tmp_path: Path, host: str, mode: str) -> None:
    modes: Any = {"a.test": "passthrough", "*.b.test": "auto", "*.inner.b.test": "record"}
    assert EngineConfig(authority=ensure_ca(tmp_path), mode="replay", modes=modes).mode_for(host) == mode


def test_generations_are_counted() -> None:
    assert [next_generation_name("run", name) for name in ("run", "run:g2", "run:g9")] == [
        "run:g2",
        "run:g3",
        "run:g10",
    ]
    assert newest_generation("run", {"labels": {GENERATION_LABEL: "run:g3"}}) == "run:g3"
    assert newest_generation("run", {"labels": None}) == "run"
    with pytest.raises(Failure, match="too long for another generation"):
        next_generation_name("r" * 126, "r" * 126)


ASKER = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


async def test_a_replay_lets_out_what_is_allowed_by_name_and_says_so_in_ci(data: Path) -> None:
    recording = data.with_suffix(".jsonl")
    recording.write_bytes(b"".join(bundle_lines(run_of(exchange(post("http://tools.example/", b"{}"), ok(b"{}"))))))
    async with upstream() as source:
        other = "other.drill.example"
        line = [*command("replay", "--data", str(data), "--config", str(data.with_suffix(".toml"))), "--allow-unused"]
        data.with_suffix(".toml").write_text(f'{source.config}"{other}" = "http://127.0.0.1:{source.port}"\n')
        process = await asyncio.create_subprocess_exec(
            *(*line, "--allowed-hosts", HOST, str(recording), "--", sys.executable, "-c", ASKER),
            *(f"http://{HOST}/whole?size=5", f"http://{other}/whole?size=5"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment({"CI": "true"}),
        )
        out, err = await process.communicate()
        assert len(source.asked) == 1
    assert out.split() == [b"200", b"424"], err
    assert process.returncode == 1
    assert err.decode().startswith(f"playhead: CI is set, and requests go out for {HOST}")
    assert "1 missed" in err.decode()
    assert "1 allowed" in err.decode()


async def test_an_up_that_only_records_cannot_answer_a_host_from_recordings(data: Path) -> None:
    data.with_suffix(".toml").write_text('[modes]\n"a.test" = "replay"\n')
    process = await asyncio.create_subprocess_exec(
        *command("up", "--data", str(data), "--config", str(data.with_suffix(".toml"))),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, err = await process.communicate()
    assert process.returncode == 125
    assert "a.test = 'replay', but mode record answers nothing from recordings" in err.decode()


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "it is empty"), ("interactions: []\nversion: 1\n", "is not a bundle, so it cannot be replaced")],
)
async def test_what_is_no_bundle_cannot_have_another_generation(data: Path, content: str, said: str) -> None:
    file = data.with_suffix(".yaml")
    file.write_text(content)
    process = await asyncio.create_subprocess_exec(
        *command("replay", "--data", str(data), "--on-miss", "record", str(file), "--", "true"),
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    _, err = await process.communicate()
    assert process.returncode == 125
    assert said in err.decode()
