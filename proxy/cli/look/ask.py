"""The commands that answer a question about all recordings: search, stats."""

from typing import Any

import click

from proxy.cli.common import as_json, print_json, query_store, with_settings
from proxy.cli.look.list_options import take_list_query, with_filters
from proxy.terminal.text import money, print_table, printable


@click.command("search", short_help="Find words in prompts, answers, tool arguments and results.")
@with_settings
@as_json
@click.argument("words", nargs=-1, required=True)
@with_filters
@click.option("--limit", type=click.IntRange(1, 500), default=20, help="How many texts to show. Default: 20.")
def search_command(as_json: bool, words: tuple[str, ...], limit: int, **flags: Any) -> None:
    """Find words in prompts, answers, tool arguments and results, best first, with the step where each was said first.

    All words must occur in one text. In quotes they are a phrase, a minus excludes what follows, a star ends a beginning, and OR
    separates alternatives.

    \b
    playhead search refund
    playhead search '"refund the order"' --model gpt-5 --since 7d
    playhead search -- 'refund* -invoice'
    """
    query = take_list_query(flags) | {"q": " ".join(words), "limit": limit, "settled": True}
    found = query_store(flags, lambda api: api.get("/search", **query))
    if as_json:
        print_json(found)
        return
    if not found["items"]:
        click.echo("nothing fits; whole words are searched for: end one with * to find longer ones", err=True)
        return
    for item in found["items"]:
        click.echo(f"{printable(item['run'])} {item['step']} {item['role']}")
        click.echo(f"    {_highlight(item['snippet'], item['highlights'])}")


def _highlight(snippet: str, places: list[list[int]]) -> str:
    """The snippet in one line that is safe to print, with the places in bold."""
    parts, end = [], 0
    for start, stop in places:
        parts += [printable(snippet[end:start]), click.style(printable(snippet[start:stop]), bold=True)]
        end = stop
    return "".join((*parts, printable(snippet[end:])))


@click.command("stats", short_help="Sum up calls by model, tool, day and so on.")
@with_settings
@as_json
@click.option(
    "--by",
    "group_by",
    multiple=True,
    default=["model"],
    metavar="NAME",
    help="run, model, provider, host, tool, kind, dialect, operation, actor, status, day, hour or label:NAME; up to three."
    " Default: model.",
)
@with_filters
@click.option(
    "--sort",
    type=click.Choice(["cost", "calls", "errors", "tokens", "name"]),
    help="The largest first, or by name. Default: cost; day and hour: the newest first.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=1000, help="How many groups. Default: 1000, the most.")
def stats_command(as_json: bool, group_by: tuple[str, ...], sort: str | None, limit: int, **flags: Any) -> None:
    """Sum up calls in groups: how many, how many failed, their tokens, cost and latency; the most expensive first.

    The last line is the total of all groups, also of those that are not listed.

    By status, and with --status, TRIES are those that had it: a call that was tried again counts for its last.

    COST ends with + where the price of some call is not known. MS is the median and the 99th percentile.

    \b
    playhead stats --since 1d                     what each model cost since yesterday
    playhead stats --by tool --error              which tools failed
    playhead stats --by day --by label:team       costs of teams, day by day
    playhead stats --by run --sort errors --limit 5
    """
    query = take_list_query(flags) | {"group_by": list(group_by), "sort": sort, "limit": limit, "settled": True}
    found = query_store(flags, lambda api: api.get("/stats", **query))
    if as_json:
        print_json(found)
        return
    # A call that was tried again counts once, but each of its statuses is of one of its tries.
    has_tries = "status" in group_by or bool(query.get("status"))
    groups = [([_group_text(item["group"][name]) for name in group_by], item) for item in found["items"]]
    groups.append((["total", *[""] * (len(group_by) - 1)], found["total"]))
    rows = [_stats_row(group, sums, has_tries=has_tries) for group, sums in groups]
    names = [name.upper() for name in group_by]
    print_table(
        (
            *names,
            "CALLS",
            *(("TRIES",) if has_tries else ()),
            "ERRORS",
            "INPUT",
            "CACHED",
            "OUTPUT",
            "COST",
            "MS P50",
            "P99",
        ),
        rows,
    )


def _group_text(value: str | int | None) -> str:
    return "-" if value is None else str(value)


def _stats_row(group: list[str], sums: dict[str, Any], *, has_tries: bool) -> tuple[str, ...]:
    usage, known = sums["usage"], sums["known_cost_usd"]
    unknown = sums["calls_without_price"] > 0
    cost = ("unknown" if unknown else "-") if known is None else money(known) + ("+" if unknown else "")
    tokens = [f"{usage[name] or 0:,}" for name in ("input_tokens", "cached_tokens", "output_tokens")]
    times = ["-" if (ms := sums["duration_ms"][name]) is None else f"{ms:,.0f}" for name in ("p50", "p99")]
    counts = [f"{sums[name]:,}" for name in ("calls", *(("exchanges",) if has_tries else ()), "errors")]
    return (*group, *counts, *tokens, cost, *times)


COMMANDS = (search_command, stats_command)
