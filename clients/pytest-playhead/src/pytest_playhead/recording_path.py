"""Name the recording of a test, after its node id, in a folder next to its module."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

_MAX_NAME = 100


def recording_path(module: Path, node: str, file: str | None) -> Path:
    """The recording of a test: `recordings/MODULE/NODE.jsonl` next to its module, or the file that its mark names."""
    if file is not None:
        return module.parent / file
    return module.parent / "recordings" / module.stem / f"{file_name(node)}.jsonl"


def file_name(node: str) -> str:
    """The part of a node id after the module, as a file name. A digest keeps changed or shortened names distinct."""
    # "::" separates only classes and functions; a parameter may contain it as well.
    function, bracket, parameters = node.partition("[")
    plain = f"{function.replace('::', '.')}{bracket}{parameters}"
    name = re.sub(r"[^A-Za-z0-9_.\[\]-]+", "-", plain)
    if name == plain and len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME].rstrip('-.')}-{hashlib.sha256(node.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def relative_node_id(node: str, root: Path, directory: Path) -> str:
    """A node id relative to a directory, as one types it there."""
    file, parts, rest = node.partition("::")
    return f"{relative_path(root / file, directory)}{parts}{rest}"


def relative_path(path: Path, directory: Path) -> str:
    """A path relative to a directory, or absolute if it is outside."""
    near = os.path.relpath(path, directory)
    return str(path) if near.startswith("..") else near
