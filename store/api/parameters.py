"""Read and check the parameters of a request before anything is looked up: names, filters, pages.

What FastAPI calls here is `async` also where it awaits nothing: it calls other functions in threads, one after the other, and to
switch threads takes longer than any of these.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final, Literal, get_origin

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import StringConstraints

from calls.project_runs import PROJECT_NAME
from store.api.content import require_bodies, require_readable_fields
from store.api.deps import TheDeps
from store.api.problems import Problem
from store.api.spilled_answers import SETTLED, YIELD_TURN
from store.feed.events import EventFilters, EventName
from store.page.addresses import is_page_path
from store.query.call_summaries import MEMBERS, SUMMARY, Fields
from store.query.filters import Filters
from store.query.pages import LAST_TIME, NEWEST_FIRST, STEP_ORDER, Cursor, Sort, SortName
from store.query.runs import RUN_MEMBERS
from store.search.pages import SearchWindow

RUN_ID_PATTERN = (
    r"^(?:[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}|\.[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,126}|\.\.[A-Za-z0-9._:-]{1,126})$"
)
"""As `calls.request_identifiers.RUN_ID`, without lookahead, which pydantic's engine lacks: all but `.` and `..`, which no URL can hold."""

SETTLE_TIMEOUT = 10.0
"""Seconds that `settled=true` waits at most."""

# Postgres has no U+0000 in its text.
_TEXT = r"^[^\x00]*$"
# A plus sign that was not escaped arrives as a space.
_TIME = r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+ -]\d\d:\d\d)$"
_STATUS = r"^[1-5]([0-9]{2}|xx)$"
_KEY = r"^sha256:[0-9a-f]{64}$"
MOST_VALUES = 50
"""The number of values of one filter."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

type RunId = Annotated[str, Path(pattern=RUN_ID_PATTERN, description="1 to 128 of the characters A-Z a-z 0-9 . _ : -")]
type Limit = Annotated[int, Query(ge=1, le=500, description="how many items at most")]
type Next = Annotated[str | None, Query(max_length=500, pattern=_TEXT, description="`next` of the page before")]
type Text = Annotated[
    str | None, Query(min_length=1, max_length=500, pattern=_TEXT, description="as it was requested or returned")
]
type Words = Annotated[
    str | None,
    Query(min_length=1, max_length=500, pattern=_TEXT, description="words to search for"),
]
type Settled = Annotated[
    bool, Query(description="wait, up to 10 s, until everything acknowledged before the request is stored")
]
type ProjectName = Annotated[
    str | None,
    Query(
        pattern=f"^{PROJECT_NAME.pattern}$",
        description="the project to ask about; by default that of the token, or `default` if the token is for all projects",
    ),
]
type CallId = Annotated[str, Path(description="the id of a call, a uuidv7")]
type ExchangeId = Annotated[str, Path(description="the id of an exchange, a uuidv7")]
type Value = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_TEXT)]
type Values = Annotated[
    list[Value], Query(max_length=MOST_VALUES, description="may be repeated: one of the values fits")
]
type Time = Annotated[str | None, Query(max_length=100, pattern=_TEXT, description="RFC 3339 with its offset")]
type Labels = Annotated[
    list[str],
    Query(
        max_length=MOST_VALUES,
        description="NAME=VALUE, or NAME for any value; !NAME=VALUE or !NAME for runs without it; may be repeated: all must fit",
    ),
]
type Incomplete = Annotated[
    bool | None, Query(description="calls whose answer did not end; runs whose `complete` is false")
]
type Statuses = Annotated[
    list[Annotated[str, StringConstraints(pattern=_STATUS)]],
    Query(
        max_length=MOST_VALUES,
        description="100 to 599, such as 429, or a class from 1xx to 5xx; may be repeated: one of the values fits",
    ),
]
type Kinds = Annotated[
    list[Literal["model", "tool", "retrieval", "other"]],
    Query(max_length=4, description="may be repeated: one of the values fits"),
]
type EventTypes = Annotated[
    list[EventName],
    Query(max_length=MOST_VALUES, description="names of events; without it, all"),
]
type Keys = Annotated[
    list[Annotated[str, StringConstraints(pattern=_KEY)]],
    Query(max_length=MOST_VALUES, description="`key` of a call; may be repeated: one of the values fits"),
]
type MinCost = Annotated[
    Decimal | None,
    Query(
        ge=0,
        le=10**9,
        decimal_places=12,
        description="US dollars of a call; for runs, of all their calls whose cost is known, summed up a moment later",
    ),
]
type MinDuration = Annotated[
    float | None,
    Query(
        ge=0,
        le=10**12,
        allow_inf_nan=False,
        description="milliseconds of a call; for runs, from the start to the end of the last exchange, known a moment later",
    ),
]
type Failed = Annotated[
    bool | None,
    Query(
        description="calls that failed: no response, a status from 400 on, or a broken answer; runs with such an exchange"
    ),
]
type Parent = Annotated[str | None, Query(min_length=1, max_length=255, pattern=_TEXT, description="forks of this run")]


async def _checked_cursor(cursor: Next = None) -> str | None:
    """Return the cursor, before anything is looked up. Raises `BadCursor` for what no list returned."""
    if cursor is not None:
        Cursor.parse(cursor)
    return cursor


type PageCursor = Annotated[str | None, Depends(_checked_cursor)]


async def _checked_search_cursor(cursor: Next = None) -> str | None:
    """Return the cursor, before anything is looked up. Raises `BadCursor` for what no search returned."""
    if cursor is not None:
        SearchWindow.parse(cursor)
    return cursor


type SearchCursor = Annotated[str | None, Depends(_checked_search_cursor)]

type SortBy = Annotated[SortName, Query(description="items without a cost, duration or tokens come last, newest first")]
type Order = Annotated[
    Literal["asc", "desc"] | None, Query(description="asc or desc; by default the newest or largest first")
]
type StepOrder = Annotated[
    Literal["asc", "desc"] | None,
    Query(description="asc or desc; by default in the order of steps, or the largest first"),
]


async def _sort(sort: SortBy = "time", order: Order = None) -> Sort:
    return Sort(sort, order != "asc") if sort != "time" or order else NEWEST_FIRST


async def _step_sort(sort: SortBy = "time", order: StepOrder = None) -> Sort:
    return Sort(sort, order != "asc") if sort != "time" or order else STEP_ORDER


type TheSort = Annotated[Sort, Depends(_sort)]
type TheStepSort = Annotated[Sort, Depends(_step_sort)]
"""As `TheSort`, in the order of steps by default."""


async def _filters(
    deps: TheDeps,
    since: Time = None,
    until: Time = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies these
    model: Values = [],  # noqa: B006
    provider: Values = [],  # noqa: B006
    tool: Values = [],  # noqa: B006
    host: Values = [],  # noqa: B006
    status: Statuses = [],  # noqa: B006
    kind: Kinds = [],  # noqa: B006
    dialect: Values = [],  # noqa: B006
    operation: Values = [],  # noqa: B006
    actor: Values = [],  # noqa: B006
    key: Keys = [],  # noqa: B006
    min_cost: MinCost = None,
    min_duration: MinDuration = None,
    error: Failed = None,
    parent: Parent = None,
    incomplete: Incomplete = None,
    q: Words = None,
) -> Filters:
    if q is not None:
        # What is found says what was said.
        require_bodies(deps.grant, "q")
    since_time, until_time = parse_times(since, until)
    return Filters(
        since=since_time,
        until=until_time,
        labels=_parsed_labels(label),
        other_labels=_parsed_other_labels(label),
        models=tuple(model),
        providers=tuple(provider),
        tools=tuple(tool),
        hosts=tuple(host),
        statuses=tuple(map(_status_range, status)),
        kinds=tuple(kind),
        dialects=tuple(dialect),
        operations=tuple(operation),
        actors=tuple(actor),
        keys=tuple(bytes.fromhex(one.removeprefix("sha256:")) for one in key),
        min_cost=min_cost,
        min_duration=None if min_duration is None else round(min_duration * 1_000_000),
        error=error,
        parent=parent,
        incomplete=incomplete,
        q=q,
    )


async def _event_filters(
    type: EventTypes = [],  # noqa: A002, B006 - the parameter's name; FastAPI copies these
    label: Labels = [],  # noqa: B006
    run: Values = [],  # noqa: B006
    model: Values = [],  # noqa: B006
    provider: Values = [],  # noqa: B006
    tool: Values = [],  # noqa: B006
    host: Values = [],  # noqa: B006
    status: Statuses = [],  # noqa: B006
    kind: Kinds = [],  # noqa: B006
    dialect: Values = [],  # noqa: B006
    operation: Values = [],  # noqa: B006
    actor: Values = [],  # noqa: B006
    min_cost: MinCost = None,
    min_duration: MinDuration = None,
    error: Failed = None,
) -> EventFilters:
    return EventFilters(
        types=tuple(type),
        runs=tuple(run),
        labels=_parsed_labels(label),
        other_labels=_parsed_other_labels(label),
        models=tuple(model),
        providers=tuple(provider),
        tools=tuple(tool),
        hosts=tuple(host),
        statuses=tuple(map(_status_range, status)),
        kinds=tuple(kind),
        dialects=tuple(dialect),
        operations=tuple(operation),
        actors=tuple(actor),
        min_cost=min_cost,
        min_duration=None if min_duration is None else round(min_duration * 1_000_000),
        error=error,
    )


async def _requested_fields(
    deps: TheDeps,
    fields: Annotated[
        str | None,
        Query(
            max_length=1000,
            description="members of a call, comma-separated, or * for all; without it each item is a summary",
        ),
    ] = None,
) -> Fields:
    """Parse `fields`. Raises a 422 for an unknown name."""
    if fields is None:
        return SUMMARY
    parsed = _parsed_fields(fields, MEMBERS, "call")
    require_readable_fields(deps.grant, MEMBERS if parsed is None else parsed)
    return parsed


async def _requested_run_fields(
    fields: Annotated[
        str | None,
        Query(max_length=1000, description="members of a run, comma-separated; without it or with *, all of them"),
    ] = None,
) -> Fields:
    """Parse `fields` of runs. Raises a 422 for an unknown name."""
    return None if fields is None else _parsed_fields(fields, RUN_MEMBERS, "run")


def _parsed_fields(text: str, members: frozenset[str], noun: str) -> Fields:
    names = frozenset(name.strip() for name in text.split(","))
    if "*" in names:
        return None
    if strange := sorted(names - members):
        known = ", ".join(sorted(members))
        raise Problem(
            422, "unknown_field", f"fields={strange[0][:80]}: a {noun} has no such member; use some of {known}"
        )
    return names


type TheRunFields = Annotated[Fields, Depends(_requested_run_fields)]

type TheFields = Annotated[Fields, Depends(_requested_fields)]

type TheEventFilters = Annotated[EventFilters, Depends(_event_filters)]

type TheFilters = Annotated[Filters, Depends(_filters)]


@dataclass(frozen=True, slots=True)
class SettledParameter:
    """The result of `settled=true`: whether everything acknowledged before the request is stored."""

    members: dict[str, bool]
    """The members to add to the response; none where the request did not ask."""


async def settle(deps: TheDeps, request: Request, settled: Settled = False) -> SettledParameter:
    return await _wait_until_settled(deps, request, reports=False) if settled else SettledParameter({})


async def _wait_until_settled(deps: TheDeps, request: Request, *, reports: bool) -> SettledParameter:
    """Wait, without holding the turn (`store.api.spilled_answers`). The result is passed to a helper process, too."""
    async with request.scope.get(YIELD_TURN, contextlib.nullcontext)():
        is_settled = await deps.store_server.wait_until_settled(SETTLE_TIMEOUT, reports=reports)
    request.scope[SETTLED] = is_settled
    return SettledParameter({"settled": is_settled})


async def _settle_and_catch_up(deps: TheDeps, request: Request, settled: Settled = False) -> SettledParameter:
    if not settled:
        return SettledParameter({})
    result = await _wait_until_settled(deps, request, reports=False)
    if deps.followers is not None:
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT):
                await deps.followers.wait_until_caught_up()
        except TimeoutError:
            return SettledParameter({"settled": False})
    return result


type WhenCaughtUp = Annotated[SettledParameter, Depends(_settle_and_catch_up)]
"""As `WhenSettled`, and waits for the sums and the index of words, too, which follow the record."""

type WhenSettled = Annotated[SettledParameter, Depends(settle)]


async def _settle_with_reports(deps: TheDeps, request: Request, settled: Settled = False) -> SettledParameter:
    return await _wait_until_settled(deps, request, reports=True) if settled else SettledParameter({})


type WhenReportsSettled = Annotated[SettledParameter, Depends(_settle_with_reports)]
"""As `WhenSettled`, and waits for the reports of replays, too."""


def parse_nanoseconds(name: str, text: str | None) -> int | None:
    """Parse an RFC 3339 time into nanoseconds since the Unix epoch. Raises a 422."""
    if text is None:
        return None
    try:
        if not re.fullmatch(_TIME, text):
            raise ValueError(text)
        time = datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC)
    except (ValueError, OverflowError):
        detail = f"invalid time {name}={text}: use a date and time with its offset, such as 2026-11-21T18:30:00Z"
        raise Problem(422, "invalid_request", detail) from None
    return max(0, min((time - _EPOCH) // timedelta(microseconds=1) * 1000, LAST_TIME))


def parse_times(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Parse both ends of a time. Raises a 422 where nothing can be in between."""
    begin, end = parse_nanoseconds("since", since), parse_nanoseconds("until", until)
    if begin is not None and end is not None and begin > end:
        detail = f"since={since} is after until={until}, so nothing fits: give the earlier time as since"
        raise Problem(422, "invalid_request", detail)
    return begin, end


async def refuse_unknown_parameters(request: Request, project: ProjectName = None) -> None:  # noqa: ARG001 - `store.api.guard` reads it
    """Refuse query parameters that the route does not have: a misspelt filter would filter nothing."""
    if is_page_path(request.scope["path"]):
        return  # The page keeps the state of its views there.
    allowed, lists = _query_parameters(request.scope["route"])
    if strange := sorted(set(request.query_params) - allowed):
        detail = f"{request.url.path} has no query parameter {strange[0][:80]!r}; it has {', '.join(sorted(allowed))}"
        raise Problem(400, "unknown_parameter", detail, known=sorted(allowed))
    counts = Counter(name for name, _ in request.query_params.multi_items() if name not in lists)
    if repeated := sorted(name for name, count in counts.items() if count > 1):
        detail = f"{repeated[0]} is given {counts[repeated[0]]} times: give it once; may be repeated: {', '.join(sorted(lists))}"
        raise Problem(400, "repeated_parameter", detail)


_KNOWN_PARAMETERS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {}
"""By the route's unique id."""


def _query_parameters(route: APIRoute) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the route's query parameters, and of those that may be repeated."""
    if (known := _KNOWN_PARAMETERS.get(route.unique_id)) is None:
        lists = frozenset(_query_names(route.dependant, lists_only=True))
        known = frozenset({*_query_names(route.dependant), "project"}), lists
        _KNOWN_PARAMETERS[route.unique_id] = known
    return known


def _query_names(dependant: Dependant, *, lists_only: bool = False) -> Iterator[str]:
    yield from (
        one.alias for one in dependant.query_params if not lists_only or get_origin(one.field_info.annotation) is list
    )
    for each in dependant.dependencies:
        yield from _query_names(each, lists_only=lists_only)


def _parsed_labels(texts: list[str]) -> dict[str, str | None]:
    for text in texts:
        if not text or not re.fullmatch(_TEXT, text) or text.removeprefix("!")[:1] in ("", "="):
            raise Problem(
                422, "invalid_request", f"label={text!r} is neither NAME=VALUE nor NAME, nor one of them after a `!`"
            )
    labels: dict[str, str | None] = {}
    for name, equals, value in (text.partition("=") for text in texts if not text.startswith("!")):
        if labels.get(name) not in (None, value):
            detail = f"label={name}={labels[name]} and label={name}={value} cannot both fit: a run has one value of each label"
            raise Problem(422, "invalid_request", detail)
        labels[name] = value if equals else labels.get(name)
    return labels


def _parsed_other_labels(texts: list[str]) -> tuple[tuple[str, str | None], ...]:
    """The labels that are behind a `!`, which `_parsed_labels` has checked."""
    parts = (text[1:].partition("=") for text in texts if text.startswith("!"))
    return tuple(sorted({(name, value if equals else None) for name, equals, value in parts}, key=str))


def _status_range(status: str) -> range:
    first = int(status.replace("xx", "00"))
    return range(first, first + (100 if "x" in status else 1))
