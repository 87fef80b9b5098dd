"""A generator advances only for samples that are kept, wherever a prompt is split."""

from types import SimpleNamespace
from typing import Any

import pytest
from playhead_inference.sampling import rewind


class Generator:
    """A generator that counts draws. Like a CPU's, it has no offset to rewind."""

    def __init__(self) -> None:
        self.drawn = 0

    def get_state(self) -> int:
        return self.drawn

    def set_state(self, state: int) -> None:
        self.drawn = state


class Mask(list[bool]):
    """A fake array with the few methods that are used."""

    def __getitem__(self, part: Any) -> Any:
        return Mask(super().__getitem__(part))

    def nonzero(self) -> tuple[list[int]]:
        return ([at for at, discarded in enumerate(self) if discarded],)


def runner(*discarded: bool) -> Any:
    """A fake of vLLM's model runner: every seeded row draws, and partial ones are rewound by offset."""

    class Runner:
        def __init__(self) -> None:
            generators = {row: Generator() for row in range(len(discarded))}
            self.input_batch = SimpleNamespace(num_reqs=len(discarded), generators=generators)
            self.discard_request_mask = SimpleNamespace(np=Mask([*discarded, True, True]))

        def _sample(self) -> str:
            for generator in self.input_batch.generators.values():
                generator.drawn += 1
            return "sampled"

        def _bookkeeping_sync(self) -> None:
            for row, partial in enumerate(discarded):
                if partial and row in self.input_batch.generators:
                    raise RuntimeError("CPU Generator does not use offset")

    rewind(Runner)
    rewind(Runner)
    return Runner()


def test_a_partial_prefill_draws_nothing_and_its_neighbour_draws_once() -> None:
    found = runner(True, False, True)
    assert found._sample() == "sampled"
    found._bookkeeping_sync()
    assert [generator.drawn for generator in found.input_batch.generators.values()] == [0, 1, 0]


def test_generators_are_back_also_where_the_books_fail() -> None:
    found = runner(True)
    found.input_batch.generators[5] = Generator()
    type(found)._bookkeeping_sync = _failing
    type(found)._playhead_rewinds = False
    rewind(type(found))
    with pytest.raises(ValueError, match="books"):
        found._bookkeeping_sync()
    assert set(found.input_batch.generators) == {0, 5}


def _failing(_: Any) -> None:
    raise ValueError("books")
