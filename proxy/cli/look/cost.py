"""The command that shows where the money of a run went: cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from proxy.cli.common import as_json, print_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.processes.store_client import Api, NotFound, incomplete_reason, path_segment, resolve_run_name
from proxy.run_names import missing_run_failure
from proxy.terminal.render_run import call_cost
from proxy.terminal.text import count_text, money, printable

MAX_STEPS: Final = 2000
"""Steps that the store server reads."""

WIDTH: Final = 100
"""Columns of the terminal for which the tables are made."""

NAME_WIDTHS: Final = (12, 36)
"""The least and the greatest width of names."""

MOST_CHILDREN: Final = 12
"""Branches, models and tools that are shown below one line of the tree."""


@click.command("cost", short_help="Show where the money of a run went.")
@with_settings
@as_json
@click.argument("run", metavar="RUN|last", shell_complete=complete_run)
@click.option("--limit", type=click.IntRange(1, MAX_STEPS), default=100, help="How many steps to list. Default: 100.")
def cost_command(run: str, limit: int, as_json: bool, **flags: Any) -> None:
    """Show where the money of a run went: step by step with the sum so far, and as a tree of actors, branches and models.

    NEW and AGAIN divide the input: tokens that no earlier step of the same branch sent, and those that were sent before. They are an
    estimate: the reported tokens are divided by the lengths of the messages and tools. COST ends with + where a price is unknown.

    \b
    playhead cost last             the newest run
    playhead cost last --json      every step and the whole tree, for a program
    """

    def fetch(api: Api) -> tuple[dict[str, Any], str | None]:
        name = resolve_run_name(api, run)
        try:
            missing = incomplete_reason(api, name)
            return api.get(f"/runs/{path_segment(name)}/cost", limit=MAX_STEPS), missing
        except NotFound as error:
            raise missing_run_failure(name) from error

    found, missing = query_store(flags, fetch)
    if missing:
        click.echo(f"playhead: not all that was recorded is stored yet: {printable(missing)}", err=True)
    if as_json:
        print_json(found)
        return
    for line in _summary_lines(found):
        click.echo(line)
    click.echo()
    _print_steps(found, limit)
    click.echo()
    _print_tree(found["tree"])


def _summary_lines(run_cost: Mapping[str, Any]) -> Iterator[str]:
    total, tree = run_cost["total"], run_cost["tree"]
    usage = total["usage"]
    yield f"{printable(run_cost['run'])}: {_amount(total)} for {count_text(total['calls'], 'call')}"
    unknown = total["calls_without_price"]
    if unknown:
        yield f"the price of {count_text(unknown, 'model request')} is not known"
    yield (
        f"input {usage['input_tokens'] or 0:,} tokens, cached {usage['cached_tokens'] or 0:,},"
        f" output {usage['output_tokens'] or 0:,} ({usage['reasoning_tokens'] or 0:,} reasoning)"
    )
    new, again = tree["new_tokens"], tree["repeated_tokens"]
    if new is not None and again is not None and new + again:
        share = round(100 * again / (new + again))
        yield f"about {again:,} input tokens ({share} %) had been sent before in the same branch; {new:,} were new"
    if run_cost["steps_left_out"]:
        yield f"only the first {count_text(len(run_cost['steps']), 'step')} of the run are divided below"


def _print_steps(run_cost: Mapping[str, Any], limit: int) -> None:
    steps = run_cost["steps"]
    has_reasoning = any(step["usage"]["reasoning_tokens"] for step in steps)
    has_branches = any((step["branch"] or 1) != 1 for step in steps)
    rows = []
    for step in steps[:limit]:
        usage = step["usage"]
        names = [str(step["step"])]
        names += ["" if step["branch"] is None else str(step["branch"])] if has_branches else []
        cells = [_tokens(usage["input_tokens"]), _tokens(step["new_tokens"]), _tokens(step["repeated_tokens"])]
        cells += [_tokens(usage["cached_tokens"]), _tokens(usage["output_tokens"])]
        cells += [_tokens(usage["reasoning_tokens"])] if has_reasoning else []
        rows.append((*names, _step_name(step), *cells, _step_cost(step), money(step["cost_so_far_usd"])))
    head = ["STEP", *(["BR"] if has_branches else []), "MODEL/TOOL", "INPUT", "NEW", "AGAIN", "CACHED", "OUTPUT"]
    head += [*(["REASON"] if has_reasoning else []), "COST", "SUM"]
    _print_aligned(tuple(head), rows, names=3 if has_branches else 2)
    if len(steps) > limit:
        click.echo(f"… {count_text(len(steps) - limit, 'more step')}: --limit {len(steps)} lists them")


def _print_aligned(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, names: int) -> None:
    """Print a table whose columns from `names` on are numbers, aligned to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    least, greatest = NAME_WIDTHS
    room = WIDTH - sum(widths) - 2 * (len(widths) - 1) + widths[names - 1]
    widths[names - 1] = min(widths[names - 1], max(least, min(room, greatest)))
    for number, row in enumerate((head, *rows)):
        cells = zip(row, widths, strict=True)
        line = "  ".join(
            _fit(cell, width) if place < names else cell.rjust(width) for place, (cell, width) in enumerate(cells)
        )
        click.echo(click.style(line, bold=True) if number == 0 else line.rstrip())


def _fit(text: str, width: int) -> str:
    return (text if len(text) <= width else text[: width - 1] + "…").ljust(width)


def _print_tree(tree: Mapping[str, Any]) -> None:
    rows = [
        (
            name,
            f"{node['calls']:,}",
            _tokens(node["usage"]["input_tokens"]),
            _tokens(node["new_tokens"]),
            _tokens(node["repeated_tokens"]),
            _tokens(node["usage"]["output_tokens"]),
            _amount(node),
        )
        for name, node in _tree_lines(tree, "", "")
    ]
    _print_aligned(("WHERE", "CALLS", "INPUT", "NEW", "AGAIN", "OUTPUT", "COST"), rows, names=1)


def _tree_lines(node: Mapping[str, Any], first: str, later: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a node and what is below it, each with its name behind the lines of the tree."""
    name = f"{node['name']} (from step {node['first_step']})" if node["kind"] == "branch" else str(node["name"])
    yield first + printable(name), node
    children = node["children"]
    listed_children = children[:MOST_CHILDREN]
    for place, child in enumerate(listed_children):
        is_last = place == len(children) - 1
        yield from _tree_lines(child, later + ("└ " if is_last else "├ "), later + ("  " if is_last else "│ "))
    if len(children) > len(listed_children):
        yield f"{later}└ {len(children) - len(listed_children)} more", _sum_nodes(children[len(listed_children) :])


def _sum_nodes(nodes: list[dict[str, Any]]) -> Mapping[str, Any]:
    def total(values: list[Any]) -> Any:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return {
        **{name: total([node[name] for node in nodes]) for name in ("calls", "new_tokens", "repeated_tokens")},
        **{name: total([node[name] for node in nodes]) for name in ("known_cost_usd", "calls_without_price")},
        "usage": {name: total([node["usage"][name] for node in nodes]) for name in ("input_tokens", "output_tokens")},
    }


def _step_name(step: Mapping[str, Any]) -> str:
    name = step["model"] if step["kind"] == "model" and step["model"] else step["name"]
    actor = f"{step['actor']}: " if step["actor"] else ""
    return printable(f"{actor}{name}")


def _tokens(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _step_cost(step: Mapping[str, Any]) -> str:
    return call_cost(dict(step)) if step["known_cost_usd"] is None else _amount(step)


def _amount(node: Mapping[str, Any]) -> str:
    """What is known of a cost; a plus where more is not known."""
    known, unknown = node["known_cost_usd"], node["calls_without_price"]
    if known is None:
        return "unknown" if unknown else "-"
    return money(known) + ("+" if unknown else "")


COMMANDS = (cost_command,)
