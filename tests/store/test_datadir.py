"""A data directory that several processes begin to use at the same time."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store.datadir import opened


def test_whoever_comes_first_makes_the_key_and_everybody_has_it(tmp_path: Path) -> None:
    for n in range(20):
        data = tmp_path / str(n)
        with ThreadPoolExecutor(8) as pool:
            keys = set(pool.map(lambda _: opened(data).redaction_key(), range(8)))  # noqa: B023 - used at once
        assert len(keys) == 1
        assert len(keys.pop()) == 32
        assert sorted(path.name for path in (data / "keys").iterdir()) == ["redaction.key"]
        assert (data / "keys" / "redaction.key").stat().st_mode & 0o777 == 0o600
        assert (data / "version").read_text() == "1\n"
