"""Parse RFC 9535 paths with python-jsonpath. Nearly all rules have plain paths, which `rules` parses itself."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import re2
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.filter import FilterQuery, FunctionExtension, InfixExpression, RelativeFilterQuery, StringLiteral, walk
from jsonpath.function_extensions import ExpressionType, FilterFunction
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import Filter, IndexSelector, JSONPathSelector, NameSelector, WildcardSelector

from calls.keys.places import BadPath, ElementType, Place

_MAX_MEMORY: Final = 4 << 20
"""Bytes that an expression may need; one with more matches nothing."""


class _Matching(FilterFunction):
    """`search` and `match` (RFC 9535 2.4.6 and 2.4.7) by RE2: `(a+)+$` takes Python's `re` a minute for 28 letters of a body.

    What is no valid expression matches nothing, as the standard says: it may come from the body, too.
    """

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 - the base class says so
    return_type = ExpressionType.LOGICAL

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole

    def __call__(self, value: object, pattern: object) -> bool:
        """Return whether the pattern matches."""
        if not isinstance(value, str) or not isinstance(pattern, str):
            return False
        expression = _compile_pattern(pattern)
        if expression is None:
            return False
        find = expression.fullmatch if self._is_whole else expression.search
        return find(value.encode("utf-8", "surrogatepass")) is not None


@lru_cache(256)
def _compile_pattern(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem, options.log_errors = _MAX_MEMORY, False
    try:
        return re2.compile(pattern.encode("utf-8", "surrogatepass"), options)
    except re2.error:
        return None


_environment: Final = JSONPathEnvironment(strict=True)
_environment.function_extensions |= {"search": _Matching(is_whole=False), "match": _Matching(is_whole=True)}


def parse_path(text: str) -> JSONPath:
    """Parse an RFC 9535 path. Raises `BadPath`."""
    try:
        path = _environment.compile(text)
    except JSONPathError as error:
        raise BadPath(error.message) from error
    assert isinstance(path, JSONPath), "a strict environment has no compound paths"
    return path


def parse_own_path(text: str) -> JSONPath:
    """Parse a path that a user wrote. Raises `BadPath`, also if an expression in it could never match."""
    path = parse_path(text)
    for pattern in _literal_patterns(path):
        if _compile_pattern(pattern) is None:
            raise BadPath(f"{pattern!r} is no expression of RE2, which has no look-ahead and no references to groups")
    return path


def _literal_patterns(path: JSONPath) -> Iterator[str]:
    filters = (one for segment in path.segments for one in segment.selectors if isinstance(one, Filter))
    for node in (node for one in filters for node in walk(one.expression)):
        match node:
            case FunctionExtension(name="search" | "match", args=[_, StringLiteral() as pattern]):
                yield pattern.value
            case FilterQuery():
                yield from _literal_patterns(node.path)
            case _:
                pass


def plain_place(path: JSONPath) -> Place | None:
    """Return the place that a plain path names; None if the path needs a search."""
    place: list[str | int | ElementType | None] = []
    for segment in path.segments:
        if not isinstance(segment, JSONPathChildSegment) or len(segment.selectors) != 1:
            return None
        step = _selector_step(segment.selectors[0])
        if step == -1:
            return None
        place.append(step)
    return tuple(place)


def _selector_step(selector: JSONPathSelector) -> str | int | ElementType | None:
    match selector:
        case NameSelector():
            return selector.name
        case IndexSelector() if selector.index >= 0:
            return selector.index
        case WildcardSelector():
            return None
        case Filter():
            return _filter_type(selector.expression.expression) or -1
        case _:
            return -1


def _filter_type(test: object) -> ElementType | None:
    """Return the type in a filter that only compares `type`."""
    match test:
        case InfixExpression(left=RelativeFilterQuery() as left, operator="==", right=StringLiteral() as right):
            return ElementType(right.value) if str(left.path) == "$['type']" else None
        case _:
            return None
