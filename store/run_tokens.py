"""Run tokens: who may write into a run that one of our commands has begun.

`record`, `fork` and `resume` claim the run that they write, and give their command the token of that run. From then on a
proxy worker takes requests for this run only with its token. A run that nobody has claimed is open to every client.

A token is the run's name and its HMAC under a key of the data directory, so nothing has to be stored to check one.

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
_BELONGING: Final = re.compile(r":(g[0-9]+|live-[0-9a-f]+)\Z")
"""How the runs are named that mode `auto` and `replay --on-miss record` make of one."""


@dataclass(frozen=True, slots=True)
class RunTokens:
    """The run tokens and the claims of one data directory."""

    key: bytes = field(repr=False)
    place: Path

    def token(self, run: str) -> str:
        """The run's token: it holds no colon and nothing that a URL escapes."""
        return _token(self.key, run)

    def claim(self, run: str) -> str:
        """Keep the run from clients without its token, which is returned."""
        self._file(run).touch(0o600)
        return self.token(run)

    def release(self, run: str) -> None:
        """Open the run to every client."""
        self._file(run).unlink(missing_ok=True)

    def is_claimed(self, run: str) -> bool:
        """Whether the run takes requests only with its token."""
        return is_claimed(self.place, run)

    def is_token_of(self, run: str, presented: str) -> bool:
        """Whether this is the run's token."""
        return any(is_same(presented, self.token(name)) for name in _owners(run))

    def is_token(self, presented: str) -> bool:
        """Whether this is the token of any run."""
        encoded, _, proof = presented.partition(".")
        try:
            run = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except ValueError:
            return False
        return is_same(proof, _proof(self.key, run))

    def _file(self, run: str) -> Path:
        # A run's name is a sound file name, but for `.` and `..`.
        return self.place / f"{run}{_CLAIM}"


def is_claimed(place: Path, run: str) -> bool:
    """Whether the run has a claim in this directory."""
    # Asked of the file system each time: a claim holds from the moment on in which it is made.
    return any(os.access(f"{place}/{name}{_CLAIM}", os.F_OK) for name in _owners(run))


def _owners(run: str) -> tuple[str, ...]:
    """The run, and the one that it belongs to where it is a generation of that or what goes live beside it."""
    owner = _BELONGING.sub("", run) if ":" in run else run
    return (run,) if owner == run else (run, owner)


def is_same(presented: str, known: str) -> bool:
    """Whether two secrets are equal, without telling by the time how much of them is."""
    return hmac.compare_digest(presented.encode("utf-8", "replace"), known.encode())


@lru_cache(1024)
def _token(key: bytes, run: str) -> str:
    # A proxy worker needs that of the same few runs for each of their requests.
    return f"{_encoded(run.encode())}.{_proof(key, run.encode())}"


def _proof(key: bytes, run: bytes) -> str:
    return _encoded(hmac.digest(key, _PURPOSE + run, hashlib.sha256))


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
