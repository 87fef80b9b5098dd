"""Query all runs and calls of a running Playhead over its REST API, page by page."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from playhead.calls import Call, read_calls
from playhead.filters import encode_query
from playhead.rest import TIMEOUT, fetch_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typing_extensions import Unpack

    from playhead.filters import Filters, ListFilters

PAGE = 100
MAX_PAGE = 500
"""The largest page that the API returns."""


@dataclass(frozen=True)
class RunSummary:
    """A run as the API lists it. What `fields` left out is None."""

    id: str
    name: str | None
    labels: Mapping[str, str]
    started_at: str | None
    ended_at: str | None
    calls: int | None
    gaps: int | None
    complete: bool | None
    models: tuple[str, ...]
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    """None if the price of some call is not known; `known_cost_usd` is the sum of the others."""

    known_cost_usd: float | None
    parent: str | None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole run, as returned by `GET /v1/runs/{run}`."""


@dataclass(frozen=True)
class Percentiles:
    """Latencies in milliseconds; None if nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class Sums:
    """The sums of some calls."""

    calls: int
    errors: int
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    """None if the price of some call is not known."""

    known_cost_usd: float | None
    first_byte_ms: Percentiles
    duration_ms: Percentiles
    group: Mapping[str, Any] = field(default_factory=dict)
    """What the calls have in common: `{"model": "gpt-4o-mini"}`. Empty for the total."""

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Stats:
    """Groups of calls, the most expensive first, and their total."""

    groups: tuple[Sums, ...]
    total: Sums

    def __iter__(self) -> Iterator[Sums]:
        return iter(self.groups)


@dataclass(frozen=True)
class FoundText:
    """A text that a search found, at the first call of its run and day that has it."""

    run: str
    step: int
    call: str
    role: str
    """`prompt`, `answer`, `arguments` or `result`."""

    snippet: str
    highlights: tuple[tuple[int, int], ...]
    """The places in the snippet of what was found."""

    rank: float
    started_at: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


class Client:
    """The recordings of one Playhead.

    The address is PLAYHEAD_API if none is given. The token is PLAYHEAD_API_TOKEN, the content of the file that
    PLAYHEAD_API_TOKEN_FILE names, or what `playhead token` prints. Nothing is sent twice: a request that fails raises
    `Problem` or `Unreachable`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """`project` is the one to ask about; by default PLAYHEAD_PROJECT, or else that of the token."""
        self._url = url
        self._token = token
        self._project = project
        self._timeout = timeout

    def runs(self, **filters: Unpack[ListFilters]) -> Iterator[RunSummary]:
        """Iterate over the runs with a call that fits, newest first. Each page is fetched when it is needed."""
        return map(_read_run, self._items("/v1/runs", filters))

    def run(self, id: str, *, settled: bool = False) -> RunSummary:  # noqa: A002 - the name in the public API
        """Fetch one run."""
        return _read_run(self._fetch(f"/v1/runs/{quote(id, safe='')}", _waiting(settled)))

    def calls(self, run: str | None = None, **filters: Unpack[ListFilters]) -> Iterator[Call]:
        """Iterate over the calls that fit, newest first, or over those of one run in order, which takes no filters.

        They are summaries without request and answer; `fields="*"` fetches them whole.
        """
        if run is None:
            return map(_read_one_call, self._items("/v1/calls", filters))
        if others := sorted(filters.keys() - {"fields", "sort", "order", "settled"}):
            raise TypeError(f"calls(run=...) takes no filter, and {others[0]} is one; filter what it returns")
        return map(_read_one_call, self._items(f"/v1/runs/{quote(run, safe='')}/calls", filters))

    def call(self, id: str) -> Call:  # noqa: A002 - the name in the public API
        """Fetch one call with its request and answer."""
        return _read_one_call(self._fetch(f"/v1/calls/{quote(id, safe='')}"))

    def search(self, words: str, *, limit: int = PAGE, **filters: Unpack[Filters]) -> list[FoundText]:
        """Find texts with these words, the best first, at most `limit`. `calls(q=...)` iterates over all calls that have one."""
        filters["q"] = words
        return [_read_found(raw) for raw in islice(self._items("/v1/search", filters, min(limit, MAX_PAGE)), limit)]

    def stats(
        self,
        group_by: str | Sequence[str],
        *,
        sort: str | None = None,
        limit: int | None = None,
        **filters: Unpack[Filters],
    ) -> Stats:
        """Sum up the calls that fit, by `model`, `tool`, `day`, `label:NAME` and so on.

        `sort` is `cost`, `calls`, `errors`, `tokens` or `name`.
        """
        groups = [group_by] if isinstance(group_by, str) else list(group_by)
        found = self._fetch("/v1/stats", {**filters, "group_by": groups, "sort": sort, "limit": limit})
        return Stats(tuple(map(_read_sums, found["items"])), _read_sums(found["total"]))

    def cost(self, run: str, *, limit: int | None = None, settled: bool = False) -> dict[str, Any]:
        """Fetch where the money of a run went: its `total`, its first `limit` `steps`, and the `tree` that sums them up.

        `new_tokens` and `repeated_tokens` divide the prompts: what was sent the first time, and what an earlier step had sent.
        """
        return self._fetch(f"/v1/runs/{quote(run, safe='')}/cost", {"limit": limit, **_waiting(settled)})

    def envelope(self, run: str, *, settled: bool = False) -> dict[str, Any]:
        """Fetch what was captured of what moves between runs: models, sampling, prompts, retrieval, tools, times, code and environment.

        Each has the values that were seen with their steps, and in `missing` a sentence for whatever was not captured.
        """
        return self._fetch(f"/v1/runs/{quote(run, safe='')}/envelope", _waiting(settled))

    def diff(self, a: str, b: str, *, settled: bool = False) -> dict[str, Any]:
        """Fetch where two runs differ, and why: the `first` difference, its `cause`, and the `pairs` of steps side by side."""
        return self._fetch(f"/v1/runs/{quote(a, safe='')}/diff/{quote(b, safe='')}", _waiting(settled))

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        """Fetch anything else that the API answers as a JSON object: `get("/v1/drift", model="gpt-5", settled=True)`."""
        return self._fetch(path, parameters)

    def _items(self, path: str, parameters: Mapping[str, Any], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over a list, by pages of `limit`. Parameters are checked by the server when the first item is requested."""
        query = {**parameters, "limit": limit or PAGE}
        while True:
            page = self._fetch(path, query)
            yield from page["items"]
            if page["next"] is None:
                return
            query = {**query, "cursor": page["next"], "settled": None}

    def _fetch(self, path: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        query = encode_query({"project": self._project, **(parameters or {})})
        found = fetch_json(f"{path}?{query}" if query else path, self._url, self._token, self._timeout)
        if found.get("settled") is False and (parameters or {}).get("settled"):
            raise TimeoutError(
                f"{path}: not everything that was recorded is stored yet, after ten seconds: ask again, or let `playhead doctor` say why"
            )
        return found

    def __repr__(self) -> str:
        return f"<playhead.Client {self._url or 'of PLAYHEAD_API'}>"


def _waiting(settled: bool) -> dict[str, Any]:
    return {"settled": True} if settled else {}


def _read_one_call(raw: Mapping[str, Any]) -> Call:
    return read_calls([raw])[0]


def _read_run(raw: Mapping[str, Any]) -> RunSummary:
    tokens = raw.get("tokens") or {}
    return RunSummary(
        id=raw["id"],
        name=raw.get("name"),
        labels=raw.get("labels") or {},
        started_at=raw.get("started_at"),
        ended_at=raw.get("ended_at"),
        calls=raw.get("calls"),
        gaps=raw.get("gaps"),
        complete=raw.get("complete"),
        models=tuple(raw.get("models") or ()),
        input_tokens=tokens.get("input_tokens"),
        output_tokens=tokens.get("output_tokens"),
        cost_usd=raw.get("cost_usd"),
        known_cost_usd=raw.get("known_cost_usd"),
        parent=raw.get("parent"),
        raw=raw,
    )


def _read_sums(raw: Mapping[str, Any]) -> Sums:
    usage = raw.get("usage") or {}
    return Sums(
        calls=raw["calls"],
        errors=raw["errors"],
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cached_tokens=usage.get("cached_tokens"),
        reasoning_tokens=usage.get("reasoning_tokens"),
        cost_usd=raw.get("cost_usd"),
        known_cost_usd=raw.get("known_cost_usd"),
        first_byte_ms=_read_percentiles(raw.get("first_byte_ms") or {}),
        duration_ms=_read_percentiles(raw.get("duration_ms") or {}),
        group=raw.get("group") or {},
        raw=raw,
    )


def _read_found(raw: Mapping[str, Any]) -> FoundText:
    return FoundText(
        run=raw["run"],
        step=raw["step"],
        call=raw["call"],
        role=raw["role"],
        snippet=raw["snippet"],
        highlights=tuple((start, end) for start, end in raw["highlights"]),
        rank=raw["rank"],
        started_at=raw["started_at"],
        raw=raw,
    )


def _read_percentiles(raw: Mapping[str, Any]) -> Percentiles:
    return Percentiles(raw.get("p50"), raw.get("p90"), raw.get("p99"))
