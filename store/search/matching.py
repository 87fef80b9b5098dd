"""Find out whether a text fits a query, as PostgreSQL does by a tsvector of all its words.

Groups of texts have no places of words. So the texts of a group that has the words are read one by one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from store.search.query import Phrase, SearchQuery
from store.search.words import LONGEST_WORD, fold_text, is_normalized, space_words, word_list

LAST_POSITION: Final = 16_383
"""The highest position that a tsvector holds."""

MOST_POSITIONS: Final = 256
"""The positions of one word that a tsvector holds."""


class Places(NamedTuple):
    """Where the words of a query are in a text: what PostgreSQL ranks it by."""

    vector: str
    """As PostgreSQL reads a tsvector."""

    length: int
    """The number of words of the text, as far as PostgreSQL counts them."""


class TextMatcher:
    """Tells the texts that fit a query."""

    def __init__(self, query: SearchQuery) -> None:
        self._alternatives = query.alternatives
        phrases = [phrase for alternative in query.alternatives for phrase in alternative]
        self._words = {word for phrase in phrases for word in phrase.words}
        self._prefixes = tuple(phrase.words[-1] for phrase in phrases if phrase.is_prefix)
        required = [[one for one in alternative if not one.is_excluded] for alternative in query.alternatives]
        self._required = [[word for phrase in some for word in phrase.words] for some in required]
        self._tests = [
            [(_spaced_test(phrase), phrase.is_excluded) for phrase in alternative] for alternative in query.alternatives
        ]

    def is_fitting(self, text: str) -> bool:
        """Whether a text fits."""
        if text.isascii():
            # Most texts. A search reads ten thousand of them.
            spaced = space_words(text)
            return any(all(test(spaced) != is_excluded for test, is_excluded in tests) for tests in self._tests)
        if is_normalized(text) and not self._may_fit(fold_text(text)):
            return False
        words = word_list(text)
        return any(_fit(phrases, words) for phrases in self._alternatives)

    def _may_fit(self, folded: str) -> bool:
        """Whether all words that must occur may be in a text."""
        return any(all(word in folded for word in words) for words in self._required)

    def places(self, text: str) -> Places:
        """Return the places of the query's words among those of a text."""
        words = word_list(text)
        found = [(word, list(_find_all(word, words))) for word in self._words if word in words]
        if self._prefixes:
            beginnings = {word for word in words if word.startswith(self._prefixes)}
            found += [(word, list(_find_all(word, words))) for word in beginnings - self._words]
        vector = " ".join(
            [f"'{word}':{','.join([str(min(at + 1, LAST_POSITION)) for at in places])}" for word, places in found]
        )
        return Places(vector, _count_positions(words))


def _count_positions(words: list[str]) -> int:
    """Return how many positions a tsvector of these words has."""
    # In most texts no word can occur so often. Sets take half of the time of counting.
    if len(words) <= MOST_POSITIONS or len(words) - len(set(words)) < MOST_POSITIONS:
        return len(words) - words.count("")
    return sum(min(count, MOST_POSITIONS) for word, count in Counter(words).items() if word)


def _spaced_test(phrase: Phrase) -> Callable[[str], bool]:
    """Return a function that tells whether a phrase occurs in an ASCII text, as `space_words` has it."""
    *earlier, last = phrase.words
    if not earlier:
        word = f" {last}" if _may_go_on(phrase) else f" {last} "
        return lambda spaced: word in spaced
    # Of a longer word, its beginning counts.
    words = [re.escape(word) + ("[^ ]*" if len(word) == LONGEST_WORD else "") for word in earlier]
    pattern = re.compile(f" {' +'.join(words)} +{re.escape(last)}{'' if _may_go_on(phrase) else ' '}")
    return lambda spaced: pattern.search(spaced) is not None


def _may_go_on(phrase: Phrase) -> bool:
    return phrase.is_prefix or len(phrase.words[-1]) == LONGEST_WORD


def _fit(phrases: Sequence[Phrase], words: list[str]) -> bool:
    """Whether all phrases occur that must, and none that must not."""
    return all(_occurs(phrase, words) != phrase.is_excluded for phrase in phrases)


def _occurs(phrase: Phrase, words: list[str]) -> bool:
    *earlier, last = phrase.words
    if not earlier:
        return last in words or (phrase.is_prefix and any(word.startswith(last) for word in words))
    return any(
        word == last or (phrase.is_prefix and word.startswith(last))
        for at in _find_all(earlier[0], words)
        if words[at : at + len(earlier)] == earlier
        for word in words[at + len(earlier) : at + len(phrase.words)]
    )


def _find_all(word: str, words: list[str]) -> Iterator[int]:
    at = -1
    for _ in range(words.count(word)):
        at = words.index(word, at + 1)
        yield at
