"""The page about what a test missed: its address, and the report that it shows."""

import json
from pathlib import Path

from proxy.fixtures.miss_pages import MissPages
from store.datadir import open_data_dir

MISSED = {"misses": [{"number": 1}]}


def test_the_page_is_that_of_the_up_that_runs_now(tmp_path: Path) -> None:
    data = open_data_dir(tmp_path / "data")
    pages = MissPages(data=data, project="default")
    assert pages.find_page() is None
    data.announce("up", {"page": "http://127.0.0.1:8081"})
    assert pages.find_page() is None, "it was killed, and left its notice"
    with data.up_lock.hold():
        assert pages.find_page() == "http://127.0.0.1:8081"
        data.announce("up", {"page": None})
        assert pages.find_page() is None, "its store server runs elsewhere"


def test_reports_of_misses_are_kept_and_the_oldest_removed(tmp_path: Path) -> None:
    data = open_data_dir(tmp_path / "data")
    pages = MissPages(data=data, project="blue")
    pages.keep_report({"id": pages.new_replay(), "misses": []})
    pages.keep_report({"id": "recordings-test_a", **MISSED})
    assert list(data.replays.glob("*.json")) == []
    names = [pages.new_replay() for _ in range(53)]
    for name in names:
        pages.keep_report({"id": name, **MISSED})
    kept = list(data.replays.glob("*.json"))
    assert len(kept) == 50
    assert json.loads((data.replays / f"{names[-1]}.json").read_bytes()) == {
        "id": names[-1],
        **MISSED,
        "project": "blue",
    }
