"""Parse what a person searches for: words, `"a phrase"`, `-word`, `-"a phrase"`, `prefix*` and `OR`.

All words must occur, in one text. Anything else, such as punctuation, only divides words: what is written without spaces
(`refund_order`, `/orders/17`) is searched for as a phrase.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from store.search.words import find_words

MOST_WORDS: Final = 50

_HANGUL_END: Final = re.compile("[\uac00-\ud7a3]$")

_PART: Final = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')


class InvalidQuery(ValueError):
    """Nothing can be searched for by this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """Words that follow one another."""

    words: tuple[str, ...]
    is_prefix: bool = False
    """Whether the last word may go on."""

    is_excluded: bool = False

    def as_tsquery(self) -> str:
        """As PostgreSQL reads a tsquery. Words are letters and digits, so nothing is escaped."""
        phrase = f"({' <-> '.join(self._operands())})"
        return f"!{phrase}" if self.is_excluded else phrase

    def as_words(self) -> str:
        """As PostgreSQL reads a tsquery: the words in any order."""
        return f"({' & '.join(self._operands())})"

    def _operands(self) -> Sequence[str]:
        last = f"'{self.words[-1]}'" + (":*" if self.is_prefix else "")
        return (*(f"'{word}'" for word in self.words[:-1]), last)


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """Alternatives, of which one must fit with all its phrases."""

    alternatives: tuple[tuple[Phrase, ...], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text. Raises `InvalidQuery`."""
        alternatives: list[list[Phrase]] = [[]]
        for sign, quoted, bare in _PART.findall(text):
            if bare == "OR" and not sign:
                alternatives.append([])
            elif phrase := _phrase(quoted or bare, is_excluded=bool(sign), may_go_on=bool(bare)):
                alternatives[-1].append(phrase)
        found = [tuple(phrases) for phrases in alternatives if phrases]
        if not found:
            raise InvalidQuery(f"q={text[:80]!r} has no letter or digit to search for: write a word")
        if any(all(phrase.is_excluded for phrase in phrases) for phrases in found):
            raise InvalidQuery(f"q={text[:80]!r} only says what must not occur: add a word that must")
        if sum(len(phrase.words) for phrases in found for phrase in phrases) > MOST_WORDS:
            raise InvalidQuery(f"q has more than {MOST_WORDS} words: search for fewer")
        return cls(tuple(found))

    def as_tsquery(self) -> str:
        """As PostgreSQL reads a tsquery."""
        return " | ".join(f"({' & '.join(phrase.as_tsquery() for phrase in phrases)})" for phrases in self.alternatives)

    def as_group_tsquery(self) -> str:
        """As PostgreSQL reads a tsquery that finds the groups in which a text may fit: the words that must occur, in any order."""
        return " | ".join(
            f"({' & '.join(phrase.as_words() for phrase in phrases if not phrase.is_excluded)})"
            for phrases in self.alternatives
        )

    @property
    def phrases(self) -> Sequence[Phrase]:
        """The phrases that may occur in what is found."""
        return [phrase for phrases in self.alternatives for phrase in phrases if not phrase.is_excluded]


def _phrase(text: str, *, is_excluded: bool, may_go_on: bool) -> Phrase | None:
    words = [word for word in find_words(text) if word.text]
    # Korean writes particles and endings without a space behind a word, so hardly any text has the word alone.
    is_prefix = may_go_on and (text.endswith("*") or bool(words and _HANGUL_END.search(words[-1].text)))
    # A script without spaces ends with a single character, which is the beginning of a pair where the text goes on.
    if len(words) > 1 and words[-2].end == words[-1].end:
        words.pop()
    elif len(words) == 1 and len(words[0].text) == 1 and not words[0].text.isascii():
        is_prefix = True
    if not words:
        return None
    return Phrase(words=tuple(word.text for word in words), is_prefix=is_prefix, is_excluded=is_excluded)
