"""Which of several tasks or futures was done first, where the program waits for some of them: `asyncio` and `concurrent.futures`.

A replay waits until those are done that were done in the recording, and gives these, also if others are done as well.
"""

import sys

from playhead_effects import tasks
from playhead_effects.values import Unwritable, encode

MOST_WAITED = 300.0
"""Seconds that a replay waits for what was done first in the recording, before it goes on with what is."""

MOST_TEXT = 1 << 20
"""Characters of the names of what was done, which are recorded."""

_BETWEEN = ", "
MISSED = object()


class Place:
    """What is kept of a frame, so that its variables are not."""

    __slots__ = ("f_code", "f_lasti", "f_lineno")

    def __init__(self, code, last=0, line=0):
        self.f_code, self.f_lasti, self.f_lineno = code, last, line or code.co_firstlineno


class OrderedSet(set):
    """A set that is iterated over in the same order in each run: futures have their hash from their address."""

    _order = ()

    def __init__(self, order):
        super().__init__(order)
        self._order = tuple(order)

    def __iter__(self):
        first = [one for one in self._order if one in self]
        return iter(first if len(first) == len(self) else [*first, *(set(super().__iter__()) - set(first))])

    def pop(self):
        if not self:
            return super().pop()
        one = next(iter(self))
        self.remove(one)
        return one


class Wait:
    """One place that waits for some of several futures."""

    def __init__(self, effects, kind, frame, futures):
        self._effects, self._kind, self._place = effects, kind, Place(frame.f_code, frame.f_lasti, frame.f_lineno)
        self.futures = futures
        """By their names."""

        self.cancelled_before = None
        """Those that were cancelled in the recording and did not come as far yet; None if that was not looked up."""

        self._names = {one: name for name, one in futures.items()}
        self._args = {"of": len(futures)}

    def observe(self, done):
        """Record which of them are done: None if the wait was cancelled, [] if it took too long."""
        effects = self._effects
        recorder = effects
        if effects.is_replay:
            if not effects.state.is_fork:
                return
            recorder = effects.state.recording
        names = None
        if done is not None:
            every = done if len(done) < 2 else sorted(done, key=self._places().__getitem__)
            names = _BETWEEN.join(self._names[one] for one in every)
        recorder.value(self._kind, self._place, lambda: names, self._args, "", _encode_names)

    def recorded_done(self):
        """Return which of them were done: None if the wait was cancelled, [] if it took too long, MISSED if it is not known."""
        if not self._effects.is_replay:
            return MISSED
        names = self._effects.value(self._kind, self._place, lambda: MISSED, self._args, "", _encode_names)
        if names is None or names is MISSED:
            return names
        found = names.split(_BETWEEN) if names else []
        unknown = next((name for name in found if name not in self.futures), None)
        if unknown is not None:
            return self.refuse(f"{unknown} was done in the recording, and is not waited for here")
        return [self.futures[name] for name in found]

    def refuse(self, why):
        """Say that the program cannot get what was recorded."""
        self._effects.state.refuse(self._kind, self._place, self._args, why)
        return MISSED

    def refuse_late(self, expected):
        """Say that it did not get done."""
        late = next(name for name, one in self.futures.items() if one in expected and not one.done())
        return self.refuse(f"{late} was done in the recording, and was not after {MOST_WAITED:.0f} s")

    def _places(self):
        return {one: place for place, one in enumerate(self._names)}

    def sets(self, done):
        """Return those that are done, and the others."""
        done = set(done)
        every = self.futures.values()
        return OrderedSet([one for one in every if one in done]), OrderedSet([one for one in every if one not in done])


def _encode_names(names):
    if names is MISSED or (names is not None and len(names) > MOST_TEXT):
        raise Unwritable("order")
    return encode(names)


def name_futures(collection, futures):
    """Return the futures by names that are the same in each run; None if one has none. `collection`: what the program gave."""
    is_ordered = not isinstance(collection, (set, frozenset))
    own = tasks.current() + "/"
    by_name = {}
    for place, one in enumerate(futures):
        name = tasks.future_name(one)
        if name is None and not is_ordered:
            return None
        by_name[f"#{place}" if name is None else name.removeprefix(own)] = one
    return by_name if is_ordered else dict(sorted(by_name.items(), key=_name_order))


def _name_order(item):
    what, _, number = item[0].rpartition("#")
    return (what, int(number)) if what and number.isdigit() else (item[0], 0)


def replace_functions(module, package, **functions):
    """Replace functions of a module, also where its package has them already."""
    for name, function in functions.items():
        real = getattr(module, name)
        function.__doc__, function.__name__, function.__qualname__ = real.__doc__, name, name
        function.__module__ = real.__module__
        for place in (module, sys.modules.get(package)):
            if getattr(place, name, None) is real:
                setattr(place, name, function)
