"""Decide whether a client may use this proxy worker, and whether it may write into the run that it names."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from calls.project_runs import DEFAULT_PROJECT, full_run_name, split_run_name
from store.access.api_tokens import ALL_PROJECTS, ApiTokens, TokenFileError, has_token_form
from store.run_tokens import RunTokens, is_same

log = logging.getLogger(__name__)

type Credentials = tuple[str, str] | None
"""The run and token that a client presented; either may be empty."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
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
        if self._names_project(presented):
            return self._token_project(presented) is not None
        if not self.tokens:
            return True
        return self._is_recording_token(presented) or (
            self.run_tokens is not None and self.run_tokens.run_of(presented) is not None
        )

    def has_ended_token(self, credentials: Credentials) -> bool:
        """Return whether the client presents a token with a project that is not accepted, or is no longer."""
        presented = credentials[1] if credentials else ""
        return self._names_project(presented) and self._token_project(presented) is None

    def project_of(self, credentials: Credentials) -> str:
        """Return the project into which requests of this client are recorded: that of its token, if it has one.

        `can_write` refuses those of a token that has ended, of which no project is known.
        """
        if credentials is None or not (presented := credentials[1]):
            return self.project
        if self._names_project(presented):
            found = self._token_project(presented)
            return self.project if found in (None, ALL_PROJECTS) else found
        run = self.run_tokens.run_of(presented) if self.run_tokens is not None else None
        return self.project if run is None else split_run_name(run)[0]

    def full_run_name(self, run: str, credentials: Credentials) -> str:
        """Return the full name of a run that a client names, or of the owner of its connection."""
        return full_run_name(self.project_of(credentials), run)

    def _is_recording_token(self, presented: str) -> bool:
        # Compare with every token, so that the time taken reveals nothing about a partial match.
        return sum(is_same(presented, token) for token in self.tokens) > 0

    def _names_project(self, presented: str) -> bool:
        """Return whether this is a token with a project, or was one.

        One that is unknown, because it was removed or its file is damaged, must not be recorded into the project of all others.
        """
        return self.api_tokens is not None and has_token_form(presented) and not self._is_recording_token(presented)

    def _token_project(self, presented: str) -> str | None:
        """Return the project of a token that may record now, or `*`; None if it may not."""
        assert self.api_tokens is not None
        try:
            found = self.api_tokens.find(presented)
        except TokenFileError as error:
            log.warning("clients with tokens of projects are refused: %s", error)
            return None
        is_accepted = found is not None and "record" in found.scopes and found.state(self.now()) == "active"
        return found.project if found is not None and is_accepted else None

    def can_write(self, run: str, credentials: Credentials) -> bool:
        """Return whether requests of this client may be recorded into a run, by its full name (`calls.project_runs`)."""
        presented = credentials[1] if credentials else ""
        # As in `has_ended_token`, but without further calls for nearly every request: its connection may have been admitted before.
        if presented and has_token_form(presented) and self.has_ended_token(credentials):
            return False
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
