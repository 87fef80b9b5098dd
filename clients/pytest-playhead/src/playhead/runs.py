"""A run: its calls, and what they came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playhead.calls import Calls, calls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Unknown(AssertionError):
    """A sum that cannot be told, because a part of it is not known. It holds for no budget."""


@dataclass(frozen=True)
class Tokens:
    """What the models of some calls counted."""

    calls: Calls

    @property
    def input(self) -> int:
        """Tokens that were read, those from a cache among them. Raises Unknown."""
        return self._sum("input_tokens")

    @property
    def output(self) -> int:
        """Tokens that were written, reasoning among them. Raises Unknown."""
        return self._sum("output_tokens")

    @property
    def cached(self) -> int:
        """Of those read, the ones from a cache, as far as it is told."""
        return sum(call.cached_tokens or 0 for call in self.calls)

    @property
    def reasoning(self) -> int:
        """Of those written, the ones of reasoning, as far as it is told."""
        return sum(call.reasoning_tokens or 0 for call in self.calls)

    def _sum(self, name: str) -> int:
        models = self.calls.of("model")
        silent = [call for call in models if getattr(call, name) is None]
        if silent:
            raise Unknown(f"{len(silent)} of {len(models)} model calls do not tell their {name}: {silent!r}")
        return sum(getattr(call, name) for call in models)


class Run:
    """One agent's work from start to end. What it holds is asked for anew each time."""

    def __init__(self, id: str, ask: Callable[[], Sequence[Mapping[str, Any]]]) -> None:  # noqa: A002 - the API's word
        self.id = id
        self._ask = ask

    @property
    def calls(self) -> Calls:
        """Its calls, in their order."""
        return calls(self._ask())

    @property
    def tokens(self) -> Tokens:
        """What its models counted."""
        return Tokens(self.calls)

    @property
    def cost_usd(self) -> float:
        """What its model calls cost, at the prices of their day. Raises Unknown where a price is not known."""
        models = self.calls.of("model")
        unpriced = [call for call in models if call.cost_usd is None]
        if unpriced:
            raise Unknown(f"what {len(unpriced)} of {len(models)} model calls cost is not known: {unpriced!r}")
        return sum(call.cost_usd or 0.0 for call in models)

    def __repr__(self) -> str:
        return f"<run {self.id}>"
