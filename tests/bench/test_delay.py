"""What a call's path consists of is found from notes that a worker made, and drawn."""

from xml.etree import ElementTree

import pytest

from bench.delay import table
from bench.delay_path import STEPS, Note, call_path, plot_path
from bench.wire import MeasurementFailed


def path_of(begin: int, *more: Note) -> tuple[dict[str, int], list[Note]]:
    """A call whose steps take 1 µs each."""
    ends = [(begin + 1000 * (number + 1), step.note) for number, step in enumerate(STEPS)]
    known = {note.removeprefix("call "): at for at, note in ends if note.startswith("call ")}
    call = {"sent": begin, "first": known["end"], "last": known["answered"], **known}
    return call, sorted([*(note for note in ends if not note[1].startswith("call ")), *more])


def test_each_step_lasts_from_the_one_before_it() -> None:
    call, notes = path_of(5000, (5100, "group over"), (5200, "write begins"), (9500, "sync begins"))
    path = call_path([call], notes)
    assert [step["us"] for step in path["steps"]] == [1.0] * (len(STEPS) - 1)
    assert (path["calls"], path["beside_a_sync"]) == (1, 1)


def test_calls_that_meet_are_left_out() -> None:
    (one, notes), (two, more) = path_of(5000), path_of(9000)
    with pytest.raises(MeasurementFailed):
        call_path([one, two], sorted([*notes, *more]))


def test_the_picture_is_well_formed_and_names_each_step() -> None:
    call, notes = path_of(5000)
    path = call_path([call], notes)
    texts = [
        element.text for element in ElementTree.fromstring(plot_path(path)).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {step["step"] for step in path["steps"]} <= set(texts)


def test_a_table_says_what_each_adds_to_the_same_turn() -> None:
    turns = {"direct": [{"end p50": 1.0}], "nginx": [{"end p50": 1.5}], "Playhead": [{"end p50": 2.0}]}
    *_, row = table({("https", "json", 0): turns})
    assert row == (
        "| https, json after 0 ms, end p50 | 1.00 | 0.50 [0.50-0.50] | 1.00 [1.00-1.00] | 0.50 [0.50-0.50] | 2.0 |"
    )
