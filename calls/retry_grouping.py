"""Group the exchanges that are one call: retries of a request, and polls of work that continues.

An exchange is a retry of one with the same key shortly before it if an SDK would have retried: after 408, 409, 429 or 5xx,
or when the connection broke before the answer was complete. Who left an answer themselves and asks again later than an SDK would
has decided to ask again: these are two calls. A poll (`Call.polls`) belongs to the call whose answer left
that work unfinished (`Call.pending`). Exchanges that ran at the same time (hedged requests) are never one call.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from calls.model import Call, Exchange, Outcome, is_answer_broken

RETRY_WITHIN: Final = 90 * 1_000_000_000
"""Nanoseconds. SDKs wait up to a minute before they retry, if the server asks for it."""

RETRY_AFTER_LEAVING: Final = 10 * 1_000_000_000
"""Nanoseconds after the client itself ended an exchange. No server asks for a wait then, and the SDKs of OpenAI and Anthropic wait eight
seconds at most (`MAX_RETRY_DELAY` of openai 3.54 and anthropic 2.12)."""

CLOCK_TOLERANCE: Final = 50 * 1_000_000
"""Nanoseconds. A client may see the end of an exchange, and retry, slightly before the worker records that end."""

_RETRIED_STATUSES: Final = frozenset((408, 409, 429))
_BROKEN_OUTCOMES: Final = frozenset(("client_closed", "server_closed", "timed_out"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The fields of an exchange and its call that decide whether it belongs to the same call as another exchange."""

    id: str
    key: str
    started_at: int
    """Nanoseconds of wall time."""
    ended_at: int | None
    """Nanoseconds of wall time; None if the end was not observed."""
    status: int | None
    outcome: Outcome
    complete: bool
    polls: str | None = None
    pending: str | None = None
    has_broken_answer: bool = False
    """Whether its answer did not reach its end although the client waited for it (`calls.model.is_answer_broken`)."""

    @property
    def has_failed(self) -> bool:
        """Whether an SDK would retry after this exchange."""
        return self._has_failed_by_status or (self.outcome in _BROKEN_OUTCOMES and not self.complete)

    @property
    def retry_within(self) -> int:
        """The nanoseconds in which a retry of it begins."""
        has_left = self.outcome == "client_closed" and not self._has_failed_by_status
        return RETRY_AFTER_LEAVING if has_left else RETRY_WITHIN

    @property
    def _has_failed_by_status(self) -> bool:
        return self.status is not None and (self.status in _RETRIED_STATUSES or self.status >= 500)


def attempt_of(exchange: Exchange, call: Call) -> Attempt:
    """Return the attempt that an exchange is, with the call derived from it."""
    return Attempt(
        id=exchange.id,
        key=call.key,
        started_at=exchange.started_at,
        ended_at=None if exchange.ended_at is None else exchange.started_at + exchange.ended_at,
        status=exchange.response.status if exchange.response else None,
        outcome=exchange.outcome,
        complete=call.complete,
        polls=call.polls,
        pending=call.pending,
        has_broken_answer=is_answer_broken(
            kind=call.kind,
            streamed=call.streamed,
            status=exchange.response.status if exchange.response else None,
            outcome=exchange.outcome,
            complete=call.complete,
            finish_reason=call.finish_reason,
            answer_state=call.answer_state,
        ),
    )


@dataclass(slots=True)
class RetryGroup:
    """One call, and its exchanges in step order."""

    parts: list[Attempt] = field(default_factory=list)
    attempts: int = 1
    """The number of tries. Polls are not counted."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the call's exchanges; the first is the id of the call."""
        return tuple(part.id for part in self.parts)


def group_retries(parts: Iterable[Attempt]) -> list[RetryGroup]:
    """Group the exchanges of one run into calls. Both are in step order."""
    grouping = _Grouping()
    for part in parts:
        grouping.add(part)
    return grouping.calls


class _Grouping:
    """The calls so far, and those that a later exchange may still join."""

    def __init__(self) -> None:
        self.calls: list[RetryGroup] = []
        self._failed: dict[str, list[RetryGroup]] = {}
        self._pending: dict[str, RetryGroup] = {}

    def add(self, part: Attempt) -> None:
        """Add an exchange to the call that it belongs to, or begin a new call."""
        polled = self._polled_call(part)
        call = polled or self._retried_call(part) or self._begin_call()
        call.parts.append(part)
        if part.has_failed and polled is None:
            self._failed.setdefault(part.key, []).append(call)
        if part.pending is not None:
            self._pending[part.pending] = call

    def _begin_call(self) -> RetryGroup:
        self.calls.append(RetryGroup())
        return self.calls[-1]

    def _polled_call(self, part: Attempt) -> RetryGroup | None:
        """Return the call whose work is polled. The work is over when an answer no longer reports it as pending."""
        if part.polls is None or (call := self._pending.get(part.polls)) is None:
            return None
        if part.pending != part.polls and not part.has_failed:
            del self._pending[part.polls]
        return call

    def _retried_call(self, part: Attempt) -> RetryGroup | None:
        """Return the call that is retried: the first one that had failed by then, a short time before."""
        failed = self._failed.pop(part.key, ())
        waiting = [call for call in failed if part.started_at - _end_time(call) <= call.parts[-1].retry_within]
        found = next((call for call in waiting if part.started_at - _end_time(call) >= -CLOCK_TOLERANCE), None)
        if found is not None:
            waiting.remove(found)
            found.attempts += 1
        if waiting:
            self._failed[part.key] = waiting
        return found


def _end_time(call: RetryGroup) -> int:
    last = call.parts[-1]
    return last.started_at if last.ended_at is None else last.ended_at


def merge_calls(calls: Sequence[Call]) -> Call:
    """Merge the calls of the exchanges of one call: the request of the first, the answer of the last."""
    first, last = calls[0], calls[-1]
    # A poll carries no tool results; a retry repeats them all.
    tool_results = first.tool_results if last.polls is not None and first is not last else ()
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
        tool_results=(*tool_results, *last.tool_results),
        polls=first.polls,
    )
