"""A data directory that several processes begin to use at the same time."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.datadir import DataDir, open_data_dir


def secrets_of(data: DataDir) -> tuple[bytes | str, ...]:
    return data.redaction_key(), data.api_token(), data.recording_token(), data.run_tokens().key


def test_whoever_comes_first_makes_the_secrets_and_everybody_has_them(tmp_path: Path) -> None:
    for n in range(20):
        data = tmp_path / str(n)
        with ThreadPoolExecutor(8) as pool:
            keys = set(pool.map(lambda _: secrets_of(open_data_dir(data)), range(8)))  # noqa: B023 - used at once
        assert len(keys) == 1
        assert len(set(keys.pop())) == 4
        files = {path.name: path.stat().st_mode & 0o777 for path in (data / "keys").iterdir()}
        assert files == dict.fromkeys(("api.token", "recording.token", "redaction.key", "run-tokens.key"), 0o600)
        assert (data / "version").read_text() == "1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as another user")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_postgres_reaches_the_directory_that_root_makes_under_any_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        data = open_data_dir(tmp_path / "new" / "data")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(one.stat().st_mode) & 0o011 for one in (data.root.parent, data.root)] == [0o011, 0o011]
    assert stat.S_IMODE(data.root.stat().st_mode) == 0o711
    assert stat.S_IMODE(data.keys.stat().st_mode) == 0o700
