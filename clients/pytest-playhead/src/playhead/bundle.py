"""Read a run from a bundle, without Playhead: JSON Lines, each of which ends with its own digest.

A bundle has less than the API: no prices and no parameters. Its format is described in Playhead's docs/trace-format.md.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from playhead.checks import check_file
from playhead.runs import Run

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

FORMATS = (1, 2)
"""Version 2 has effects as well (docs/effects.md), which are not read here."""

_SEAL = b',"check":"'


class BadBundle(ValueError):
    """The file is not a bundle, or is damaged."""


def load(file: str | os.PathLike[str]) -> Run:
    """Read the run in a bundle. Raises BadBundle and OSError."""
    head, *rest = read_lines(file, Path(file).read_bytes())
    calls = list(_call_entries(rest))
    captured = rest[-1].get("envelope")
    return Run(str(head["run"]["id"]), lambda: calls, lambda spec: check_file(file, spec), lambda: captured)


def read_lines(file: str | os.PathLike[str], data: bytes) -> list[dict[str, Any]]:
    """Return the lines of a bundle, which the messages call `file`. Raises BadBundle."""
    lines = data.splitlines(keepends=True)
    head, *rest = [_read_line(file, number, line) for number, line in enumerate(lines, 1)] or [{}]
    if head.get("playhead") != "bundle":
        raise BadBundle(f"{file} is not a Playhead bundle; make one: playhead export RUN -o FILE")
    if head.get("format") not in FORMATS:
        raise BadBundle(
            f"{file} has format {head.get('format')}, but this version reads 1 and 2; update pytest-playhead"
        )
    if not rest or not rest[-1].get("end"):
        raise BadBundle(f"{file} is truncated; export the run again")
    return [head, *rest]


def _read_line(file: str | os.PathLike[str], number: int, line: bytes) -> dict[str, Any]:
    content, seal, check = line.rpartition(_SEAL)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if not seal or check != f'{digest}"}}\n'.encode():
        raise BadBundle(f"line {number} of {file} is damaged; export the run again")
    value: dict[str, Any] = json.loads(content + b"}")
    return value


def _call_entries(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
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
