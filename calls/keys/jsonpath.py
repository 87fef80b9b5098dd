"""Parse RFC 9535 paths with python-jsonpath. Nearly all rules have plain paths, which `rules` parses itself."""

from typing import Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.filter import InfixExpression, RelativeFilterQuery, StringLiteral
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import Filter, IndexSelector, JSONPathSelector, NameSelector, WildcardSelector

from calls.keys.places import BadPath, ElementType, Place

_environment: Final = JSONPathEnvironment(strict=True)


def parse_path(text: str) -> JSONPath:
    """Parse an RFC 9535 path. Raises `BadPath`."""
    try:
        path = _environment.compile(text)
    except JSONPathError as error:
        raise BadPath(error.message) from error
    assert isinstance(path, JSONPath), "a strict environment has no compound paths"
    return path


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
