"""Read YAML item by item as plain values: a file cannot create objects or exhaust memory.

PyYAML's loaders build the whole document first, and libyaml's composer overflows the stack where brackets nest deeply.
Values are therefore built from the parser's events, with limits on the depth and on the size of expanded aliases. A value
with an unknown tag becomes an `UnknownTag`, which its reader may refuse.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from typing import IO, Any, Final

import msgspec
import yaml
from yaml.constructor import SafeConstructor

_Parser: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Used for its events only. Without libyaml these are the same, and ten times slower."""

type Value = bool | int | float | str | bytes | list[Value] | dict[Any, Value] | UnknownTag | None

DEEPEST: Final = 100
REPEATED: Final = 64 << 20
"""Bytes and values that the aliases of a document may expand to."""

STREAMED_LISTS: Final = (
    *("interactions", "http_interactions", "ws_interactions", "grpc_interactions"),
    *("requests", "responses"),
    *("Entries", "pairs"),
)
"""Members of the outermost mapping whose items are yielded one by one."""


class BadYaml(ValueError):
    """The file is not YAML, or exceeds a limit."""


class UnknownTag(msgspec.Struct, frozen=True):
    """A value whose tag denotes an object."""

    tag: str


NO_ITEMS: Final = UnknownTag(tag="")
"""The value of one of `STREAMED_LISTS` that is an empty list."""


def members(stream: IO[bytes] | bytes) -> Iterator[tuple[str, Value]]:
    """Yield the members of the outermost mapping, and the items of `STREAMED_LISTS` one by one (`NO_ITEMS` of an empty one). Raises BadYaml meanwhile."""
    try:
        yield from _Builder(_Parser(stream)).members()
    except yaml.YAMLError as error:
        raise BadYaml(_error_message(error)) from None
    except UnicodeDecodeError:
        raise BadYaml("it is not UTF-8") from None


def _error_message(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return "it is binary, or text in an unsupported encoding"
    mark = getattr(error, "problem_mark", None)
    where = f" on line {mark.line + 1}" if mark else ""
    return f"its YAML is invalid{where}: {getattr(error, 'problem', None) or error}"


class _Builder:
    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._anchors: dict[str, tuple[Value, int]] = {}
        self._weight = 0
        self._repeated = 0

    def members(self) -> Iterator[tuple[str, Value]]:
        documents = 0
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.MappingStartEvent):
                documents += 1
                yield from self._members()
            elif isinstance(event, yaml.SequenceStartEvent):  # PHP's VCR writes a list of interactions
                documents += 1
                yield from (("interactions", item) for item in self._items(1) if isinstance(item, dict))
            elif not isinstance(event, (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)):
                raise BadYaml(
                    "it is no recording that can be read: it does not begin with a mapping, as a VCR cassette does"
                )
        if not documents:
            raise BadYaml("it is empty")

    def _members(self) -> Iterator[tuple[str, Value]]:
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            name, first = _name(self._value(event, 1)), self._next()
            if name in STREAMED_LISTS and isinstance(first, yaml.SequenceStartEvent):
                is_empty = True
                for item in self._items(2):
                    is_empty = False
                    yield name, item
                if is_empty:
                    yield name, NO_ITEMS
            else:
                yield name, self._value(first, 1)

    def _next(self) -> Any:
        return self._parser.get_event()

    def _value(self, event: Any, depth: int) -> Value:
        if depth > DEEPEST:
            raise BadYaml(f"it is nested deeper than {DEEPEST} levels")
        before = self._weight
        if isinstance(event, yaml.AliasEvent):
            return self._resolve_alias(event.anchor)
        value = self._build(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = value, self._weight - before
        return value

    def _resolve_alias(self, anchor: Any) -> Value:
        try:
            value, weight = self._anchors[anchor]
        except KeyError:
            raise BadYaml(f"its alias *{anchor} has no anchor before it") from None
        self._weight += weight
        self._repeated += weight
        if self._repeated > REPEATED:
            raise BadYaml(f"its aliases expand to more than {REPEATED:,} bytes")
        return value

    def _build(self, event: Any, depth: int) -> Value:
        if isinstance(event, yaml.ScalarEvent):
            self._weight += len(event.value) + 1
            return _scalar(event)
        self._weight += 1
        if isinstance(event, yaml.SequenceStartEvent):
            return _construct(event.tag, list(self._items(depth + 1)))
        return _construct(event.tag, self._mapping(depth + 1))

    def _items(self, depth: int) -> Iterator[Value]:
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            yield self._value(event, depth)

    def _mapping(self, depth: int) -> dict[Any, Value]:
        found: dict[Any, Value] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            name = _name(self._value(event, depth))
            found[name] = self._value(self._next(), depth)
        return found


def _name(value: Value) -> str:
    match value:
        case str():
            return value
        case bytes():
            return value.decode("latin-1")
        case list() | dict() | UnknownTag():
            return "?"
        case _:
            return str(value)


# -- scalars

_TAG: Final = "tag:yaml.org,2002:"
_TEXT: Final = frozenset((f"{_TAG}str", f"{_TAG}python/str", f"{_TAG}python/unicode", f"{_TAG}timestamp", "!"))
_BINARY: Final = frozenset((f"{_TAG}binary", f"{_TAG}python/bytes", "!binary"))
_NULL: Final = f"{_TAG}null"
_CONSTRUCTORS: Final[dict[str, Any]] = {
    f"{_TAG}int": SafeConstructor.construct_yaml_int,
    f"{_TAG}python/int": SafeConstructor.construct_yaml_int,
    f"{_TAG}python/long": SafeConstructor.construct_yaml_int,
    f"{_TAG}float": SafeConstructor.construct_yaml_float,
    f"{_TAG}python/float": SafeConstructor.construct_yaml_float,
    f"{_TAG}bool": SafeConstructor.construct_yaml_bool,
    f"{_TAG}python/bool": SafeConstructor.construct_yaml_bool,
}
_constructor = SafeConstructor()
_NUMBER_OR_WORD: Final = re.compile(r"[-+.0-9a-zA-Z~][-+.0-9a-zA-Z_:]{0,63}|")


def _scalar(event: Any) -> Value:
    tag = event.tag or (_implicit_tag(event.value) if event.implicit[0] else f"{_TAG}str")
    if tag in _TEXT:
        return str(event.value)
    if tag in _BINARY:
        return _bytes(event.value)
    if tag in (_NULL, f"{_TAG}python/none"):
        return None
    if tag not in _CONSTRUCTORS:
        return UnknownTag(tag)
    try:
        value: Value = _CONSTRUCTORS[tag](_constructor, yaml.ScalarNode(tag, event.value))
    except (ValueError, KeyError):
        return str(event.value)
    return value


def _implicit_tag(text: str) -> str:
    """Return the tag that a plain scalar has by its text; times remain text."""
    if _NUMBER_OR_WORD.fullmatch(text):
        for tag, looks in yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], ()):
            if looks.match(text):
                return str(tag)
    return f"{_TAG}str"


def _bytes(text: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except (NotBase64, ValueError):
        raise BadYaml("a !!binary value is not base64") from None


# -- objects that VCR.py's own dumper wrote, and that are harmless when they are only read

_ISTR: Final = re.compile(r"tag:yaml\.org,2002:python/object/(?:apply|new):multidict\._?multidict(?:_py)?\.istr")
_BUFFER: Final = f"{_TAG}python/object/new:_io.BytesIO"
_ITERATOR: Final = re.compile(r"tag:yaml\.org,2002:python/object/apply:(?:builtins|__builtin__)\.iter")
_COLLECTIONS: Final = frozenset((None, "!", f"{_TAG}seq", f"{_TAG}map", f"{_TAG}python/tuple", f"{_TAG}python/list"))


def _construct(tag: str | None, value: Value) -> Value:
    if tag in _COLLECTIONS or tag == f"{_TAG}python/dict":
        return value
    if _ISTR.fullmatch(str(tag)) or _ITERATOR.fullmatch(str(tag)):
        return _first(value.get("args") if isinstance(value, dict) else value)
    if tag == _BUFFER and isinstance(value, dict):
        return _first(value.get("state")) or b""
    return UnknownTag(str(tag))


def _first(value: Value) -> Value:
    return value[0] if isinstance(value, list) and value else None
