"""Join a value whose pieces each have a path, as Gemini streams the arguments of a function."""

import re
from itertools import pairwise
from typing import Final

from calls.codec.lenient_json import as_text
from calls.model import Json

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_DEEPEST: Final = 64


class PlacedObject:
    """An object that is built from pieces at paths (RFC 9535, of which only names and indexes occur)."""

    def __init__(self) -> None:
        self._root: dict[str, Json] = {}

    def put_piece(self, path: str, piece: Json) -> None:
        """Add a piece at its path; a text is appended to the text there. A path that leads nowhere is ignored."""
        steps = [
            int(found[2]) if found[2] else found[1] or found[3] or found[4] or "" for found in _STEP.finditer(path)
        ]
        if not steps or len(steps) > _DEEPEST:
            return
        place: Json = self._root
        for step, following in pairwise(steps):
            place = _descend(place, step, [] if isinstance(following, int) else {})
        _set_piece(place, steps[-1], piece)

    def build(self) -> dict[str, Json]:
        """The object so far."""
        return self._root


def _descend(place: Json, step: str | int, empty: Json) -> Json:
    below: Json = None
    match place, step:
        case dict(), str():
            below = place.setdefault(step, empty)
        case list(), int() if step < len(place):
            below = place[step]
        case list(), int() if step == len(place):
            place.append(empty)
            below = empty
        case _:
            pass
    return below


def _set_piece(place: Json, step: str | int, piece: Json) -> None:
    match place, step:
        case dict(), str():
            place[step] = _append_piece(place.get(step), piece)
        case list(), int() if step < len(place):
            place[step] = _append_piece(place[step], piece)
        case list(), int() if step == len(place):
            place.append(piece)
        case _:
            pass


def _append_piece(before: Json, piece: Json) -> Json:
    return as_text(before) + piece if isinstance(piece, str) else piece
