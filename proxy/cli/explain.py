"""The commands that explain: the key of a call (explain), and what a replay missed (why)."""

import json
import re
from pathlib import Path
from typing import Any

import click

from calls.keys.explain import explain_key
from calls.keys.key import make_key
from calls.model import Body, Request
from calls.project_runs import full_run_name
from proxy.cli.common import as_json, print_json, query_store, settings_from_flags, user_profiles, with_settings
from proxy.errors import Failure
from proxy.processes.store_client import Api, NotFound, path_segment
from proxy.run_names import missing_run_failure
from proxy.terminal.text import print_table, printable, shorten
from replay.misses.miss import miss_page
from replay.misses.why import explanation_lines
from store.datadir import DataDir, DataDirError, open_data_dir


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Failure(f"cannot read the request in {file}: {error.strerror}; name a file that can be read") from error


@click.command("explain", short_help="Show what went into a key, what was left out, and why.")
@with_settings
@as_json
@click.option(
    "--request", "file", type=click.Path(path_type=Path), metavar="FILE", help="A file with an HTTP request as text."
)
@click.argument("call", metavar="[CALL]", required=False)
def explain_command(call: str | None, file: Path | None, as_json: bool, **flags: Any) -> None:
    """Show what went into the key of a recorded CALL, or of the request in FILE, and what was left out and by which rule.

    \b
    FILE holds a request as on the wire, but with a complete URL:
        POST https://api.openai.com/v1/chat/completions HTTP/1.1
        content-type: application/json
    \b
        {"model": "gpt-4o", "messages": []}
    """
    if (call is None) == (file is None):
        raise click.UsageError("Name a CALL, or a file with --request.")
    if file is not None:
        found = explain_key(
            make_key(parse_request(_read_file(file), str(file)), user_profiles(settings_from_flags(**flags)))
        ).as_json()
    elif "/" in str(call):
        raise missing_run_failure(str(call), "call")
    else:
        found = query_store(flags, lambda api: _fetch_explanation(api, str(call)))
    if as_json:
        print_json(found)
        return
    _show_key(found)


def _fetch_explanation(api: Api, call: str) -> Any:
    try:
        return api.get(f"/calls/{path_segment(call)}/explain")
    except NotFound as error:
        raise missing_run_failure(call, "call") from error


def _show_key(key: Any) -> None:
    click.echo(f"key      {key['key']}")
    click.echo(f"strict   {key['strict']}")
    click.echo(f"profile  {key['profile']}   dialect {key['dialect']}   operation {key['operation']}\n")
    rows = [(row["fate"], row["pointer"], row["rule"], shorten(row["value"] or "", 60)) for row in key["rows"]]
    print_table(("FATE", "WHERE", "RULE", "VALUE"), rows)
    for warning in key["warnings"]:
        click.echo(f"playhead: {printable(warning)}", err=True)


def parse_request(text: bytes, name: str) -> Request:
    """Parse a request: its request line with a complete URL, headers, an empty line, the body."""
    head, _, body = text.replace(b"\r\n", b"\n", text.count(b"\n")).partition(b"\n\n")
    line, *rest = head.decode("latin-1").split("\n")
    method, _, target = line.strip().partition(" ")
    url = target.removesuffix(" HTTP/1.1").strip()
    headers = [tuple(part.strip() for part in field.split(":", 1)) for field in rest if field.strip()]
    if not url.startswith(("http://", "https://")) or any(len(pair) != 2 for pair in headers):
        raise Failure(
            f"{name} is not an HTTP request: begin it with METHOD https://host/path HTTP/1.1, then `name: value` lines"
        )
    pairs = tuple((pair[0], pair[1]) for pair in headers if len(pair) == 2)
    return Request(method=method, url=url, headers=pairs, body=Body(data=body.rstrip(b"\n"), size=len(body)))


_MISS = re.compile(r"(?:urn:playhead:replay:)?(?P<replay>.+?):(?P<number>\d+)")


@click.command("why", short_help="Explain what a replay missed, and how to fix it.")
@with_settings
@as_json
@click.argument("which", required=False, metavar="[MISS|REPLAY]")
def why_command(which: str | None, as_json: bool, **flags: Any) -> None:
    """Explain what a replay missed: each request beside the nearest recorded call, and the command or rule that fixes it.

    Without an argument, explains the last `playhead replay` on this data directory. MISS is the number of a request in it, or the
    `instance` of a miss as the agent saw it; REPLAY is the id of a replay, or a file that --report wrote.

    \b
        playhead why
        playhead why 3
        playhead why report.json --json
    """
    replay, number = _parse_miss_or_replay(which)
    report, is_stored = _load_report(flags, replay)
    _link_misses(report, flags, is_stored=is_stored)
    if as_json:
        misses = [one for one in report["misses"] if number in (None, one["number"])]
        print_json(misses if number is not None else report)
        return
    for line in explanation_lines(report, number):
        click.echo(printable(line))


def _parse_miss_or_replay(which: str | None) -> tuple[str | None, int | None]:
    """Parse the argument into a replay and the number of a request."""
    if which is None:
        return None, None
    if which.isdecimal():
        return None, int(which)
    found = _MISS.fullmatch(which)
    return (found["replay"], int(found["number"])) if found else (which, None)


def _link_misses(report: dict[str, Any], flags: dict[str, Any], *, is_stored: bool) -> None:
    """Link each miss to the page of the `up` that runs now: the one that ran then may have ended, or have other ports."""
    settings = settings_from_flags(**flags)
    data = DataDir(settings.data)
    note = data.read_notice("up") if is_stored and data.up_lock.is_held() else None
    base = (note or {}).get("page")
    link = miss_page(base, full_run_name(settings.project, report["id"])) if base else None
    for one in (*report["misses"], *filter(None, [report.get("first_divergence")])):
        if "page" in one:
            one["page"] = link and f"{link}{'&' if '?' in link else '?'}request={one['number']}"


def _load_report(flags: dict[str, Any], replay: str | None) -> tuple[dict[str, Any], bool]:
    """Load the report of a replay from the data directory, a file or the store server. Raise Failure if there is none.

    Also return whether the store server of this data directory has it, in the project of this command.
    """
    settings = settings_from_flags(**flags)
    directory = DataDir(settings.data.absolute()).replays
    try:
        if directory.exists():
            # It says what is wrong with the directory; where there is none, it would make one.
            open_data_dir(settings.data)
    except DataDirError as error:
        raise Failure(str(error)) from error
    if replay is None:
        reports = sorted(directory.glob("replay-*.json"))
        if not reports:
            raise Failure("nothing was replayed here yet; start with: playhead replay last -- CMD")
        return _stored_report(reports[-1], settings.project)
    if (path := directory / f"{replay}.json").is_file():
        return _stored_report(path, settings.project)
    if (path := Path(replay)).is_file():
        return _read_report(path), False
    return query_store(flags, lambda api: _fetch_report(api, replay)), True


def _stored_report(path: Path, project: str) -> tuple[dict[str, Any], bool]:
    report = _read_report(path)
    return report, report.get("project") == project


def _fetch_report(api: Api, replay: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = api.get(f"/replays/{path_segment(replay)}")
    except NotFound as error:
        raise Failure(
            f"there is no replay {replay} here, and no report file of that name; `playhead why` explains the last replay"
        ) from error
    if "misses" not in report:
        raise Failure(f"replay {replay} has no report: it has answered no request yet")
    return report


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(f"cannot read the report {path}: {error}; name a file that --report wrote") from error
    if not isinstance(report, dict) or "misses" not in report:
        raise Failure(f"{path} is not the report of a replay; name a file that --report wrote")
    return report


COMMANDS = (explain_command, why_command)
