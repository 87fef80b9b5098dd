"""What one request of the REST API may do."""

from collections.abc import Collection
from typing import Final

import msgspec

from calls.project_runs import DEFAULT_PROJECT
from store.access.api_tokens import ALL_PROJECTS, SCOPES, ApiToken, Scope

GRANT: Final = "playhead.grant"
"""The key of a request's grant in its ASGI scope."""

STILL_GRANTED: Final = "playhead.still_granted"
"""The key of a function in the ASGI scope that returns whether the request would be granted the same now."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may do, and the project that it asks about."""

    token: str | None = None
    """The name of its token; None for a request that needs none."""

    scopes: tuple[Scope, ...]
    allowed_project: str
    """The only project that it may ask about, or `*` for all."""

    project: str = DEFAULT_PROJECT
    """The project that it asks about."""

    def allows(self, scope: Scope) -> bool:
        """Return whether the request has this scope. `admin` includes all others."""
        return scope in self.scopes or "admin" in self.scopes

    def allows_any(self, scopes: Collection[Scope]) -> bool:
        """Return whether the request has one of these scopes."""
        return any(map(self.allows, scopes))

    @property
    def reads_bodies(self) -> bool:
        """Whether the response may have prompts, answers and headers."""
        return self.allows("bodies:read")

    @property
    def covers_all_projects(self) -> bool:
        """Whether the request may ask about every project."""
        return self.allowed_project == ALL_PROJECTS

    def for_project(self, project: str | None) -> "Grant | None":
        """Return the grant for a request that names a project, or none; None where it may not ask about that project."""
        own = DEFAULT_PROJECT if self.covers_all_projects else self.allowed_project
        if project not in (None, own) and not self.covers_all_projects:
            return None
        return msgspec.structs.replace(self, project=project or own)


def full_grant(token: str | None) -> Grant:
    """Return the grant that allows everything."""
    return Grant(token=token, scopes=SCOPES, allowed_project=ALL_PROJECTS)


def token_grant(token: ApiToken) -> Grant:
    """Return what a token allows."""
    return Grant(token=token.name, scopes=token.scopes, allowed_project=token.project)


FULL_GRANT: Final = full_grant(None)
"""The grant of a request that needs no token."""
