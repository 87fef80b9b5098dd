"""Read the values of settings as files, variables and flags have them, and say what is wrong with one.

With the standard library alone: every command reads its settings, and a library for this takes longer to import than most
commands take to run.
"""

import dataclasses
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, overload

type Reader[T] = Callable[[object], T]

_MASK: Final = "**********"
LONGEST_PATH: Final = 4095
"""Bytes that a path of Linux may have."""

MOST_BYTES: Final = 1 << 50
"""What a size may be. Larger ones overflow where the kernel or Postgres is given a limit that follows from them."""

_SHOWN: Final = 100
"""Characters of a wrong value that a message repeats."""

_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
_HOST: Final = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*\.?")
LAST_PORT: Final = 65535
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


class InvalidValue(ValueError):
    """A value that the setting cannot have. `where` leads from the setting to the value."""

    def __init__(self, reason: str, *, where: tuple[str, ...] = (), kind: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.kind = kind


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
            found[name] = read_value(name, field.metadata["read"], values[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidValue("Field required", where=(name,))
    for name in values:
        if name not in fields:
            raise InvalidValue("there is no such setting", where=(name,), kind=UNKNOWN_NAME)
    return found


def read_value[T](name: str, read: Reader[T], value: object) -> T:
    """Read the value of the setting or member `name`. Raises InvalidValue."""
    try:
        return read(value)
    except InvalidValue as error:
        reason, where, kind = error.reason, error.where, error.kind
        raise InvalidValue(_with_short_value(reason, value), where=(name, *where), kind=kind) from error
    except ValueError as error:
        raise InvalidValue(_with_short_value(str(error), value), where=(name,)) from error


def _with_short_value(reason: str, value: object) -> str:
    """Return why a value is refused, with the beginning of a long one in place of it."""
    whole = repr(value)
    return reason if len(whole) <= _SHOWN else reason.replace(whole, f"{whole[:_SHOWN]}… ({len(whole)} characters)")


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


def read_token(value: object) -> Secret:
    """Read a token, which clients send in a header."""
    token = read_secret(value)
    text = token.get_secret_value()
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidValue("a token has printable ASCII characters alone and no blanks at its ends: choose another")
    return token


def read_database_url(value: object) -> Secret:
    """Read a URL with perhaps several hosts, as Postgres takes them, and a password."""
    url = read_secret(value)
    text = url.get_secret_value()
    if "\0" in text:
        raise InvalidValue("the URL has a null character, which none can have: leave it out")
    hosts = text.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]
    for host in hosts.split(","):
        number = re.fullmatch(r"(?:\[.*\]|[^:\[\]]*):([0-9]*)", host)
        if number and number[1] and not 1 <= int(number[1][:9]) <= LAST_PORT:
            raise InvalidValue(f"the URL has the port {number[1][:20]}: use one from 1 to {LAST_PORT}, or leave it out")
    return url


def read_host(value: object) -> str:
    """Read the name or address of a host, or `*.` and a name for all below it; in small letters."""
    host = read_text(value).lower()
    if not _HOST.fullmatch(host) and not _is_address(host):
        raise InvalidValue(
            f"{value!r} is not a host: write one such as api.example.com, *.example.com or ::1, without a port"
        )
    return host


def _is_address(text: str) -> bool:
    try:
        return bool(socket.inet_pton(socket.AF_INET6, text))
    except (OSError, ValueError):
        return False


def read_path(value: object) -> Path:
    """Read the path of a file or directory."""
    if not isinstance(value, str | Path):
        raise _mismatch(value, "text in quotes")
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise InvalidValue("should be a path in UTF-8: choose another, or rename the file or directory") from None
    if len(str(value).encode()) > LONGEST_PATH:
        raise InvalidValue(f"{str(value)!r} is longer than a path can be: name one of at most {LONGEST_PATH} bytes")
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
        return tuple(read_value(str(number), read, item) for number, item in enumerate(items))

    return read_list


def table_of[T](read: Reader[T]) -> Reader[dict[str, T]]:
    """Return the reader of a table with names of the user's choice."""

    def read_table(value: object) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise _mismatch(value, "a table")
        return {str(name): read_value(str(name), read, each) for name, each in value.items()}

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
