"""What each route needs: the scope of its token, and whether its use is noted in the audit log.

This is the only place that decides it: `store.api.guard` asks it before any route runs. For a token without the scope `admin`,
what has no rule here does not exist.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.routing import compile_path

from store.access.api_tokens import Scope
from store.access.grants import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a route needs."""

    scopes: tuple[Scope, ...] = ()
    """One of these is enough. Empty: every valid token may use the route."""

    action: str | None = None
    """What the audit log says about a request; None if it is not noted."""

    notes_bodies_only: bool = False
    """Whether requests are noted only if their token may read bodies: for others the response has none."""

    needs_all_projects: bool = False
    """Whether the response is about all projects."""

    def is_noted(self, grant: Grant) -> bool:
        """Return whether a request is noted in the audit log."""
        return self.action is not None and (grant.reads_bodies or not self.notes_bodies_only)


_METADATA: Final = Rule(scopes=("runs:read",))
_METADATA_OR_BODIES: Final = Rule(scopes=("runs:read",), action="read", notes_bodies_only=True)
_BODIES: Final = Rule(scopes=("bodies:read",), action="read")
_EXPORT: Final = Rule(scopes=("bodies:read",), action="export")
_CHANGE: Final = Rule(scopes=("runs:write",), action="change")
_REPLAY: Final = Rule(scopes=("replay",), action="change")
_ADMIN: Final = Rule(scopes=("admin",))

RULES: Final[Mapping[str, Rule]] = {
    "GET /metrics": Rule(scopes=("runs:read",), needs_all_projects=True),
    "GET /openapi.json": Rule(),
    "GET /docs": Rule(),
    "GET /v1/session": Rule(),
    "DELETE /v1/session": Rule(),
    "POST /v1/session/codes": Rule(),
    "GET /v1/runs": _METADATA,
    "GET /v1/runs/{run}": _METADATA,
    "PUT /v1/runs/{run}": _CHANGE,
    "PATCH /v1/runs/{run}": _CHANGE,
    "DELETE /v1/runs/{run}": Rule(scopes=("admin",), action="delete"),
    "GET /v1/runs/{run}/calls": _METADATA_OR_BODIES,
    "GET /v1/runs/{run}/cost": _METADATA,
    "GET /v1/runs/{run}/gaps": _METADATA,
    "GET /v1/runs/{run}/timeline": _METADATA_OR_BODIES,
    "GET /v1/runs/{run}/effects": _METADATA_OR_BODIES,
    "GET /v1/runs/{run}/effects/sums": _METADATA_OR_BODIES,
    "GET /v1/runs/{run}/conversation": _METADATA_OR_BODIES,
    "POST /v1/runs/{run}/gaps": _CHANGE,
    "GET /v1/runs/{run}/bundle": _EXPORT,
    "GET /v1/runs/{run}/verify": _METADATA,
    "GET /v1/verify": _METADATA,
    "GET /v1/verifications": _METADATA,
    "GET /v1/checkpoint": _METADATA,
    # It has headers of clients.
    "GET /v1/runs/{run}/envelope": _BODIES,
    # A worker that replays the run reads them.
    "GET /v1/runs/{run}/rows": Rule(scopes=("bodies:read", "replay"), action="export"),
    # Only the workers of this `up` are answered.
    "GET /v1/preload": Rule(scopes=("bodies:read", "replay"), action="preload"),
    "GET /v1/runs/{run}/spans": Rule(scopes=("runs:read",), action="export"),
    "GET /v1/runs/{a}/diff/{b}": _BODIES,
    "POST /v1/runs/{run}/forks": _REPLAY,
    "POST /v1/runs/{run}/effects": _CHANGE,
    "POST /v1/runs/{run}/questions": Rule(scopes=("runs:write",)),
    "POST /v1/runs/{run}/answers": _CHANGE,
    "GET /v1/waiting": _METADATA_OR_BODIES,
    "GET /v1/drift": _METADATA,
    "GET /v1/canaries": _METADATA,
    "POST /v1/canaries/{canary}/shots": _CHANGE,
    "DELETE /v1/canaries/{canary}": _CHANGE,
    "GET /v1/stats": _METADATA,
    "GET /v1/facets": _METADATA,
    "GET /v1/marks": _METADATA,
    "GET /v1/search": _BODIES,
    "POST /v1/search/rebuild": Rule(scopes=("admin",), action="change"),
    "GET /v1/events": _METADATA,
    "GET /v1/audit": _ADMIN,
    "GET /v1/calls": _METADATA_OR_BODIES,
    "GET /v1/calls/{call}": _METADATA_OR_BODIES,
    "DELETE /v1/calls/{call}": Rule(scopes=("admin",), action="delete"),
    "POST /v1/erasures": Rule(scopes=("admin",), action="delete"),
    "GET /v1/calls/{call}/explain": _BODIES,
    "GET /v1/calls/{call}/snippet": _EXPORT,
    "GET /v1/exchanges/{exchange}": _BODIES,
    "GET /v1/exchanges/{exchange}/request": _BODIES,
    "GET /v1/exchanges/{exchange}/response": _BODIES,
    "GET /v1/exchanges/{exchange}/chunks": _METADATA,
    "POST /v1/replays": _REPLAY,
    # The report has the edited answers of a replay.
    "GET /v1/replays/{replay}": Rule(scopes=("bodies:read", "replay"), action="read"),
    "GET /v1/replays/{replay}/rows": Rule(scopes=("bodies:read", "replay"), action="export"),
    "POST /v1/replays/{replay}/end": _REPLAY,
    "POST /v1/import": _CHANGE,
    "GET /v1/retention": Rule(scopes=("admin",), needs_all_projects=True),
    "POST /v1/retention/run": Rule(scopes=("admin",), action="delete", needs_all_projects=True),
    "POST /v1/rekey": Rule(scopes=("admin",), action="change"),
}
"""The rule of each route by method and path. A test compares it with the routes."""


class MatchedRoute(NamedTuple):
    """The rule of a request's route, and what its path names."""

    rule: Rule
    subjects: tuple[str, ...]


_PATHS: Final[tuple[tuple[str, re.Pattern[str], Rule], ...]] = tuple(
    (method, compile_path(path)[0], rule)
    for (method, path), rule in ((tuple(name.split(" ")), rule) for name, rule in RULES.items())
)


def match_route(method: str, path: str) -> MatchedRoute | None:
    """Return the rule of a request; None if it has none."""
    for allowed, pattern, rule in _PATHS:
        if method == allowed and (found := pattern.match(path)):
            return MatchedRoute(rule, tuple(dict.fromkeys(found.groupdict().values())))
    return None
