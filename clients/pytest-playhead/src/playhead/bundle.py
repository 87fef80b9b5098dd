"""A run from its file, without Playhead: JSON Lines, of which each is sealed by a digest of itself.

A file tells less than the API: no prices, and no parameters. Its format is Playhead's docs/trace-format.md.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from playhead.runs import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

FORMAT = 1
_SEAL = b',"check":"'


class BadBundle(ValueError):
    """The file is no bundle, or is not as it was written."""


def load(file: str | os.PathLike[str]) -> Run:
    """The run in a bundle. Raises BadBundle and OSError."""
    lines = Path(file).read_bytes().splitlines(keepends=True)
    head, *rest = [_opened(file, number, line) for number, line in enumerate(lines, 1)] or [{}]
    if head.get("playhead") != "bundle":
        raise BadBundle(f"{file} is no bundle of Playhead's; make one: playhead export RUN -o FILE")
    if head.get("format") != FORMAT:
        raise BadBundle(f"{file} has format {head.get('format')}, this reads {FORMAT}; use a later pytest-playhead")
    if not rest or not rest[-1].get("end"):
        raise BadBundle(f"{file} breaks off; export the run again")
    told = list(_calls(rest))
    return Run(str(head["run"]["id"]), lambda: told)


def _opened(file: str | os.PathLike[str], number: int, line: bytes) -> dict[str, Any]:
    content, seal, check = line.rpartition(_SEAL)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if not seal or check != f'{digest}"}}\n'.encode():
        raise BadBundle(f"line {number} of {file} is not as it was written; export the run again")
    value: dict[str, Any] = json.loads(content + b"}")
    return value


def _calls(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    exchanges = (line for line in lines if "exchange" in line)
    for step, line in enumerate(exchanges, 1):
        exchange, call = line["exchange"], line.get("call") or {}
        url = urlsplit(exchange["request"]["url"])
        yield {
            **call,
            "id": exchange["id"],
            "step": step,
            "run": exchange.get("run"),
            "actor": exchange.get("actor"),
            "host": url.hostname or "",
            "method": exchange["request"]["method"],
            "path": url.path or "/",
            "status": (exchange.get("response") or {}).get("status"),
            "outcome": exchange.get("outcome"),
            "started_at": exchange.get("started_at"),
            "cost_usd": None,
        }
