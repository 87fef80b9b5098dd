"""Restore the generators of seeded requests on a CPU after a partial prefill.

vLLM samples for every row, even if a prompt is only partly prefilled, and then rewinds the generator by four, which a CPU's
generator cannot do: any seeded request whose prompt was split into chunks ended the engine (vLLM 0.32.0). This patch
restores the previous state instead, which has the intended effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def rewind(runner: type[Any]) -> None:
    """Patch a model runner so that it restores generators. Safe to call twice."""
    if getattr(runner, "_playhead_rewinds", False):
        return
    sample, bookkeeping = runner._sample, runner._bookkeeping_sync

    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        unfinished = _unfinished(self)
        before = [generator.get_state() for generator in unfinished]
        sampled = sample(self, *args, **kwargs)
        for generator, state in zip(unfinished, before, strict=True):
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _none_to_wind_back(self.input_batch):
            return bookkeeping(self, *args, **kwargs)

    runner._sample, runner._bookkeeping_sync = _sample, _bookkeeping_sync
    runner._playhead_rewinds = True


def _unfinished(runner: Any) -> list[Any]:
    """The generators of requests whose prompt is only partly prefilled."""
    batch = runner.input_batch
    partial = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0]
    return [batch.generators[row] for row in map(int, partial) if row in batch.generators]


@contextmanager
def _none_to_wind_back(batch: Any) -> Iterator[None]:
    generators, batch.generators = batch.generators, {}
    try:
        yield
    finally:
        batch.generators = generators
