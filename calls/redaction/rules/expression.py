"""Match RE2 expressions on bytes without re2's wrapper, which costs more than scanning 200 bytes."""

from typing import Any, Final

import re2

ANYWHERE: Final = re2._Anchor.UNANCHORED
HERE: Final = re2._Anchor.ANCHOR_START


def compile_expression(expression: str) -> Any:
    """Compile an expression of Latin-1 characters, each of which matches a byte. RE2's wrapper keeps the last 128 that it compiled."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    options.log_errors = False
    return re2.compile(expression.encode("latin-1"), options)._regexp


def search_expression(expression: Any, data: bytes, at: int = 0) -> tuple[int, int]:
    """Return the span of the first match from an offset on; (-1, -1) if there is none."""
    (span,) = expression.Match(ANYWHERE, data, at, len(data))
    return span  # type: ignore[no-any-return]


def match_prefix(expression: Any, data: bytes, at: int = 0) -> int:
    """Return the end of the match at an offset, for an expression that also matches the empty string."""
    ((_, end),) = expression.Match(HERE, data, at, len(data))
    return end  # type: ignore[no-any-return]
