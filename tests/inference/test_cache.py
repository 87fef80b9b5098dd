"""A verdict is cached by everything it depends on, and only if it holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from playhead_inference.cache import (
    cpu_digest,
    load_verdict,
    machine_identity,
    save_verdict,
    verdict_directory,
    verdict_key,
)

HOLDS: dict[str, Any] = {"verdict": "holds", "fingerprint": "sha256:00"}
SETTINGS = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
MACHINE = {"node": "one", "cpus": 2}
KEY = verdict_key("sha256:00", SETTINGS, MACHINE)


def test_a_check_that_held_is_found_again_with_its_time(tmp_path: Path) -> None:
    assert save_verdict(tmp_path / "new", KEY, HOLDS) is None
    found = load_verdict(tmp_path / "new", KEY)
    assert found is not None
    assert found.pop("checked_at").endswith("Z")
    assert found == HOLDS


@pytest.mark.parametrize(
    "key",
    [
        verdict_key("sha256:01", SETTINGS, MACHINE),
        verdict_key("sha256:00", {**SETTINGS, "max_num_seqs": 256}, MACHINE),
        verdict_key("sha256:00", SETTINGS, {**MACHINE, "node": "other"}),
    ],
    ids=["fingerprint", "settings", "machine"],
)
def test_nothing_is_found_for_another(key: str, tmp_path: Path) -> None:
    save_verdict(tmp_path, KEY, HOLDS)
    assert load_verdict(tmp_path, key) is None


@pytest.mark.parametrize("verdict", ["varies", "inconclusive", "refused"])
def test_only_what_holds_is_kept(verdict: str, tmp_path: Path) -> None:
    assert save_verdict(tmp_path, KEY, {**HOLDS, "verdict": verdict}) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"key": "other", "report": HOLDS}), '{"key": 1'])
def test_a_file_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    save_verdict(tmp_path, KEY, HOLDS)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert load_verdict(tmp_path, KEY) is None


def test_a_directory_that_cannot_be_written_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in (save_verdict(tmp_path / "file", KEY, HOLDS) or "")
    assert load_verdict(None, KEY) is None


def test_it_lies_where_caches_lie_and_can_be_turned_off() -> None:
    assert verdict_directory({"HOME": "/home/me"}) == Path("/home/me/.cache/playhead/inference")
    assert verdict_directory({"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}) == Path("/cache/playhead/inference")
    assert verdict_directory({"PLAYHEAD_VERDICTS": "/there"}) == Path("/there")
    assert verdict_directory({"PLAYHEAD_VERDICTS": "off", "HOME": "/home/me"}) is None
    assert verdict_directory({}) is None


def test_a_machine_is_described_the_same_twice() -> None:
    assert machine_identity() == machine_identity()
    assert machine_identity()["cpus"] >= 1


def test_cpus_that_share_a_name_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine's CPU has the same name with and without AMX, and with any cache size."""
    cpu = {"model name": "Intel(R) Xeon(R) Processor", "flags": "avx512f", "cache size": "32768 KB"}
    monkeypatch.setattr("playhead_inference.cache._cpu_info", lambda: cpu)
    monkeypatch.setattr("playhead_inference.cache.CACHES", tmp_path)
    seen = {cpu_digest(), cpu_digest()}
    cpu["flags"] += " amx_tile"
    seen.add(cpu_digest())
    (tmp_path / "index2").mkdir()
    (tmp_path / "index2" / "size").write_text("2048K")
    seen.add(cpu_digest())
    assert len(seen) == 3
