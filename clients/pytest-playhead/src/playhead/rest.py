"""What a running `playhead up` tells of a run, over its REST API."""

from __future__ import annotations

import json
import os
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
        query = {"settled": "true", "limit": "500", **({"cursor": cursor} if cursor else {})}
        page = _get(f"/v1/runs/{quote(run, safe='')}/calls?{urlencode(query)}")
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def _get(path: str) -> dict[str, Any]:
    base = os.environ.get("PLAYHEAD_API", DEFAULT).rstrip("/")
    token = os.environ.get("PLAYHEAD_TOKEN")
    request = urllib.request.Request(f"{base}{path}")  # noqa: S310 - the user's own setting
    if token:
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


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
