"""Represent a run: its calls, tokens and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playhead.calls import Calls, read_calls
from playhead.checks import require_passed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence


class Unknown(AssertionError):
    """A sum of which a part is not known. It fails any budget."""


@dataclass(frozen=True)
class Tokens:
    """The token counts of some calls."""

    calls: Calls

    @property
    def input(self) -> int:
        """Input tokens, including those from a cache. Raises Unknown."""
        return self._sum("input_tokens")

    @property
    def output(self) -> int:
        """Output tokens, including reasoning. Raises Unknown."""
        return self._sum("output_tokens")

    @property
    def cached(self) -> int:
        """Input tokens from a cache, as far as the answers state them."""
        return sum(call.cached_tokens or 0 for call in self.calls)

    @property
    def reasoning(self) -> int:
        """Output tokens of reasoning, as far as the answers state them."""
        return sum(call.reasoning_tokens or 0 for call in self.calls)

    def _sum(self, name: str) -> int:
        models = self.calls.of("model")
        missing = [call for call in models if getattr(call, name) is None]
        if missing:
            raise Unknown(f"{len(missing)} of {len(models)} model calls do not state their {name}: {missing!r}")
        return sum(getattr(call, name) for call in models)


class Run:
    """One run of an agent. Each access fetches its current content."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the name in the public API
        fetch: Callable[[], Sequence[Mapping[str, Any]]],
        check: Callable[[str | os.PathLike[str]], Mapping[str, Any]] | None = None,
        envelope: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.id = id
        self._fetch = fetch
        self._check = check
        self._envelope = envelope

    @property
    def calls(self) -> Calls:
        """The calls, in order."""
        return read_calls(self._fetch())

    @property
    def tokens(self) -> Tokens:
        """The token counts of all calls."""
        return Tokens(self.calls)

    @property
    def cost_usd(self) -> float:
        """The cost of all model calls, at the prices of their day. Raises Unknown if a price is not known."""
        models = self.calls.of("model")
        unpriced = [call for call in models if call.cost_usd is None]
        if unpriced:
            raise Unknown(f"the cost of {len(unpriced)} of {len(models)} model calls is not known: {unpriced!r}")
        return sum(call.cost_usd or 0.0 for call in models)

    def check(self, spec: str | os.PathLike[str] = "checks.toml") -> None:
        """Raise CheckFailed unless the run satisfies every rule of a spec, as `playhead check` does.

        A rule that cannot be decided, such as a budget where a price is not known, fails too.
        """
        if self._check is None:
            raise RuntimeError(
                f"run {self.id} is a part of a test: check the whole test, with playhead_run.check(spec)"
            )
        require_passed(self._check(spec))

    def envelope(self) -> Mapping[str, Any]:
        """What was captured of what moves between runs: models, sampling, prompts, retrieval, tools, times, code and environment.

        Each has the values that were seen with their steps, and in `missing` a sentence for whatever was not captured. Raises Unknown for a
        recording that has none: it was exported without its proof, by an earlier version, or by a test suite.
        """
        found = None if self._envelope is None else self._envelope()
        if found is None:
            raise Unknown(f"the recording of run {self.id} has no envelope: export it with `playhead export`")
        return found

    def __repr__(self) -> str:
        return f"<run {self.id}>"
