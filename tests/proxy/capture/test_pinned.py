"""What a command has as it was recorded: variables from a label of the run, and the clock through libfaketime."""

import time

import pytest

from proxy.capture import pinned
from replay.pinned import MOST_TEXT, format_environment, parse_environment


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


def test_the_clock_is_moved_by_as_much_as_the_recording_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "FAKETIME", (__file__,))
    started_at = time.time_ns() - 86_400 * 10**9
    found, why = pinned.clock_variables({"started_at": started_at}, {"LD_PRELOAD": "/own.so"})
    assert (found["LD_PRELOAD"], why) == (f"{__file__}:/own.so", "")
    assert -86_460 < float(found["FAKETIME"]) <= -86_400
    assert pinned.clock_variables({"started_at": time.time_ns()}, {}) == ({}, "")
    assert pinned.clock_variables({}, {}) == ({}, "the recording does not say when its command began")
    assert pinned.clock_variables({"real_clock": "the CA is new"}, {}) == ({}, "the CA is new")
    monkeypatch.setattr(pinned, "FAKETIME", ("/nowhere/*",))
    assert pinned.clock_variables({"started_at": started_at}, {})[1].startswith("libfaketime is not installed")
