"""What a running `playhead up` tells of a run, over its REST API."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

DEFAULT = "http://127.0.0.1:8081"
PATIENCE = 30.0


class Unreachable(RuntimeError):
    """The API cannot be asked; the message says why and what to do."""


def calls_of(run: str) -> list[dict[str, Any]]:
    """All calls of a run, once all that was acknowledged is in. Raises Unreachable."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        # Whole calls, not the summaries of a list: assertions look at texts and arguments. So pages are small.
        query = {"settled": "true", "limit": "50", "fields": "*", **({"cursor": cursor} if cursor else {})}
        page = _get(f"/v1/runs/{quote(run, safe='')}/calls?{urlencode(query)}")
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def _get(path: str) -> dict[str, Any]:
    base = os.environ.get("PLAYHEAD_API", DEFAULT).rstrip("/")
    request = urllib.request.Request(f"{base}{path}")  # noqa: S310 - the user's own setting
    if token := _token():
        request.add_header("Authorization", f"Bearer {token}")
    # Never through a proxy: least of all through the one that records.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            told: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"{base}{path} answered {error.code}: {_detail(error.read())}") from None
    except OSError as error:
        raise Unreachable(
            f"no Playhead answers at {base} ({error}); start one with `playhead up`, or set PLAYHEAD_API"
        ) from None
    return told


def _token() -> str | None:
    """What the API asks for: as it is set, else from the file that `playhead record` and `playhead env` name, else from the
    `playhead` command. None where none of them knows: the API then says what to do."""
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
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
