"""Load the files of the page, each with its media type, under one digest of all."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from store.page.squeeze import squeeze_script

DIRECTORY: Final = Path(__file__).with_name("assets")

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The files that are served, by suffix."""

_BASE: Final = b"/assets/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """The files by their paths below `assets/`."""

    files: Mapping[str, Asset]
    version: str
    """A digest of all files. It is part of their addresses, so that browsers keep them until one changes."""

    @property
    def index(self) -> bytes:
        """The document, which loads this version of the other files."""
        return self.files["index.html"].content.replace(_BASE, _BASE + self.version.encode() + b"/")

    def index_with(self, views: Iterable[str]) -> bytes:
        """Return the document, which also loads these views at once: its scripts would ask for them later."""
        links = "".join(f'<link rel="modulepreload" href="/assets/{self.version}/views/{view}.js">\n' for view in views)
        return self.index.replace(b"<script type=", links.encode() + b"<script type=", 1)


@cache
def load_assets(directory: Path = DIRECTORY) -> Assets:
    """Read all files of the page."""
    paths = sorted(path for path in directory.rglob("*") if path.suffix in MEDIA_TYPES)
    files = {
        path.relative_to(directory).as_posix(): Asset(content=_read_file(path), media_type=MEDIA_TYPES[path.suffix])
        for path in paths
    }
    digest = hashlib.sha256()
    for name, asset in files.items():
        digest.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
    return Assets(files=files, version=digest.hexdigest()[:16])


def _read_file(path: Path) -> bytes:
    """Read a file; of our own scripts what a browser needs."""
    content = path.read_bytes()
    is_own_script = path.suffix == ".js" and path.parent.name != "vendor"
    return squeeze_script(content.decode()).encode() if is_own_script else content
