"""Where the recording of a test lies: beside it, by its node id."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

_LONGEST = 100


def recording(module: Path, node: str, named: str | None) -> Path:
    """The file of a test: `recordings/MODULE/NODE.jsonl` beside its module, or what its mark names from there."""
    if named is not None:
        return module.parent / named
    return module.parent / "recordings" / module.stem / f"{legal(node)}.jsonl"


def legal(node: str) -> str:
    """What follows the module in a node id, as a file's name: with a digest where that would not tell it from others."""
    # Only classes and functions are parted by "::"; a parameter may hold it too.
    function, bracket, parameters = node.partition("[")
    plain = f"{function.replace('::', '.')}{bracket}{parameters}"
    name = re.sub(r"[^A-Za-z0-9_.\[\]-]+", "-", plain)
    if name == plain and len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rstrip('-.')}-{hashlib.sha256(node.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def typed(node: str, root: Path, directory: Path) -> str:
    """A node id as a person types it who stands in a directory."""
    file, parts, rest = node.partition("::")
    return f"{shown(root / file, directory)}{parts}{rest}"


def shown(path: Path, directory: Path) -> str:
    """The file for a person who stands in a directory."""
    near = os.path.relpath(path, directory)
    return str(path) if near.startswith("..") else near
