"""The filters and the sorting that the commands which list runs and calls have, and the pages they read."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from proxy.cli.common import parse_time
from proxy.cli.run_completion import complete_run
from proxy.processes.store_client import Api

type Command = Callable[..., Any]

PAGE: Final = 500
"""Items that the store server returns at once, at most."""

MAX_LISTED: Final = 100_000


def _any_of(option: str, name: str, metavar: str, text: str) -> Command:
    return click.option(option, name, multiple=True, metavar=metavar, help=text)


_FILTERS = [
    click.option("--since", metavar="TIME", help="Begun since this time: RFC 3339, or an age such as 7d or 12h."),
    click.option("--until", metavar="TIME", help="Begun before this time, or longer ago than this age."),
    click.option(
        "--label",
        multiple=True,
        metavar="k=v",
        help="In a run with this label; or `k` for any value; `!k=v` or `!k`: in a run without it. All of them, if repeated.",
    ),
    _any_of("--model", "model", "NAME", "Of this model."),
    _any_of("--provider", "provider", "NAME", "Of this provider."),
    _any_of("--tool", "tool", "NAME", "Requesting or calling this tool."),
    _any_of("--host", "host", "HOST", "To this host."),
    _any_of("--status", "status", "CODE", "With this HTTP status (100 to 599), such as 429, or class, such as 5xx."),
    click.option(
        "--kind",
        type=click.Choice(["model", "tool", "retrieval", "other"]),
        multiple=True,
        help="Of this kind.",
    ),
    _any_of("--dialect", "dialect", "NAME", "In this API's format, such as openai_chat."),
    _any_of("--operation", "operation", "NAME", "Of this operation, such as chat or embeddings."),
    _any_of("--actor", "actor", "NAME", "By this actor of an agent."),
    _any_of("--key", "key", "KEY", "With this key, as `playhead explain` shows it."),
    click.option(
        "--min-cost", type=click.FloatRange(min=0), metavar="USD", help="That cost at least this many dollars."
    ),
    click.option(
        "--min-duration", type=click.FloatRange(min=0), metavar="MS", help="That took at least this many milliseconds."
    ),
    click.option("--error/--no-error", default=None, help="That failed, or did not."),
    click.option(
        "--incomplete/--complete",
        default=None,
        help="With gaps or truncated answers, or without. Answers that the client itself gave up, or got completely when it"
        " tried again, do not count for a run.",
    ),
    click.option("--parent", metavar="RUN", shell_complete=complete_run, help="In a fork of this run."),
    click.option(
        "--search",
        "q",
        metavar="TEXT",
        help="With these words in a prompt, an answer, or a tool's arguments or result; or this text in the run's name.",
    ),
]

_SORTING = [
    click.option("--sort", type=click.Choice(["time", "cost", "duration", "tokens"]), help="Default: time."),
    click.option("--order", type=click.Choice(["desc", "asc"]), help="Default: desc, the newest or largest first."),
    click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=20, help="How many to list. Default: 20."),
]

FILTER_NAMES: Final = (
    *(
        "since",
        "until",
        "label",
        "model",
        "provider",
        "tool",
        "host",
        "status",
        "kind",
        "dialect",
        "operation",
        "actor",
    ),
    *("key", "min_cost", "min_duration", "error", "incomplete", "parent", "q"),
)
"""The filters, by the names of the parameters."""


def with_list_options(command: Command) -> Command:
    """Add the filters and the sorting of lists."""
    for option in reversed([*_FILTERS, *_SORTING]):
        command = option(command)
    return command


def with_filters(command: Command) -> Command:
    """Add the filters alone, for commands that search for words by an argument."""
    for option in reversed(_FILTERS[:-1]):
        command = option(command)
    return command


def take_list_query(flags: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of lists from the flags, and return those that are given as parameters of the store server."""
    query = {name: flags.pop(name, None) for name in (*FILTER_NAMES, "sort", "order")}
    query |= {name: parse_time(query[name]) for name in ("since", "until")}
    query |= {name: str(query[name]).lower() for name in ("error", "incomplete") if query[name] is not None}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in query.items()
        if value not in (None, ())
    }


def has_filters(query: Mapping[str, Any]) -> bool:
    """Whether a query asks for only some of the items."""
    return any(name in query for name in FILTER_NAMES)


def fetch_list(api: Api, path: str, limit: int, query: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch at most `limit` items of a list, page after page; `next` is the cursor of what follows."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = api.get(path, **query, limit=min(PAGE, limit - len(items)), cursor=cursor)
        items += page["items"]
        cursor = page["next"]
        if cursor is None or len(items) >= limit:
            return {"items": items, "next": cursor}
