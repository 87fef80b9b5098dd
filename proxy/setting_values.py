"""Read the values of settings as files, variables and flags have them, and say what is wrong with one.

With the standard library alone: every command reads its settings, and a library for this takes longer to import than most
commands take to run.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, overload

type Reader[T] = Callable[[object], T]

_MASK: Final = "**********"
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


class InvalidValue(ValueError):
    """A value that the setting cannot have. `where` leads from the setting to the value."""

    def __init__(self, reason: str, *, where: tuple[str, ...] = (), kind: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.kind = kind

    def below(self, name: str) -> "InvalidValue":
        """Return the same for a value inside of `name`."""
        return InvalidValue(self.reason, where=(name, *self.where), kind=self.kind)


UNKNOWN_NAME: Final = "unknown name"
"""The kind of the error of a name that is no setting."""


class Secret:
    """A text that is not shown by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return _MASK if self._text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


@overload
def setting[T](read: Reader[T], *, description: str = ...) -> T: ...
@overload
def setting[T](read: Reader[T], default: T, *, description: str = ..., is_json: bool = ...) -> T: ...
@overload
def setting[T](read: Reader[T], *, factory: Callable[[], T], description: str = ..., is_json: bool = ...) -> T: ...
def setting(
    read: Reader[Any],
    default: Any = dataclasses.MISSING,
    *,
    factory: Any = dataclasses.MISSING,
    description: str = "",
    is_json: bool = False,
) -> Any:
    """Declare a setting as a field of a dataclass. `is_json`: an environment variable holds it as JSON."""
    metadata = {"read": read, "description": description, "is_json": is_json}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read_fields(kind: type[Any], values: Mapping[str, object]) -> dict[str, Any]:
    """Read the values of a dataclass of settings. Raises InvalidValue for the first that is wrong."""
    fields = {field.name: field for field in dataclasses.fields(kind) if "read" in field.metadata}
    found = {}
    for name, field in fields.items():
        if name in values:
            found[name] = _read_below(name, field.metadata["read"], values[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidValue("Field required", where=(name,))
    for name in values:
        if name not in fields:
            raise InvalidValue("there is no such setting", where=(name,), kind=UNKNOWN_NAME)
    return found


def _read_below(name: str, read: Reader[Any], value: object) -> Any:
    try:
        return read(value)
    except InvalidValue as error:
        raise error.below(name) from error
    except ValueError as error:
        raise InvalidValue(str(error), where=(name,)) from error


def _mismatch(value: object, expected: str) -> InvalidValue:
    return InvalidValue(f"{value!r} should be {expected}")


def read_text(value: object) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise _mismatch(value, "text in quotes")
    return value


def read_secret(value: object) -> Secret:
    """Read a text that is never shown."""
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise InvalidValue("should be text in quotes")
    return Secret(value)


def read_path(value: object) -> Path:
    """Read the path of a file or directory."""
    if not isinstance(value, str | Path):
        raise _mismatch(value, "text in quotes")
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise InvalidValue("should be a path in UTF-8: choose another, or rename the file or directory") from None
    if "\0" in str(value):
        raise InvalidValue(f"{value!r} has a null character, which no path can have: leave it out")
    return Path(value)


def read_flag(value: object) -> bool:
    """Read true or false, also as variables write it."""
    word = str(value).lower() if isinstance(value, str | int) else ""
    if word not in _TRUE | _FALSE:
        raise _mismatch(value, "true or false")
    return word in _TRUE


def whole_number(least: int, most: int | None = None) -> Reader[int]:
    """Return the reader of a whole number in this range."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not (
            isinstance(value, int) or (isinstance(value, str) and _NUMBER.fullmatch(value))
        ):
            raise _mismatch(value, "a whole number")
        number = int(value)
        if number < least:
            raise _mismatch(value, f"greater than or equal to {least}")
        if most is not None and number > most:
            raise _mismatch(value, f"less than or equal to {most}")
        return number

    return read


def one_of[T: str](*choices: T) -> Reader[T]:
    """Return the reader of one of these words."""
    quoted = [repr(choice) for choice in choices]
    expected = " or ".join((", ".join(quoted[:-1]), quoted[-1]))

    def read(value: object) -> T:
        for choice in choices:
            if value == choice:
                return choice
        raise _mismatch(value, expected)

    return read


def optional[T](read: Reader[T]) -> Reader[T | None]:
    """Return the reader of a value that may be absent."""
    return lambda value: None if value is None else read(value)


def with_checks[T](read: Reader[T], *checks: Callable[[T], T]) -> Reader[T]:
    """Return the reader that also calls these, each of which may raise ValueError."""

    def read_and_check(value: object) -> T:
        found = read(value)
        for check in checks:
            found = check(found)
        return found

    return read_and_check


def list_of[T](read: Reader[T], *, separated: bool = False, wrong: str = "") -> Reader[tuple[T, ...]]:
    """Return the reader of a list.

    `separated`: a text is one too, with commas or blanks between its items, as variables hold it. `wrong`: what to say of a value
    that is no list.
    """

    def read_list(value: object) -> tuple[T, ...]:
        items = value.replace(",", " ").split() if separated and isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise InvalidValue(wrong) if wrong else _mismatch(value, "a list in square brackets")
        return tuple(_read_below(str(number), read, item) for number, item in enumerate(items))

    return read_list


def table_of[T](read: Reader[T]) -> Reader[dict[str, T]]:
    """Return the reader of a table with names of the user's choice."""

    def read_table(value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise _mismatch(value, "a table")
        return {str(name): _read_below(str(name), read, each) for name, each in value.items()}

    return read_table


def members_of[T](kind: type[T]) -> Reader[T]:
    """Return the reader of a table whose names are the fields of this dataclass of settings."""

    def read_members(value: object) -> T:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise _mismatch(value, "a table")
        return kind(**read_fields(kind, value))

    return read_members


def read_any_table(value: object) -> dict[str, Any]:
    """Read a table that others check."""
    if not isinstance(value, Mapping):
        raise _mismatch(value, "a table")
    return dict(value)


def shown_value(value: Any) -> Any:
    """Return a value of a setting as JSON has it, with secrets masked."""
    match value:
        case Secret() | Path():
            return str(value)
        case tuple() | list():
            return [shown_value(each) for each in value]
        case dict():
            return {name: shown_value(each) for name, each in value.items()}
        case _ if dataclasses.is_dataclass(value):
            return {
                field.name: shown_value(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if "read" in field.metadata
            }
        case _:
            return value
