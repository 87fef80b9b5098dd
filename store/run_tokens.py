"""Run tokens: the right to write into a run that a Playhead command has created.

`record`, `fork` and `resume` claim the run that they write, and give their command the token of that run. From then on a
proxy worker accepts requests for this run only with its token. A run without a claim is open to every client. Here, runs have their full names (`calls.project_runs`).

A token is the run's id and its HMAC under a key of the data directory, so that nothing has to be stored to check one.

DIR/claims/RUN.claim    an empty file: the run is claimed
"""

import hashlib
import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

_PURPOSE: Final = b"playhead run token/1\0"
_CLAIM: Final = ".claim"
_DERIVED_RUN: Final = re.compile(r":(g[0-9]+|live-[0-9a-f]+)\Z")
"""The suffix of the runs that mode `auto` and `replay --on-miss record` create from another run."""


@dataclass(frozen=True, slots=True)
class RunTokens:
    """The run tokens and the claims of one data directory."""

    key: bytes = field(repr=False)
    directory: Path
    _directory_text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_directory_text", str(self.directory))

    def token(self, run: str) -> str:
        """Return the run's token. It contains no colon and no character that a URL escapes."""
        return _token(self.key, run)

    def claim(self, run: str) -> str:
        """Close the run to clients without its token, and return the token."""
        self._file(run).touch(0o600)
        return self.token(run)

    def release(self, run: str) -> None:
        """Open the run to every client."""
        self._file(run).unlink(missing_ok=True)

    def is_claimed(self, run: str) -> bool:
        """Whether requests for the run need its token."""
        return _has_claim(_claim_paths(self._directory_text, run))

    def is_token_of(self, run: str, presented: str) -> bool:
        """Whether this is the run's token."""
        return any(is_same(presented, self.token(name)) for name in _run_and_owner(run))

    def run_of(self, presented: str) -> str | None:
        """Return the run whose token this is; None if it is no run's."""
        return _run_of(self.key, presented)

    def _file(self, run: str) -> Path:
        return self.directory / _claim_file(run)


def is_claimed(directory: Path, run: str) -> bool:
    """Whether the run has a claim in this directory."""
    return _has_claim(_claim_paths(str(directory), run))


def _has_claim(paths: tuple[str, ...]) -> bool:
    # Not cached: a claim holds from the moment in which it is made.
    for path in paths:  # noqa: SIM110 - `any` would make a generator for each request
        if os.access(path, os.F_OK):
            return True
    return False


@lru_cache(1024)
def _claim_paths(directory: str, run: str) -> tuple[str, ...]:
    # Cached because a proxy worker looks for the claims of the same few runs for each request.
    return tuple(f"{directory}/{_claim_file(name)}" for name in _run_and_owner(run))


def _claim_file(run: str) -> str:
    # A run's id is a safe file name, except for `.` and `..`, and contains no @.
    return f"{run.replace('/', '@')}{_CLAIM}"


def _run_and_owner(run: str) -> tuple[str, ...]:
    """Return the run, and the run it was created from, if it is a generation of that or its live recording."""
    owner = _DERIVED_RUN.sub("", run) if ":" in run else run
    return (run,) if owner == run else (run, owner)


def is_same(presented: str, secret: str) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(presented.encode("utf-8", "replace"), secret.encode())


@lru_cache(1024)
def _token(key: bytes, run: str) -> str:
    # Cached because a proxy worker needs the tokens of the same few runs for each request.
    return f"{_base64url(run.encode())}.{_proof(key, run.encode())}"


@lru_cache(1024)
def _run_of(key: bytes, presented: str) -> str | None:
    # Cached for the same reason.
    encoded, _, proof = presented.partition(".")
    try:
        run = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return run.decode() if is_same(proof, _proof(key, run)) else None
    except ValueError:
        return None


def _proof(key: bytes, run: bytes) -> str:
    return _base64url(hmac.digest(key, _PURPOSE + run, hashlib.sha256))


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
