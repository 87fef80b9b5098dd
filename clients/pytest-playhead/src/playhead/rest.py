"""Query a running `playhead up` over its REST API."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

DEFAULT_API = "http://127.0.0.1:8081"
TIMEOUT = 30.0


class Unreachable(RuntimeError):
    """The API cannot be reached; the message says why and what to do."""


def fetch_calls(run: str) -> list[dict[str, Any]]:
    """Fetch all calls of a run, after everything acknowledged has been stored. Raises Unreachable."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        # Assertions need texts and arguments, so fetch whole calls, in small pages.
        query = {"settled": "true", "limit": "50", "fields": "*", **({"cursor": cursor} if cursor else {})}
        page = _fetch(f"/v1/runs/{quote(run, safe='')}/calls?{urlencode(query)}")
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def _fetch(path: str) -> dict[str, Any]:
    base = os.environ.get("PLAYHEAD_API", DEFAULT_API).rstrip("/")
    request = urllib.request.Request(f"{base}{path}")  # noqa: S310 - the user's own setting
    if token := _api_token():
        request.add_header("Authorization", f"Bearer {token}")
    # Never use a proxy, least of all the one that records.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            page: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"{base}{path} answered {error.code}: {_detail(error.read())}") from None
    except OSError as error:
        raise Unreachable(
            f"cannot reach Playhead at {base} ({error}); start it with `playhead up`, or set PLAYHEAD_API"
        ) from None
    return page


def _api_token() -> str | None:
    """The API token: from the environment, from the file that `playhead record` and `playhead env` name, or from the
    `playhead` command. None if none of them has it; the API then says what to do."""
    if token := os.environ.get("PLAYHEAD_API_TOKEN"):
        return token
    if file := os.environ.get("PLAYHEAD_API_TOKEN_FILE"):
        try:
            with open(file, encoding="utf-8") as opened:
                return opened.read().strip()
        except OSError as error:
            raise Unreachable(
                f"cannot read the API token in {file} ({error.strerror}); run as the user that runs `playhead up`, or set"
                " PLAYHEAD_API_TOKEN to what `playhead token` prints there"
            ) from None
    command = [*shlex.split(os.environ.get("PLAYHEAD_COMMAND", "playhead")), "token"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return result.stdout.decode("utf-8", "replace").strip() if result.returncode == 0 else None


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
