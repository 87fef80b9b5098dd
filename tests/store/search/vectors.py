"""All words of a text as a tsvector: by it, PostgreSQL says what fits."""

from store.search.words import word_list


def word_vector(text: str) -> str:
    """Return the words with their positions, as PostgreSQL reads a tsvector. It joins the positions of equal words."""
    return " ".join([f"'{word}':{min(place, 16_383)}" for place, word in enumerate(word_list(text), 1) if word])
