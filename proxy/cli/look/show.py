"""The command that shows a run or a call: show."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import click
import msgspec
from msgspec.structs import replace

from proxy.cli.common import as_json, print_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, incomplete_reason, path_segment, resolve_run_name, settled_run
from proxy.run_names import missing_run_failure
from proxy.terminal.render_effects import show_effect
from proxy.terminal.render_run import RunView, show_call, show_envelope, show_long_run, show_run
from proxy.terminal.text import next_command, printable
from proxy.terminal.waiting import show_waiting
from store.snippets.snippet import FORMS, SnippetForm


@click.command("show", short_help="Show a run step by step, or one call in full.")
@with_settings
@as_json
@click.option(
    "--effects",
    is_flag=True,
    help="List what the programs got from elsewhere than the network: kind, arguments, result, file and line (docs/effects.md).",
)
@click.option("--envelope", is_flag=True, help="Show what was captured of what moves between runs, and what was not.")
@click.option(
    "--as",
    "form",
    type=click.Choice(FORMS),
    help="Print the call as a command, code or a file; secrets are environment variables in it.",
)
@click.argument("what", metavar="RUN|CALL|last", shell_complete=complete_run)
@click.argument("step", type=click.IntRange(min=1), required=False)
def show_command(
    what: str, step: int | None, envelope: bool, effects: bool, form: SnippetForm | None, as_json: bool, **flags: Any
) -> None:
    """Show a run with its calls in step order, what is missing in it and why; or one call in full.

    A step shows the tools that a model calls with their arguments, and what it cost: `unknown` where no price is known, `-`
    where no model answered. A fork shows of each step whether its answer was recorded, edited or live.

    \b
    playhead show last        every call of the newest run, one a line, and how many effects came before it
    playhead show last 7      its seventh call in full: request, answer, tools, tokens, cost
    playhead show last 7 --as curl    its request as a command; also python, pytest, jsonl, har, vcr
    playhead show last --effects      every effect: clocks, random numbers, variables, files, what a person typed
    playhead show --envelope last    models, sampling, tools, times, code, clients: what was captured, and what was not
    """
    if envelope:
        if step is not None:
            raise click.UsageError("--envelope is about the whole run: leave out the step.")
        captured = query_store(flags, lambda api: _load_envelope(api, what))
        print_json(captured) if as_json else show_envelope(captured)
        return

    if effects:
        query_store(flags, lambda api: _list_effects(api, what, step, as_json=as_json))
        return

    if form is not None:
        snippet = query_store(flags, lambda api: _copy_call(api, what, step, form))
        print_json(snippet) if as_json else _print_snippet(snippet)
        return

    def view(api: Api) -> RunView | CallView:
        run = resolve_run_name(api, what)
        if step is not None:
            return _call_view(api, _call_at_step(api, run, step))
        try:
            return _run_view(api, run)
        except NotFound:
            return _call_view(api, _get_call(api, what))

    def show(api: Api) -> None:
        with show_waiting("waiting for the store server"):
            found = view(api)
            if isinstance(found, RunView) and (as_json or found.run["calls"] <= CALLS_AT_ONCE):
                found = replace(found, calls=list(chain.from_iterable(_call_pages(api, found.run, as_json=as_json))))
                has_all_calls = True
            else:
                has_all_calls = False
        if isinstance(found, CallView):
            _print_call(found, as_json=as_json)
            return
        if found.missing:
            click.echo(f"playhead: not all that was recorded is stored yet: {printable(found.missing)}", err=True)
        if as_json:
            print_json({**found.run, "items": found.calls, "gap_items": found.gaps, "effects": found.effects})
        elif has_all_calls:
            show_run(found)
        else:
            show_long_run(found, _call_pages(api, found.run))

    query_store(flags, show, is_silent=False)


def _list_effects(api: Api, what: str, step: int | None, *, as_json: bool) -> None:
    """Print the effects of a run, or those between a call and the one before it, as they are read."""
    run = resolve_run_name(api, what)
    before_step = None if step is None else int(_call_at_step(api, run, step)["step"])
    try:
        incomplete_reason(api, run)
        for effect in _run_effects(api, run, before_step):
            if as_json:
                click.echo(json.dumps(effect))
            else:
                show_effect(effect)
    except NotFound as error:
        raise missing_run_failure(run) from error


def _run_effects(api: Api, run: str, step: int | None) -> Iterator[dict[str, Any]]:
    query: dict[str, Any] = {"limit": 500} if step is None else {"limit": 500, "step": step}
    return api.list_items(f"/runs/{path_segment(run)}/effects", **query)


def _copy_call(api: Api, what: str, step: int | None, form: SnippetForm) -> dict[str, Any]:
    call = _get_call(api, what) if step is None else _call_at_step(api, resolve_run_name(api, what), step)
    copied: dict[str, Any] = api.get(f"/calls/{path_segment(call['id'])}/snippet", **{"as": form})
    return copied


def _print_snippet(snippet: Mapping[str, Any]) -> None:
    """Print it: a file or a pipe receives exactly its bytes. Commands and code hold nothing that a terminal would act on."""
    text = str(snippet["text"])
    if sys.stdout.isatty() and snippet["as"] in ("jsonl", "har", "vcr"):
        text = "\n".join(map(printable, text.split("\n")))
    click.echo(text, nl=not text.endswith("\n"))
    for note in snippet["notes"]:
        click.echo(f"playhead: {printable(note)}", err=True)


def _load_envelope(api: Api, run: str) -> dict[str, Any]:
    name = resolve_run_name(api, run)
    try:
        found: dict[str, Any] = api.get_patiently(f"/runs/{path_segment(name)}/envelope")
    except NotFound as error:
        raise missing_run_failure(name) from error
    return found


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its bodies, and the tool call of a model that it carried out."""

    call: dict[str, Any]
    executed: dict[str, Any] | None
    effects: Sequence[Mapping[str, Any]] = ()
    """What the program got since the call before."""


def _run_view(api: Api, run: str) -> RunView:
    """Load a run without its calls."""
    path = f"/runs/{path_segment(run)}"
    # First, because it waits for what is being stored: everything read after it is of one moment.
    shape, missing = settled_run(api, run)
    gaps = list(api.list_items(f"{path}/gaps"))
    sums = api.get(f"{path}/effects/sums")
    return RunView(run=shape, calls=(), gaps=gaps, effects=sums["items"], missing=missing)


def _call_pages(api: Api, run: Mapping[str, Any], *, as_json: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Yield the calls of a run, page by page."""
    # A table needs summaries only. Pages with bodies are small.
    query: dict[str, Any] = {"fields": "*", "limit": 20} if as_json else {"limit": CALLS_AT_ONCE}
    for calls in api.list_pages(f"/runs/{path_segment(str(run['id']))}/calls", **query):
        if run["parent"] is None:
            yield calls
        else:
            yield [call | {"origin": _answer_origin(api, call)} for call in calls]


CALLS_AT_ONCE: Final = 500
"""Calls of a run up to which a table is as wide as all of them need. The calls of a longer run are shown as they come."""


def _call_view(api: Api, call: dict[str, Any]) -> CallView:
    if api.get(f"/runs/{path_segment(call['run'])}")["parent"] is not None:
        call |= {"origin": _answer_origin(api, call)}
    effects = list(islice(_run_effects(api, call["run"], call["step"]), EFFECTS_SHOWN + 1))
    return CallView(call=call, executed=_executed_tool_call(api, call), effects=effects)


EFFECTS_SHOWN: Final = 50
"""Effects before a call that are shown with it."""


ORIGINS: Final[Mapping[str, str]] = {"replayed": "recorded", "edited": "edited", "live": "live", "miss": "refused"}
"""The words of the `Playhead` response header, and what `show` says for them."""


def _answer_origin(api: Api, call: Mapping[str, Any]) -> str:
    """Where a fork's answer comes from: the recording, an override, or the live API; or Playhead refused the request."""
    response_headers = api.get(f"/exchanges/{path_segment(call['exchanges'][-1])}")["response_headers"] or ()
    mark = next((value for name, value in response_headers if name.lower() == "playhead"), "live")
    return ORIGINS.get(mark.partition(";")[0], "live")


def _executed_tool_call(api: Api, call: Mapping[str, Any]) -> dict[str, Any] | None:
    if not call["executes"]:
        return None
    try:
        requested = api.get(f"/calls/{path_segment(call['executes']['call'])}")["tool_calls"] or ()
    except NotFound:
        return None
    return next((tool for tool in requested if tool["id"] == call["executes"]["tool_call"]), None)


def _print_call(view: CallView, *, as_json: bool) -> None:
    if as_json:
        print_json(view.call)
        return
    show_call(view.call, view.executed)
    if view.effects:
        click.echo(click.style("\neffects since the call before", bold=True))
        for effect in view.effects[:EFFECTS_SHOWN]:
            show_effect(effect)
        if len(view.effects) > EFFECTS_SHOWN:
            click.echo(f"  and more: {next_command(f'show {view.call["run"]} {view.call["step"]} --effects')}")
    for part in ("request", "answer"):
        click.echo(click.style(f"\n{part}", bold=True))
        print_json(view.call[part])


def _get_call(api: Api, call: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(f"/calls/{path_segment(call)}")
    except NotFound as error:
        raise missing_run_failure(call, "run and no call") from error
    return found


def _call_at_step(api: Api, run: str, step: int) -> dict[str, Any]:
    last = 0
    try:
        incomplete_reason(api, run)
        for call in api.list_items(f"/runs/{path_segment(run)}/calls", limit=500):
            if call["step"] == step:
                return _get_call(api, call["id"])
            last = max(last, call["step"])
    except NotFound as error:
        raise missing_run_failure(run) from error
    raise Failure(f"run {run} has no step {step}: its last step is {last}; `playhead show {run}` lists them")


COMMANDS = (show_command,)
