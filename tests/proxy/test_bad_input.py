"""What bad input gets: one clear sentence that says what to do, exit code 125 (2 for a wrong command line), nothing lost."""

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.service import command, running


def playhead(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*map(str, arguments)), cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], *words: str, code: int = 125) -> None:
    assert done.returncode == code, done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("playhead: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in said, said


def test_a_wrong_command_line_exits_with_2(tmp_path: Path) -> None:
    done = playhead("record", "--no-such-flag", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "No such option" in done.stderr


def test_a_command_that_does_not_exist(tmp_path: Path, data: Path) -> None:
    done = playhead("record", "--data", data, "--", "no-such-command-here", cwd=tmp_path)
    assert_one_sentence(done, "no-such-command-here", "check its name")


def test_a_run_id_that_cannot_be_one(tmp_path: Path, data: Path) -> None:
    done = playhead("record", "--data", data, "--run", "a b", "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "'a b' cannot be a run id", "A-Z")


def test_a_playhead_toml_with_a_mistake_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "playhead.toml").write_text('[upstreams]\n"a.example" = \n')
    assert_one_sentence(playhead("config", cwd=tmp_path), "playhead.toml", "line 2")


def test_a_profile_with_a_mistake_names_its_line(tmp_path: Path, data: Path) -> None:
    (tmp_path / "playhead.toml").write_text('\n\n[[profile]]\nname = "x/1"\nkey = ["$["]\n')
    done = playhead("record", "--data", data, "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "line 5")


def test_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "playhead.toml").write_text("wokers = 2\n")
    assert_one_sentence(playhead("config", cwd=tmp_path), "wokers")


def test_listening_beyond_loopback_without_a_token(tmp_path: Path, data: Path) -> None:
    done = playhead("up", "--data", data, "--listen", "0.0.0.0", cwd=tmp_path)
    assert_one_sentence(done, "PLAYHEAD_TOKEN")


def test_a_port_in_use(tmp_path: Path, data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = playhead("up", "--data", data, "--proxy-port", port, cwd=tmp_path)
    assert_one_sentence(done, port, "choose another port")


def test_a_database_that_does_not_answer(tmp_path: Path, data: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:9/nothing"
    done = playhead("up", "--data", data, "--api-port", "0", "--proxy-port", "0", "--database-url", url, cwd=tmp_path)
    assert_one_sentence(done, "127.0.0.1:9")


def _version(data: Path) -> None:
    (data / "version").write_text("99\n")


def _ca(data: Path) -> None:
    playhead("ca", "--data", data, cwd=data)
    (data / "keys" / "ca.key").chmod(0o644)


def _file_in_the_way(data: Path) -> None:
    (data / "spool").write_text("in the way")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_version, ("version 99", "--data DIR")),
        (_ca, ("ca.key", "chmod 600")),
        (_file_in_the_way, ("spool", "--data DIR")),
    ],
)
def test_a_data_directory_that_cannot_be_used(
    tmp_path: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    data.mkdir()
    spoil(data)
    done = playhead("up", "--data", data, "--proxy-port", "0", "--api-port", "0", cwd=tmp_path)
    assert_one_sentence(done, *words)


async def test_two_ups_on_one_data_directory(tmp_path: Path, data: Path) -> None:
    async with running(data):
        done = playhead("up", "--data", data, "--proxy-port", "0", "--api-port", "0", cwd=tmp_path)
    assert_one_sentence(done, "another `playhead up` runs", "--data")


async def test_runs_that_do_not_exist(tmp_path: Path, data: Path) -> None:
    async with running(data):
        assert_one_sentence(
            playhead("replay", "--data", data, "nope", "--", "true", cwd=tmp_path), "nope", "playhead ls"
        )
        assert_one_sentence(playhead("export", "--data", data, "nope", cwd=tmp_path), "nope")
        assert_one_sentence(playhead("show", "--data", data, "nope", cwd=tmp_path), "nope")
        assert_one_sentence(
            playhead("replay", "--data", data, "last", "--", "true", cwd=tmp_path), "nothing was recorded"
        )


def test_a_bundle_that_is_not_there(tmp_path: Path, data: Path) -> None:
    done = playhead("replay", "--data", data, "gone.jsonl", "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "gone.jsonl", "playhead export")
