"""Decide whether a client may use this proxy worker, and whether it may write into the run that it names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.run_tokens import RunTokens, is_same

type Credentials = tuple[str, str] | None
"""The run and token that a client presented; either may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access rules of one proxy worker."""

    tokens: Sequence[str] = ()
    """The accepted recording tokens. If empty, every client that reaches the worker may use it."""

    run_tokens: RunTokens | None = None
    """The tokens of runs that a Playhead command started. If None, every client may write into every run."""

    only_run: str | None = None
    """The run into which everything is recorded, whatever run a request names."""

    def is_admitted(self, credentials: Credentials) -> bool:
        """Return whether the client may use the worker: it presents a recording token or the token of any run."""
        if not self.tokens:
            return True
        presented = credentials[1] if credentials else ""
        # Compare with every token, so that the time taken reveals nothing about a partial match.
        is_known = sum(is_same(presented, token) for token in self.tokens) > 0
        return is_known or (self.run_tokens is not None and self.run_tokens.is_token(presented))

    def can_write(self, run: str, credentials: Credentials) -> bool:
        """Return whether requests of this client may be recorded into a run."""
        known = self.run_tokens
        if known is None:
            return True
        if self.only_run is not None:
            # Admit a client that cannot send credentials (a JVM): the worker serves only this one command.
            return (
                credentials is None
                or not known.is_claimed(self.only_run)
                or known.is_token_of(self.only_run, credentials[1])
            )
        return not known.is_claimed(run) or (credentials is not None and known.is_token_of(run, credentials[1]))


OPEN_ACCESS: Final = Access()
"""Access for every client that reaches the worker, to every run."""
