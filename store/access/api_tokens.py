"""API tokens: who may use the REST API and record through the proxy, in which project, for what, and until when.

DIR/keys/tokens.json    what every token allows, with the SHA-256 of the token; tokens themselves are not stored

A token has 256 random bits, so its digest needs no salt. The file is written by `playhead token`, and read again by the store
server and the proxy workers whenever it has changed: a token that is revoked is refused from the next request on.
"""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from store.lock import Lock, LockTaken
from store.private_file import NotPrivate, read_private

type Scope = Literal["runs:read", "bodies:read", "runs:write", "replay", "record", "admin"]

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope.__value__)

ALL_PROJECTS: Final = "*"

MAX_TOKENS: Final = 10_000
MAX_NAME: Final = 100

_PREFIX: Final = "ph_"
"""Begins every token, so that scanners for leaked secrets can find one."""


def has_token_form(text: str) -> bool:
    """Whether a text has the form of the tokens that are kept here, whether or not there is such a token."""
    return text.startswith(_PREFIX)


class TokenFileError(Exception):
    """The file of tokens cannot be used; the message says why and what to do."""


class ApiToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a token allows. Times are nanoseconds since the Unix epoch."""

    id: str
    name: str
    project: str
    """The project, or `*` for all."""

    scopes: tuple[Scope, ...]
    digest: str
    """The SHA-256 of the token, in hexadecimal."""

    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    def state(self, now: int) -> Literal["active", "expired", "revoked"]:
        """Return whether the token is accepted, or why not."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    version: Literal[1] = 1
    tokens: tuple[ApiToken, ...] = ()


class ApiTokens:
    """The tokens in a file, which is read again when it has changed. A file that does not exist has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, ...] | None = None
        self._by_digest: Mapping[str, ApiToken] = {}

    def find(self, token: str) -> ApiToken | None:
        """Return what a token allows, whether or not it is still accepted. Raises TokenFileError."""
        return self.find_digest(token_digest(token)) if has_token_form(token) else None

    def find_digest(self, digest: str) -> ApiToken | None:
        """Return what the token with this digest allows, whether or not it is still accepted. Raises TokenFileError."""
        self._load_if_changed()
        # The digest of a token with 256 random bits reveals nothing by the time of this lookup.
        return self._by_digest.get(digest)

    def list_tokens(self) -> list[ApiToken]:
        """Return all tokens, oldest first. Raises TokenFileError."""
        self._load_if_changed()
        return sorted(self._by_digest.values(), key=lambda one: (one.created_at, one.id))

    def create(
        self, name: str, project: str, scopes: Collection[Scope], now: int, expires_at: int | None = None
    ) -> tuple[str, ApiToken]:
        """Add a token; return it with what it allows. It cannot be read again. Raises TokenFileError."""
        token = _PREFIX + secrets.token_urlsafe(32)
        new = ApiToken(
            id=secrets.token_hex(4),
            name=name,
            project=project,
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            digest=token_digest(token),
            created_at=now,
            expires_at=expires_at,
        )
        with self._lock():
            tokens = self.list_tokens()
            if any(one.name == name and one.revoked_at is None for one in tokens):
                raise TokenFileError(f"there is a token named {name}: revoke it, or choose another name")
            if len(tokens) >= MAX_TOKENS:
                raise TokenFileError(f"{self._path} has {MAX_TOKENS} tokens: remove revoked ones from it")
            self._write([*tokens, new])
        return token, new

    def revoke(self, name: str, now: int) -> ApiToken:
        """Revoke the token with this name or id. Raises TokenFileError if there is none."""
        with self._lock():
            tokens = self.list_tokens()
            active = [one for one in tokens if name in (one.id, one.name) and one.revoked_at is None]
            if not active:
                raise TokenFileError(f"there is no token {name}; `playhead token list` shows them")
            revoked = msgspec.structs.replace(active[0], revoked_at=now)
            self._write([revoked if one.id == revoked.id else one for one in tokens])
        return revoked

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other commands from changing the file."""
        try:
            with Lock(self._path.with_suffix(".lock")).hold():
                yield
        except LockTaken as error:
            raise TokenFileError("another command is changing the tokens: try again") from error

    def _load_if_changed(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._version, self._by_digest = None, {}
            return
        except OSError as error:
            raise TokenFileError(f"{self._path} cannot be read ({error.strerror}); correct its permissions") from error
        # The time of the last change of its owner and mode, too: a file that others may read is refused from then on.
        version = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        if version == self._version:
            return
        try:
            data = read_private(self._path, "the file of tokens", "delete it and create the tokens again")
            content = msgspec.json.decode(data, type=_Content)
        except NotPrivate as error:
            raise TokenFileError(str(error)) from error
        except msgspec.DecodeError as error:
            raise TokenFileError(
                f"{self._path} is invalid: {error}; correct it, or delete it with all tokens"
            ) from error
        self._by_digest = {one.digest: one for one in content.tokens}
        self._version = version

    def _write(self, tokens: Collection[ApiToken]) -> None:
        """Write the file atomically."""
        handle, part = tempfile.mkstemp(dir=self._path.parent, prefix="tokens-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(_Content(tokens=tuple(tokens))), indent=2))
                file.flush()
                os.fsync(file.fileno())
            Path(part).replace(self._path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


def token_digest(token: str) -> str:
    """Return the digest by which a token is found."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
