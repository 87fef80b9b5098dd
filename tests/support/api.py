"""How tests ask the REST API of a Playhead that they started: with the token that its ready line names."""

from pathlib import Path

_FILES: dict[str, Path] = {}
"""Where the token lies, by the address of the API."""


def ready_words(line: str) -> dict[str, str]:
    """What a ready line says; from then on `authorization` knows that API."""
    words = dict(word.split("=", 1) for word in line.split()[1:])
    if "api" in words:
        _FILES[words["api"]] = Path(words["token"])
    return words


def authorization(api: str) -> dict[str, str]:
    """The header with which this API answers."""
    return {"authorization": f"Bearer {_FILES[api].read_text().strip()}"}
