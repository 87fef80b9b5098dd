"""The part of a text that shows what was found, as plain text with the places of the words in it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from store.search.query import Phrase
from store.search.words import Word, find_words

LENGTH: Final = 200
"""Characters of a snippet, about."""

BEFORE: Final = 60
"""Characters before the first word that was found."""


class Snippet(NamedTuple):
    """A part of a text, and the places in it of what was found, as [start, end)."""

    text: str
    highlights: list[tuple[int, int]]


def make_snippet(text: str, phrases: Sequence[Phrase]) -> Snippet:
    """Cut the snippet around the place where most of the phrases occur."""
    places = sorted(set(_find_phrases(list(find_words(text)), phrases)))
    if not places:
        return Snippet(text[:LENGTH], [])
    best = max(places, key=lambda place: len({p for p in places if place[0] <= p[0] < place[0] + LENGTH}))
    start = _word_start(text, max(best[0] - BEFORE, 0))
    end = min(max(start + LENGTH, best[1]), len(text))
    lead, trail = ("…" if start else ""), ("…" if end < len(text) else "")
    shift = len(lead) - start
    spans = [(a + shift, b + shift) for a, b in places if a >= start and b <= end]
    return Snippet(f"{lead}{text[start:end]}{trail}", _merge(spans))


def _find_phrases(words: Sequence[Word], phrases: Sequence[Phrase]) -> list[tuple[int, int]]:
    spans = []
    by_text: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        by_text.setdefault(word.text, []).append(place)
    for phrase in phrases:
        first = phrase.words[0]
        only = len(phrase.words) == 1
        starts = (
            [place for place, word in enumerate(words) if word.text.startswith(first)]
            if only and phrase.is_prefix
            else by_text.get(first, [])
        )
        for place in starts:
            run = words[place : place + len(phrase.words)]
            if len(run) == len(phrase.words) and _fits(run, phrase):
                spans.append((run[0].start, run[-1].end))
    return spans


def _fits(run: Sequence[Word], phrase: Phrase) -> bool:
    *earlier, last = phrase.words
    if any(word.text != text for word, text in zip(run, earlier, strict=False)):
        return False
    return run[-1].text.startswith(last) if phrase.is_prefix else run[-1].text == last


def _word_start(text: str, at: int) -> int:
    """Move a cut to the next space, where there is one soon."""
    space = text.find(" ", at, at + 20) if at else -1
    return at if space < 0 else space + 1


def _merge(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
