"""Shorten texts to a budget, and say how long they were. Pure."""

from dataclasses import dataclass
from typing import Any, Final

from calls.codec.json import dumps
from calls.model import Json

LONGEST_TEXT: Final = 4000
"""Characters of one text."""

MOST_CHARACTERS: Final = 1_000_000
"""Characters of one document."""


LONGEST_WHEN_SPENT: Final = 200


@dataclass(slots=True)
class TextBudget:
    """Shortens the texts of one document. Without `shows_texts`, only sizes are said: the reader may not see texts."""

    shows_texts: bool = True
    remaining: int = MOST_CHARACTERS
    longest: int = LONGEST_TEXT
    """Characters of one text."""

    @property
    def is_spent(self) -> bool:
        """Whether the document has enough."""
        return self.remaining <= 0

    def shorten(self, value: Json) -> dict[str, Any]:
        """Return a text, or the JSON of another value, cut; with its full size in characters."""
        text = value if isinstance(value, str) else dumps(value).decode()
        if not self.shows_texts:
            return {"text": None, "size": len(text), "cut": False}
        # What comes when the document is full is named, and not shown.
        short_text = text[: self.longest if not self.is_spent else LONGEST_WHEN_SPENT]
        self.remaining -= len(short_text)
        return {"text": short_text, "size": len(text), "cut": len(short_text) < len(text)}
