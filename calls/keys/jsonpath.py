"""Read RFC 9535 paths by python-jsonpath. Nearly all rules have plain paths, which `rules` reads itself."""

from typing import Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.filter import InfixExpression, RelativeFilterQuery, StringLiteral
from jsonpath.segments import JSONPathChildSegment
from jsonpath.selectors import Filter, IndexSelector, JSONPathSelector, NameSelector, WildcardSelector

from calls.keys.places import BadPath, Place, Type

_environment: Final = JSONPathEnvironment(strict=True)


def path_of(text: str) -> JSONPath:
    """An RFC 9535 path. Raises `BadPath`."""
    try:
        path = _environment.compile(text)
    except JSONPathError as error:
        raise BadPath(error.message) from error
    assert isinstance(path, JSONPath), "a strict environment has no compound paths"
    return path


def place_of(path: JSONPath) -> Place | None:
    """The place that a plain path names; None when it takes a search to find it."""
    place: list[str | int | Type | None] = []
    for segment in path.segments:
        if not isinstance(segment, JSONPathChildSegment) or len(segment.selectors) != 1:
            return None
        step = _step(segment.selectors[0])
        if step == -1:
            return None
        place.append(step)
    return tuple(place)


def _step(selector: JSONPathSelector) -> str | int | Type | None:
    match selector:
        case NameSelector():
            return selector.name
        case IndexSelector() if selector.index >= 0:
            return selector.index
        case WildcardSelector():
            return None
        case Filter():
            return _type(selector.expression.expression) or -1
        case _:
            return -1


def _type(test: object) -> Type | None:
    """The type that a filter asks for, where it asks for that alone."""
    match test:
        case InfixExpression(left=RelativeFilterQuery() as left, operator="==", right=StringLiteral() as right):
            return Type(right.value) if str(left.path) == "$['type']" else None
        case _:
            return None
