"""Normalize GraphQL documents: white space, commas and comments do not count (GraphQL spec, October 2021, 2.1.7)."""

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<ignored>[\ufeff\s,]+|\#[^\n\r]*)
    | \"\"\"(?:[^"\\]|\\\"\"\"|\\(?!\"\"\")|"(?!""))*+\"\"\"
    | "(?:[^"\\\n\r]|\\.)*+"
    | \.\.\. | [!$&():=@\[\]{|}?]
    | [_A-Za-z][_0-9A-Za-z]*
    | -?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![_A-Za-z0-9.])
    """,
    re.VERBOSE,
)


def normalize_document(document: str) -> str:
    """Join the document's tokens with single spaces. A text that is not GraphQL is returned unchanged."""
    tokens = list(_tokens(document))
    return " ".join(token for token in tokens if token) if None not in tokens else document


def _tokens(document: str) -> Iterator[str | None]:
    """Yield every token; "" for ignored text, None for text that is no token."""
    at = 0
    while at < len(document):
        match = _TOKEN.match(document, at)
        if match is None:
            yield None
            return
        yield "" if match["ignored"] else match[0]
        at = match.end()
