"""Complete the names of runs in a shell. Nothing is started, made or waited for: what cannot be had at once is left out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from proxy.errors import Failure
from proxy.run_names import invalid_name_reason
from proxy.settings import load_settings
from store.datadir import DataDir
from store.private_file import NotPrivate, read_private

MAX_OFFERED: Final = 200
"""Runs that are offered: the newest."""

TIMEOUT: Final = 1.0
"""Seconds that the store server may take to list runs."""


def complete_run(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer `last` and the newest runs that begin like this."""
    names = {"last": "the newest run", **_known_runs(context.params)}
    return [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]


def complete_recording(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Offer runs and files: a recording is either."""
    return [*complete_run(context, parameter, incomplete), CompletionItem(incomplete, type="file")]


def complete_command(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Offer files for the words of a command that Playhead runs."""
    return [CompletionItem(incomplete, type="file")]


def _known_runs(options: dict[str, Any]) -> dict[str, str]:
    """The newest runs of the data directory, each with what is known of it."""
    data = options.get("data")
    try:
        settings = load_settings({"data": data and Path(data).expanduser()}, options.get("config"))
        directory = DataDir(settings.data.absolute())
        found = {**dict(_runs_in_store(directory)), **dict.fromkeys(_claimed_runs(directory), "")}
    except (Failure, OSError, NotPrivate):
        return {}
    # Agents name runs as they like. Only names that a shell takes for plain words are put on a command line.
    return {name: about for name, about in found.items() if invalid_name_reason(name) is None}


def _runs_in_store(directory: DataDir) -> Iterator[tuple[str, str]]:
    """The runs that a running store server lists; none where no store server runs, or it does not answer at once."""
    note = directory.read_notice("store") if directory.store_lock.is_held() else None
    if note is None or not directory.api_token_file.exists():
        return
    token = read_private(directory.api_token_file, "the API token", "delete it").decode("ascii", "replace").strip()
    # Commands import this module, and complete nothing.
    import urllib.request

    request = urllib.request.Request(  # noqa: S310 # the URL is the store server's own, from the data directory
        f"{note['api']}/v1/runs?limit={MAX_OFFERED}", headers={"authorization": f"Bearer {token}"}
    )
    # The environment's proxies are for agents.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            listed = json.load(answer)["items"]
    except (ValueError, KeyError):
        return
    for run in listed:
        yield str(run["id"]), f"{str(run['started_at'])[:16].replace('T', ' ')}, {run['calls']} calls"


def _claimed_runs(directory: DataDir) -> list[str]:
    """The runs that `record`, `fork` and `resume` have begun, newest first: each has a claim file."""
    claims = sorted(directory.claims.glob("*.claim"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [file.name.removesuffix(".claim") for file in claims[:MAX_OFFERED]]
