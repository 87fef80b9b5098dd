"""Match RE2 expressions on bytes without re2's wrapper, which costs more than a scan of 200 bytes."""

from typing import Any, Final

import re2

ANYWHERE: Final = re2._Anchor.UNANCHORED
HERE: Final = re2._Anchor.ANCHOR_START


def compile_expression(expression: str) -> Any:
    """An expression of Latin-1 characters, which are bytes."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    options.log_errors = False
    return re2.compile(expression.encode("latin-1"), options)._regexp


def search(expression: Any, data: bytes, at: int = 0) -> tuple[int, int]:
    """Where the first match from an offset on starts and ends; -1 where there is none."""
    (span,) = expression.Match(ANYWHERE, data, at, len(data))
    return span  # type: ignore[no-any-return]


def prefix(expression: Any, data: bytes, at: int = 0) -> int:
    """Where the match that begins at an offset ends, for an expression that matches nothing, too."""
    ((_, end),) = expression.Match(HERE, data, at, len(data))
    return end  # type: ignore[no-any-return]
