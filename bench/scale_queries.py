"""The requests that `bench.scale` measures: every list, filter, search and sum, and the requests for a single run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from bench.scale_rows import DAY, RARE_MODEL, case_of, run_name
from store.query.rest_shapes import rfc3339

ABSENT: Final = "no-such-value"


@dataclass(frozen=True, slots=True)
class Query:
    """One request to measure."""

    group: str
    name: str
    path: str
    parameters: Sequence[tuple[str, str]] = ()
    page: int = 1
    """The number of the page. The pages before it are requested first and not measured."""

    def target(self, cursor: str | None = None) -> str:
        """Return the target of the request."""
        more = [("cursor", cursor)] if cursor else []
        return f"{self.path}?{urlencode([*self.parameters, *more], quote_via=quote)}"


def queries(runs: int, newest: int) -> Iterator[Query]:
    """Yield all requests."""
    for path, what in (("/v1/calls", "calls"), ("/v1/runs", "runs")):
        yield Query("list", f"{what}", path)
        yield Query("list", f"{what}, second page", path, page=2)
        yield Query("list", f"{what}, hundredth page", path, page=100)
        for sort in ("cost", "duration", "tokens"):
            yield Query("list", f"{what} by {sort}", path, [("sort", sort)])
            yield Query("list", f"{what} by {sort}, ascending", path, [("sort", sort), ("order", "asc")])
            yield Query("list", f"{what} by {sort}, second page", path, [("sort", sort)], page=2)
            yield Query("list", f"{what} by {sort}, hundredth page", path, [("sort", sort)], page=100)
        yield Query("list", f"{what}, 500 items", path, [("limit", "500")])
        for name, parameters in filters(runs, newest):
            yield Query("filter", f"{what} {name}", path, parameters)
    yield Query("list", "calls of a run", f"/v1/runs/{run_name(0)}/calls")
    yield Query("list", "calls, all fields", "/v1/calls", [("fields", "*")])
    yield Query("list", "calls, fields=id,cost_usd", "/v1/calls", [("fields", "id,cost_usd")])
    yield from searches(runs)
    yield from sums(newest)


def filters(runs: int, newest: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each filter with a common, a rare and an absent value, and combinations."""
    values = {
        "model": ("deepseek-chat", RARE_MODEL[1], ABSENT),
        "provider": ("openai", "anthropic", ABSENT),
        "host": ("api.openai.com", "api.anthropic.com", ABSENT),
        "tool": ("search_1", "delete_3", ABSENT),
        "status": ("200", "500", "418"),
        "kind": ("model", "tool", "retrieval"),
        "dialect": ("openai_chat", "anthropic", ABSENT),
        "operation": ("chat", "request", ABSENT),
        "actor": ("planner", "searcher", ABSENT),
        "key": ("sha256:" + "0" * 64,),
        "label": ("team=support", f"release=2026.{runs // 1000}", "team=nobody"),
        "min_cost": ("0.001", "10", "1000000"),
        "min_duration": ("100", "7800", "1000000000"),
        "error": ("true", "false"),
        "incomplete": ("true", "false"),
        "parent": (run_name(0), ABSENT),
    }
    for name, each in values.items():
        for value in each:
            yield f"{name}={value[:24]}", [(name, value)]
    day = [("since", rfc3339(newest - 16 * DAY)), ("until", rfc3339(newest - 15 * DAY))]
    yield "of one day", day
    yield "of one day that has none", [("since", rfc3339(newest - 400 * DAY)), ("until", rfc3339(newest - 399 * DAY))]
    yield "model+error", [("model", "deepseek-chat"), ("error", "true")]
    yield "rare model+status+day", [("model", RARE_MODEL[1]), ("status", "429"), *day]
    yield (
        "provider+tool+actor+label",
        [
            ("provider", "openai"),
            ("tool", "delete_3"),
            ("actor", "planner"),
            ("label", "team=support"),
        ],
    )
    yield "two models+4xx", [("model", "gpt-4.1"), ("model", RARE_MODEL[1]), ("status", "4xx")]
    yield "common+absent", [("provider", "openai"), ("model", ABSENT)]
    yield "error by cost", [("error", "true"), ("sort", "cost")]
    yield "rare model by cost", [("model", RARE_MODEL[1]), ("sort", "cost")]


def searches(runs: int) -> Iterator[Query]:
    """Yield searches with `q` over calls, over runs, and at /v1/search."""
    words = {
        "rare": case_of(runs // 2),
        "common": "the",
        "frequent": "con",
        "phrase": '"case-000000001"',
        "prefix": "case-00000*",
        "minus": f"{case_of(runs // 2)} -nothing",
        "absent": "quodlibetarian",
    }
    for path, what in (("/v1/search", "search"), ("/v1/calls", "calls q="), ("/v1/runs", "runs q=")):
        for name, text in words.items():
            yield Query("search", f"{what} {name}", path, [("q", text)])


def sums(newest: int) -> Iterator[Query]:
    """Yield sums over the whole month, each grouping alone and with filters."""
    month = [("since", rfc3339(newest - 30 * DAY))]
    names = ("run", "model", "provider", "host", "tool", "actor", "kind", "dialect", "operation", "status")
    groupings = (*names, "day", "hour", "label:team")
    for name in groupings:
        yield Query("stats", f"by {name}", "/v1/stats", [("group_by", name), *month])
    for name, parameters in (
        ("error", [("error", "true")]),
        ("rare model", [("model", RARE_MODEL[1])]),
        ("common model", [("model", "deepseek-chat")]),
        ("provider+actor", [("provider", "openai"), ("actor", "planner")]),
        ("label", [("label", "team=support")]),
        ("status 4xx", [("status", "4xx")]),
        ("min_cost", [("min_cost", "0.01")]),
    ):
        for grouping in ("model", "day"):
            yield Query("stats", f"by {grouping}, {name}", "/v1/stats", [("group_by", grouping), *parameters, *month])
    yield Query("stats", "by model and day", "/v1/stats", [("group_by", "model"), ("group_by", "day"), *month])
    day = [("since", rfc3339(newest - 16 * DAY)), ("until", rfc3339(newest - 15 * DAY))]
    yield Query("stats", "by model, one day", "/v1/stats", [("group_by", "model"), *day])
    yield Query("stats", "facets of the newest runs", "/v1/facets")
    yield Query("stats", "facets of the newest runs with an error", "/v1/facets", [("error", "true")])


def details(run: str, call: str) -> Iterator[Query]:
    """Yield the requests for a single run and one of its calls, and those for all calls that are not lists."""
    of_run = ("", "/calls?fields=*", "/cost", "/timeline", "/conversation", "/envelope", "/spans", "/bundle")
    for path in of_run:
        path, _, fields = path.partition("?fields=")
        yield Query(
            "one",
            f"run{path or ' itself'}{' ' + fields if fields else ''}",
            f"/v1/runs/{run}{path}",
            [("fields", fields)] * bool(fields),
        )
    for path in (
        f"/v1/calls/{call}",
        f"/v1/calls/{call}/explain",
        f"/v1/exchanges/{call}",
        f"/v1/exchanges/{call}/request",
    ):
        yield Query("one", path.removeprefix("/v1/").replace(call, "ID"), path)
    yield Query("all", "drift", "/v1/drift")
    yield Query("all", "retention", "/v1/retention")
