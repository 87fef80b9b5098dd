"""Group the exchanges that are one call: retries of a request, and polls of work that continues.

A try is repeated (same key, soon after) where an SDK would: after 408, 409, 429 or 5xx, or when the connection broke
before the answer was whole. A look (`Call.polls`) belongs to the call whose answer left that work unfinished (`Call.pending`). What
ran at the same time is never one call: that is a hedge, and stays two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from calls.model import Call, Outcome

RETRY_WITHIN: Final = 90 * 1_000_000_000
"""Nanoseconds. SDKs wait at most a minute before they try again, if a server asks for so much."""

SEEN_LATE: Final = 50 * 1_000_000
"""Nanoseconds. A client may know of an end, and try again, a moment before the worker has written it down."""

_TRANSIENT: Final = frozenset((408, 409, 429))
_BROKEN: Final = frozenset(("client_closed", "server_closed", "timed_out"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What must be known of an exchange and its call to tell whether it goes on with another."""

    id: str
    key: str
    started_at: int
    """Nanoseconds of wall time."""
    ended_at: int | None
    """Likewise; None where nobody saw its end."""
    status: int | None
    outcome: Outcome
    complete: bool
    polls: str | None = None
    pending: str | None = None

    @property
    def failed(self) -> bool:
        """Whether an SDK would try again."""
        if self.status is not None and (self.status in _TRANSIENT or self.status >= 500):
            return True
        return self.outcome in _BROKEN and not self.complete


@dataclass(slots=True)
class RetryGroup:
    """One call, and its exchanges in step order."""

    parts: list[Part] = field(default_factory=list)
    attempts: int = 1
    """How often it was tried. Looks at its work are no tries."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of its exchanges; the first is the call's own."""
        return tuple(part.id for part in self.parts)


def fold(parts: Iterable[Part]) -> list[RetryGroup]:
    """The calls that these exchanges of one run are. The exchanges come in step order, and so do the calls."""
    folding = _Folding()
    for part in parts:
        folding.take(part)
    return folding.calls


class _Folding:
    """What is still open while the exchanges of a run go by."""

    def __init__(self) -> None:
        self.calls: list[RetryGroup] = []
        self._failed: dict[str, list[RetryGroup]] = {}
        self._pending: dict[str, RetryGroup] = {}

    def take(self, part: Part) -> None:
        """Join the exchange to the call that it goes on with, or begin one with it."""
        looked_at = self._looked_at(part)
        call = looked_at or self._tried_again(part) or self._begun()
        call.parts.append(part)
        if part.failed and looked_at is None:
            self._failed.setdefault(part.key, []).append(call)
        if part.pending is not None:
            self._pending[part.pending] = call

    def _begun(self) -> RetryGroup:
        self.calls.append(RetryGroup())
        return self.calls[-1]

    def _looked_at(self, part: Part) -> RetryGroup | None:
        """The call whose work this is a look at. The work is over when an answer does not say that it goes on."""
        if part.polls is None or (call := self._pending.get(part.polls)) is None:
            return None
        if part.pending != part.polls and not part.failed:
            del self._pending[part.polls]
        return call

    def _tried_again(self, part: Part) -> RetryGroup | None:
        """The call of which this is the next try: the first that had failed by then, not long before."""
        waiting = [call for call in self._failed.pop(part.key, ()) if part.started_at - _end(call) <= RETRY_WITHIN]
        found = next((call for call in waiting if part.started_at - _end(call) >= -SEEN_LATE), None)
        if found is not None:
            waiting.remove(found)
            found.attempts += 1
        if waiting:
            self._failed[part.key] = waiting
        return found


def _end(call: RetryGroup) -> int:
    last = call.parts[-1]
    return last.started_at if last.ended_at is None else last.ended_at


def joined(calls: Sequence[Call]) -> Call:
    """One call of those of its exchanges: asked as the first was, answered as the last was."""
    first, last = calls[0], calls[-1]
    # A look brings no tool's results itself; a try brings them all again.
    brought = first.tool_results if last.polls is not None and first is not last else ()
    return replace(
        last,
        exchanges=tuple(name for call in calls for name in call.exchanges),
        kind=first.kind,
        provider=first.provider,
        dialect=first.dialect,
        operation=first.operation,
        key=first.key,
        profile=first.profile,
        warnings=first.warnings,
        model_requested=first.model_requested,
        params=first.params,
        request=first.request,
        tool_results=(*brought, *last.tool_results),
        polls=first.polls,
    )
