"""What a command has as it was recorded: variables from a label of the run, and the clock through libfaketime."""

import time
from pathlib import Path

import pytest

from proxy.capture import pinned
from proxy.capture.faketime import MovedClock
from replay.pinned import MOST_TEXT, UNRESOLVED_LABEL, format_environment, parse_environment


def test_the_user_s_variables_are_pinned_and_seeds_that_each_process_would_draw() -> None:
    found = pinned.variables_to_pin({"TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "7", "HOME": "/root"})
    assert found == {
        "TZ": "Asia/Tokyo",
        "LANG": "C",
        "PYTHONHASHSEED": "7",
        "PERL_HASH_SEED": "0",
        "PERL_PERTURB_KEYS": "0",
    }
    labels = pinned.environment_label(found)
    assert pinned.pinned_by_label(labels) == found
    assert pinned.with_pinned({"LC_ALL": "de", "HOME": "/h"}, found) == {"HOME": "/h", **found}


def test_a_label_sets_nothing_but_what_may_be_pinned_and_is_no_longer_than_a_label() -> None:
    assert parse_environment("LD_PRELOAD=/tmp/x.so TZ='Etc/GMT+1' PATH=/tmp") == {"TZ": "Etc/GMT+1"}
    assert parse_environment("TZ='") == {}
    text = format_environment({"TZ": "UTC", "LC_ALL": "x" * 600, "LANG": "two words", "LC_TIME": "a\nb"})
    assert len(text) <= MOST_TEXT
    assert parse_environment(text) == {"TZ": "UTC", "LANG": "two words"}


def test_a_label_has_as_many_unresolved_names_as_it_takes() -> None:
    assert pinned.unresolved_label([]) == {}
    assert pinned.unresolved_label(["b.test", "a.test", "with space"]) == {UNRESOLVED_LABEL: "a.test b.test"}
    text = pinned.unresolved_label([f"{number:03}.test" for number in range(200)])[UNRESOLVED_LABEL]
    assert MOST_TEXT - 9 < len(text) <= MOST_TEXT
    assert text.split()[-1].endswith(".test")


def test_the_clock_is_moved_by_as_much_as_the_recording_is_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def note_seconds(seconds: int, _environment: object, _copies: object) -> MovedClock:
        moved.append(seconds)
        return MovedClock()

    def why_present(recorded: dict[str, object]) -> str:
        return pinned.recorded_clock(recorded, {}, tmp_path).why_not

    monkeypatch.setattr(pinned, "moved_clock", note_seconds)
    now = time.time_ns()
    assert why_present({"started_at": now - 86_400 * 10**9}) == ""
    assert len(moved) == 1
    assert -86_460 < moved[0] <= -86_399
    assert why_present({"started_at": now}) == ""
    assert why_present({}) == "the recording does not say when its command began"
    assert why_present({"real_clock": "the CA is new"}) == "the CA is new"
    assert why_present({"started_at": now + 86_400 * 10**9}).startswith("the recording says that it began later")
    assert len(moved) == 1
