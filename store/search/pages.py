"""Cut what a search finds into pages that stay stable while texts are written.

The best texts cannot be known without reading all that fit, so texts are ranked in windows: the newest thousand, then the thousand
before. A cursor has the ends of its window and the rank of the last text that was shown; a text that is stored later is newer than the
first window, or appears in its place.
"""

import base64
import binascii
import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec

from store.query.pages import LAST_TIME, BadCursor


class TextPlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The place of a text among all of its project, the newest last."""

    day: dt.date
    started_at: int
    call: uuid.UUID
    hash: bytes


class FoundText(NamedTuple):
    """A text that fits."""

    run: str
    place: TextPlace
    role: str
    rank: float = 0.0
    text: str = ""
    """Its content; empty where texts are not ranked."""

    @property
    def order(self) -> tuple[float, TextPlace]:
        """By what it is sorted, the best last."""
        return self.rank, self.place


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of texts, and the cursor of the next one."""

    texts: list[FoundText]
    next: str | None


class SearchWindow(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins."""

    search: str
    """The digest of what was searched for."""

    top: TextPlace | None = None
    """The newest text of the window; None for the newest of all."""

    is_below: bool = False
    """Whether the window begins before `top`, without it."""

    bottom: TextPlace | None = None
    """The oldest text of the window; None where there is none before, or the window is still to be found."""

    rank: float | None = None
    place: TextPlace | None = None
    """The last text that was shown; None before the first page of the window."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that `str` returned. Raises `BadCursor`."""
        try:
            window = msgspec.json.decode(base64.b64decode(text, altchars=b"-_", validate=True), type=cls)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise BadCursor(f"invalid cursor {text[:80]!r}: request the first page, without a cursor") from error
        places = (window.top, window.bottom, window.place)
        if any(place is not None and not 0 <= place.started_at <= LAST_TIME for place in places):
            raise BadCursor(f"invalid cursor {text[:80]!r}: request the first page, without a cursor")
        return window

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    def rest(self, texts: Sequence[FoundText]) -> list[FoundText]:
        """Return the texts of the window that were not shown yet, the best first."""
        ranked = sorted(texts, key=lambda one: one.order, reverse=True)
        if self.rank is None or self.place is None:
            return ranked
        return [one for one in ranked if one.order < (self.rank, self.place)]

    def with_ends(self, texts: Sequence[FoundText], *, is_last: bool) -> "SearchWindow":
        """Return the window with its ends, so that what is stored later does not move them."""
        places = [one.place for one in texts]
        top, is_below = (self.top, self.is_below) if self.top or not places else (max(places), False)
        bottom = self.bottom or (None if is_last or not places else min(places))
        return SearchWindow(self.search, top, is_below, bottom, self.rank, self.place)

    def after(self, last: FoundText) -> "SearchWindow":
        """Return the rest of the window after a text."""
        return SearchWindow(self.search, self.top, self.is_below, self.bottom, last.rank, last.place)

    def before(self, texts: Sequence[FoundText]) -> "SearchWindow":
        """Return the window before this one."""
        return SearchWindow(self.search, self.bottom or min(one.place for one in texts), is_below=True)


def begin_window(text: str | None, digest: str) -> SearchWindow:
    """Parse a cursor, if there is one. Raises `BadCursor`, also for a cursor of another search."""
    if text is None:
        return SearchWindow(digest)
    window = SearchWindow.parse(text)
    if window.search != digest:
        raise BadCursor(
            "the cursor belongs to another search, or to the same one with other filters: give the words and the filters of the first"
            " page with every page, or request the first page, without a cursor"
        )
    return window
