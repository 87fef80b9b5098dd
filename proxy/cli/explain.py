"""What went into a key: of a recorded call, or of a request in a file."""

from pathlib import Path
from typing import Any

import click

from calls.keys.explain import explain
from calls.keys.key import keyed
from calls.model import Body, Request
from proxy.cli.common import as_json, asking, print_json, settings, with_settings
from proxy.cli.profiles import user_profiles
from proxy.errors import Failure
from proxy.processes.store_client import segment
from proxy.terminal.text import print_table, printable, shortened


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from error


@click.command("explain", short_help="Show what went into a key, what was left out, and why.")
@with_settings
@as_json
@click.option("--request", "file", type=click.Path(path_type=Path), metavar="FILE", help="An HTTP request, as text.")
@click.argument("call", metavar="[CALL]", required=False)
def explain_command(call: str | None, file: Path | None, as_json: bool, **flags: Any) -> None:
    """Show what went into the key of a recorded CALL, or of the request in FILE, and what was left out and by which rule.

    \b
    FILE holds a request as it stands on the wire, with a whole URL:
        POST https://api.openai.com/v1/chat/completions HTTP/1.1
        content-type: application/json
    \b
        {"model": "gpt-4o", "messages": []}
    """
    if (call is None) == (file is None):
        raise click.UsageError("Name a CALL, or a file with --request.")
    if file is not None:
        found = explain(keyed(request_in(_bytes(file), str(file)), user_profiles(settings(**flags)))).as_json()
    else:
        found = asking(flags, lambda api: api.get(f"/calls/{segment(str(call))}/explain"))
    if as_json:
        print_json(found)
        return
    _show_key(found)


def _show_key(found: Any) -> None:
    click.echo(f"key      {found['key']}")
    click.echo(f"strict   {found['strict']}")
    click.echo(f"profile  {found['profile']}   dialect {found['dialect']}   operation {found['operation']}\n")
    rows = [(row["fate"], row["pointer"], row["rule"], shortened(row["value"] or "", 60)) for row in found["rows"]]
    print_table(("FATE", "WHERE", "RULE", "VALUE"), rows)
    for warning in found["warnings"]:
        click.echo(f"playhead: {printable(warning)}", err=True)


def request_in(text: bytes, name: str) -> Request:
    """A request as it stands in a file: its line with a whole URL, headers, an empty line, the body."""
    head, _, body = text.replace(b"\r\n", b"\n", text.count(b"\n")).partition(b"\n\n")
    line, *rest = head.decode("latin-1").split("\n")
    method, _, target = line.strip().partition(" ")
    url = target.removesuffix(" HTTP/1.1").strip()
    headers = [tuple(part.strip() for part in field.split(":", 1)) for field in rest if field.strip()]
    if not url.startswith(("http://", "https://")) or any(len(pair) != 2 for pair in headers):
        raise Failure(
            f"{name} does not begin like a request: METHOD https://host/path HTTP/1.1, then name: value lines"
        )
    pairs = tuple((pair[0], pair[1]) for pair in headers if len(pair) == 2)
    return Request(method=method, url=url, headers=pairs, body=Body(data=body.rstrip(b"\n"), size=len(body)))


COMMANDS = (explain_command,)
