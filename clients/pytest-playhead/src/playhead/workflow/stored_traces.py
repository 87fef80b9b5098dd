"""Read the traces of workflows from a recorded run."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playhead.bundle import read_lines
from playhead.rest import fetch_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = "workflow.trace"
"""The kind of the effect that refers to a trace."""


def stored_traces(run: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each trace of a run: of a bundle, if there is a file of this name. Raises Unreachable and OSError."""
    data = Path(run).read_bytes() if Path(run).is_file() else fetch_bundle(os.fspath(run))
    for line in read_lines(os.fspath(run), data):
        batch = line.get("effects")
        if not isinstance(batch, dict):
            continue
        contents = {each["content"]: each["results"][0] for each in batch["items"] if each["kind"] == "content"}
        for each in batch["items"]:
            if each["kind"] == TRACE:
                yield each["args"]["name"], _as_text(contents[each["results"][0]])


def _as_text(content: Any) -> str:
    return base64.b64decode(content["$bytes"]).decode() if isinstance(content, dict) else str(content)
