"""Whether a client may use this proxy worker, and whether it may write into the run that it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.run_tokens import RunTokens, is_same

type Given = tuple[str, str] | None
"""Run and token, as the client presented them; either may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What clients of one proxy worker may do."""

    tokens: Sequence[str] = ()
    """The recording tokens that are accepted. None: whoever reaches the worker may use it."""

    run_tokens: RunTokens | None = None
    """Who may write into runs that a command of ours began. None: everybody."""

    only_run: str | None = None
    """The run in which everything is recorded, whatever run a request names."""

    def admits(self, given: Given) -> bool:
        """Whether the client may use the worker at all: by a recording token, or by the token of any run."""
        if not self.tokens:
            return True
        presented = given[1] if given else ""
        # All are compared, so that the time tells nothing about which one came close.
        is_known = sum(is_same(presented, token) for token in self.tokens) > 0
        return is_known or (self.run_tokens is not None and self.run_tokens.is_token(presented))

    def may_write(self, run: str, given: Given) -> bool:
        """Whether what this client asks for may become part of a run."""
        known = self.run_tokens
        if known is None:
            return True
        if self.only_run is not None:
            # A client that can send no credentials (a JVM) is let in: the worker serves this one command.
            return given is None or not known.is_claimed(self.only_run) or known.is_token_of(self.only_run, given[1])
        return not known.is_claimed(run) or (given is not None and known.is_token_of(run, given[1]))


EVERYBODY: Final = Access()
"""Whoever reaches the worker may use it, and write into any run."""
