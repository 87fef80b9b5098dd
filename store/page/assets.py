"""Load the files of the page, each with its media type, under one digest of all."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
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

_CODE: Final = tuple(Path(__file__).with_name(f"{name}.py") for name in ("squeeze", "short_names", "script_tokens"))
"""What makes the served scripts of the files."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file."""

    source: bytes
    media_type: str
    is_own_script: bool

    @cached_property
    def content(self) -> bytes:
        """What is served: of our own scripts what a browser needs, made when the file is first asked for."""
        return squeeze_script(self.source.decode()).encode() if self.is_own_script else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """The files by their paths below `assets/`."""

    files: Mapping[str, Asset]
    version: str
    """A digest of all files and of what makes the served ones of them. It is part of their addresses, so that browsers keep them until one changes."""

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
    files = {path.relative_to(directory).as_posix(): _read_file(path) for path in paths}
    digest = hashlib.sha256()
    for name, asset in files.items():
        digest.update(f"{name}\0{len(asset.source)}\0".encode() + asset.source)
    for code in _CODE:
        digest.update(code.read_bytes())
    return Assets(files=files, version=digest.hexdigest()[:16])


def _read_file(path: Path) -> Asset:
    is_own_script = path.suffix == ".js" and path.parent.name != "vendor"
    return Asset(source=path.read_bytes(), media_type=MEDIA_TYPES[path.suffix], is_own_script=is_own_script)
