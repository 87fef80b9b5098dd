"""Decide whether a client may use this proxy worker, and whether it may write into the run that it names."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from calls.project_runs import DEFAULT_PROJECT, full_run_name, split_run_name
from store.access.api_tokens import ALL_PROJECTS, ApiToken, ApiTokens
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

    api_tokens: ApiTokens | None = None
    """Tokens with a project. Those with the scope `record` may use the worker, and record into their project only."""

    project: str = DEFAULT_PROJECT
    """The project of clients whose token names none."""

    only_run: str | None = None
    """The run into which everything is recorded, whatever run a request names."""

    now: Callable[[], int] = time.time_ns

    def is_admitted(self, credentials: Credentials) -> bool:
        """Return whether the client may use the worker: it presents a recording token or the token of any run."""
        presented = credentials[1] if credentials else ""
        if (found := self._api_token(presented)) is not None:
            return "record" in found.scopes and found.state(self.now()) == "active"
        if not self.tokens:
            return True
        # Compare with every token, so that the time taken reveals nothing about a partial match.
        is_known = sum(is_same(presented, token) for token in self.tokens) > 0
        return is_known or (self.run_tokens is not None and self.run_tokens.run_of(presented) is not None)

    def project_of(self, credentials: Credentials) -> str:
        """Return the project into which requests of this client are recorded: that of its token, if it has one."""
        if credentials is None or not (presented := credentials[1]):
            return self.project
        if (found := self._api_token(presented)) is not None:
            return self.project if found.project == ALL_PROJECTS else found.project
        run = self.run_tokens.run_of(presented) if self.run_tokens is not None else None
        return self.project if run is None else split_run_name(run)[0]

    def full_run_name(self, run: str, credentials: Credentials) -> str:
        """Return the full name of a run that a client names, or of the owner of its connection."""
        return full_run_name(self.project_of(credentials), run)

    def _api_token(self, presented: str) -> ApiToken | None:
        return self.api_tokens.find(presented) if self.api_tokens is not None and presented else None

    def can_write(self, run: str, credentials: Credentials) -> bool:
        """Return whether requests of this client may be recorded into a run, by its full name (`calls.project_runs`)."""
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
