"""Which effect is named where two runs differ: the one that explains the requests, before one that differs anyway."""

import pytest

from calls.effects.items import Item, encode_items
from calls.events import EffectBatch
from store.effects.comparison import effects_until
from store.effects.first_difference import EffectValues, first_difference
from store.effects.observed import EffectReader

NOON = 1_835_438_400_000_000_000
"""2028-02-29T12:00:00Z."""

DAY = 86_400_000_000_000


def values(*items: Item, began: int = NOON, until: int | None = None) -> EffectValues:
    """What one process got."""
    whole = [{"kind": "process.start", "first": str(began)}, *items]
    found = effects_until(None if until is None else 1, [] if until is None else [until])
    found.add(EffectReader().read(EffectBatch("r", "e", began, "0", 0, 1, encode_items(whole))))
    return found


def clock(ns: int, line: int = 3, happened: int = 1) -> Item:
    return {"kind": "datetime.now", "at": f"a.py:{line}", "first": str(ns), "happened": happened}


def variable(value: str, happened: int = 2) -> Item:
    return {"kind": "os.environ", "at": "a.py:4", "args": {"name": "ZONE"}, "results": [value], "happened": happened}


@pytest.mark.parametrize(
    ("requests", "kind"),
    [
        (("on 2028-02-29", "on 2028-03-01"), "datetime.now"),
        (("in Paris", "in Berlin"), "os.environ"),
        (("", ""), "os.environ"),
    ],
    ids=["clock explains", "variable explains", "no request differs"],
)
def test_the_effect_that_is_in_the_requests_is_named(requests: tuple[str, str], kind: str) -> None:
    one = values(clock(NOON), variable("Paris"))
    other = values(clock(NOON + DAY), variable("Berlin"), began=NOON + DAY)
    found = first_difference(one, other, requests)
    assert found is not None
    assert found.one is not None
    assert (found.one.kind, found.explains) == (kind, requests != ("", ""))
    if kind == "datetime.now":
        assert found.texts == ("2028-02-29T12:00:00.000000Z", "2028-03-01T12:00:00.000000Z")


def test_a_second_reading_explains_although_an_earlier_one_differs_too() -> None:
    one, other = (values(clock(now), clock(now + DAY, line=9, happened=5)) for now in (NOON, NOON + 5 * DAY))
    found = first_difference(one, other, ("2028-03-01", "2028-03-06"))
    assert found is not None
    assert found.one is not None
    assert (found.one.at, found.explains) == ("a.py:9", True)


def test_what_only_one_asked_for_differs_and_what_comes_after_the_call_does_not() -> None:
    assert first_difference(values(variable("x")), values(variable("x")), ("", "")) is None
    found = first_difference(values(variable("x")), values(), ("", ""))
    assert found is not None
    assert (found.other, found.texts[1]) == (None, "nothing: it was not asked for")
    late = values(variable("y", happened=DAY), until=NOON + 1000)
    assert late.total == 0
