"""Authorize tests at the REST API of a Playhead that they started, with the token from its ready line."""

from pathlib import Path

_FILES: dict[str, Path] = {}
"""The token file of each API, by its address."""


def ready_words(line: str) -> dict[str, str]:
    """Return the fields of a ready line; from then on `authorization` knows that API."""
    words = dict(word.split("=", 1) for word in line.split()[1:])
    if "api" in words:
        _FILES[words["api"]] = Path(words["token"])
    return words


def authorization(api: str) -> dict[str, str]:
    """Return the header that this API requires."""
    return {"authorization": f"Bearer {_FILES[api].read_text().strip()}"}
