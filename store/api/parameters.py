"""Read and check the parameters of a request before anything is looked up: names, filters, pages."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant

from store.api.deps import TheDesk
from store.api.problems import Problem
from store.api.spilled_answers import PAUSE, SETTLED
from store.query.call_summaries import MEMBERS, SUMMARY, Fields
from store.query.filters import BadCursor, Cursor, Filters

RUN_ID = r"^(?:[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}|\.[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,126}|\.\.[A-Za-z0-9._:-]{1,126})$"
"""As `calls.request_identifiers.RUN`, in the words of an engine that does not look ahead: neither `.` nor `..`, which no URL can hold."""

SETTLE = 10.0
"""Seconds that `settled=true` waits at most."""

# Postgres has no U+0000 in its text.
_TEXT = r"^[^\x00]*$"
# A plus sign that was not escaped arrives as a space.
_TIME = r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+ -]\d\d:\d\d)$"
_STATUS = r"^[1-9]([0-9]{2}|xx)$"
_LAST = (1 << 63) - 1
"""Postgres counts no further: the year 2262."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

type RunId = Annotated[str, Path(pattern=RUN_ID, description="1 to 128 of the characters A-Z a-z 0-9 . _ : -")]
type Limit = Annotated[int, Query(ge=1, le=500, description="how many items at most")]
type Next = Annotated[str | None, Query(max_length=500, pattern=_TEXT, description="`next` of the page before")]
type Text = Annotated[str | None, Query(min_length=1, max_length=500, pattern=_TEXT)]
type Time = Annotated[str | None, Query(max_length=100, pattern=_TEXT, description="RFC 3339 with its offset")]
type Labels = Annotated[list[str], Query(description="NAME=VALUE, or NAME for any value; may be repeated")]
type Incomplete = Annotated[
    bool | None, Query(description="calls without their answer's end; of runs: `complete` is false")
]
type Status = Annotated[str | None, Query(pattern=_STATUS, description="429, or 4xx")]


def _at(cursor: Next = None) -> str | None:
    """Raises `BadCursor`, also where Postgres could not count so far or write so."""
    place = None if cursor is None else Cursor.parse(cursor)
    if place is not None and ("\0" in place.id or not 0 <= place.started_at <= _LAST):
        raise BadCursor("the cursor is not one of this list; begin again without one")
    return cursor


type At = Annotated[str | None, Depends(_at)]


def _filters(
    since: Time = None,
    until: Time = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies it
    model: Text = None,
    provider: Text = None,
    tool: Text = None,
    host: Text = None,
    status: Status = None,
    incomplete: Incomplete = None,
    q: Text = None,
) -> Filters:
    return Filters(
        since=nanoseconds("since", since),
        until=nanoseconds("until", until),
        labels=_labels(label),
        model=model,
        provider=provider,
        tool=tool,
        host=host,
        status=_statuses(status),
        incomplete=incomplete,
        q=q,
    )


def _fields(
    fields: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="members of a call, with commas between them, or * for all; without it each item is a summary",
        ),
    ] = None,
) -> Fields:
    """Raises a 422 for a name that no call has."""
    if fields is None:
        return SUMMARY
    names = frozenset(name.strip() for name in fields.split(",")) - {""}
    if "*" in names:
        return None
    if strange := sorted(names - MEMBERS):
        known = ", ".join(sorted(MEMBERS))
        raise Problem(422, "unknown_field", f"fields={strange[0][:80]}: no call has such a member; it has {known}")
    return names


type TheFields = Annotated[Fields, Depends(_fields)]

type TheFilters = Annotated[Filters, Depends(_filters)]


@dataclass(frozen=True, slots=True)
class SettledParameter:
    """Whether all that was acknowledged before the request is in; None when nobody asked for that."""

    told: dict[str, bool]
    """What the answer says about it."""


async def settle(desk: TheDesk, request: Request, settled: bool = False) -> SettledParameter:
    return await _settled(desk, request, reports=False) if settled else SettledParameter({})


async def _settled(desk: TheDesk, request: Request, *, reports: bool) -> SettledParameter:
    """Wait, and leave the turn to others meanwhile (`store.api.spilled_answers`). A helper process is told what came of it."""
    async with request.scope.get(PAUSE, contextlib.nullcontext)():
        is_settled = await desk.store_server.settled(SETTLE, reports=reports)
    request.scope[SETTLED] = is_settled
    return SettledParameter({"settled": is_settled})


type WhenSettled = Annotated[SettledParameter, Depends(settle)]


async def _told(desk: TheDesk, request: Request, settled: bool = False) -> SettledParameter:
    return await _settled(desk, request, reports=True) if settled else SettledParameter({})


type WhenTold = Annotated[SettledParameter, Depends(_told)]
"""The same, where a replay's report is asked for."""


def nanoseconds(name: str, text: str | None) -> int | None:
    """A time since the Unix epoch. Raises a 422."""
    if text is None:
        return None
    try:
        if not re.fullmatch(_TIME, text):
            raise ValueError(text)
        time = datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC)
    except (ValueError, OverflowError):
        detail = f"{name}={text} is no time; write a day and time with its offset, such as 2026-11-21T18:30:00Z"
        raise Problem(422, "invalid_request", detail) from None
    return max(0, min((time - _EPOCH) // timedelta(microseconds=1) * 1000, _LAST))


def understood(request: Request) -> None:
    """The dependency of every route: refuse what no route of ours understands. A misspelt filter would filter nothing."""
    allowed = set(_query(request.scope["route"].dependant))
    if strange := sorted(set(request.query_params) - allowed):
        what = f"takes {', '.join(sorted(allowed))}" if allowed else "takes none"
        detail = f"{request.url.path} knows no query parameter {strange[0][:80]!r}; it {what}"
        raise Problem(400, "unknown_parameter", detail, known=sorted(allowed))


def _query(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _query(each)


def _labels(given: list[str]) -> dict[str, str | None]:
    for text in given:
        if not re.fullmatch(_TEXT, text) or text.startswith("="):
            raise Problem(422, "invalid_request", f"label={text!r} is neither NAME=VALUE nor NAME")
    pairs = (text.partition("=") for text in given)
    return {name: value if equals else None for name, equals, value in pairs}


def _statuses(status: str | None) -> range | None:
    if status is None:
        return None
    first = int(status.replace("xx", "00"))
    return range(first, first + (100 if "x" in status else 1))
