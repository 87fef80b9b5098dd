"""Find several secret values under one name: lists and objects of keys, cookies of HAR files, values of SQL statements."""

import re
from collections.abc import Iterator
from functools import partial

from calls.placeholder import PREFIX
from calls.redaction.rules.patterns import Repeat, Word
from calls.redaction.rules.secret_names import BARE_NAMES, SECRET_NAMES
from calls.redaction.rules.secret_rule import End, Real, SecretRule, end_of_run, is_actual_value, is_opaque, quoted_end
from calls.redaction.rules.value_syntax import ASSIGNMENT, QUOTE

_HARMLESS_MEMBER = re.compile(
    rb"(?i)\$?(?:type|kind|description|title|format|(?:.*[_-])?(?:id|name|at|url|uri|[cau]rn|ref|date|version|status|path)|label|"
    rb"object|alg|algorithm|scopes?|enum|default|examples?|pattern|env|in|provider|header|scheme|prefix|file|source|host|"
    rb"username|user|text|email|required|expiry|created|updated|expires\w*)"
)
_VALUE_MEMBER = re.compile(rb"(?i)value|val|secret|token|key|plain(?:text)?|current|previous|data|raw")
_MARKS = re.compile(rb"[{}\[\]\"]")


def _container_end(_data: bytes, _at: int) -> End:
    return _bracket_end


def _bracket_end(data: bytes, at: int) -> int:
    """Return the offset after the bracket that closes the list or object that opens before `at`."""
    depth = 1
    while depth:
        found = _MARKS.search(data, at)
        if found is None:
            return len(data)
        at = found.end()
        if found.group() == b'"':
            at = data.find(b'"', quoted_end(data, at)(data, at)) + 1
            if at == 0:
                return len(data)
        else:
            depth += 1 if found.group() in b"{[" else -1
    return at


def _secret_values(data: bytes, start: int, stop: int, is_secret: Real = is_opaque) -> Iterator[tuple[int, int]]:
    """Yield the secret strings of a list or object: strings that look like a key, and members named like a value."""
    member = b""
    for low, high, is_name in _strings(data, start, stop):
        if is_name:
            member = data[low:high].rstrip(b"\\")
        elif _VALUE_MEMBER.fullmatch(member):
            if is_actual_value(data, low, low, high) and not data[low:high].count(b" "):
                yield low, high
        elif not _HARMLESS_MEMBER.fullmatch(member) and is_secret(data, low, low, high):
            yield low, high


def _cookie_values(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the values of a list of cookies in a HAR file."""
    member = b""
    for low, high, is_name in _strings(data, start, stop):
        if is_name:
            member = data[low:high].rstrip(b"\\")
        elif member == b"value" and is_actual_value(data, low, low, high):
            yield low, high


def _is_cookie(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a string is a Cookie or Set-Cookie header, or looks like a key."""
    text = data[start:stop]
    return (b"=" in text and PREFIX not in text) or is_opaque(data, lead, start, stop)


def _strings(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the span of every string between two offsets, and whether it is the name of a member."""
    data = data[:stop]
    at = data.find(b'"', start)
    while at >= 0:
        low = at + 1
        high = quoted_end(data, low)(data, low)
        closing = data.find(b'"', high)
        if closing < 0:
            return
        yield low, high, _COLON.match(data, closing + 1) is not None
        at = data.find(b'"', closing + 1)


_COLON = re.compile(rb"\s*:")


def _sql_values(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the strings among the values of an SQL statement that look like keys."""
    for found in _SQL_STRING.finditer(data, start, stop):
        if is_opaque(data, *(found.start(1), found.start(1), found.end(1))):
            yield found.span(1)


def _item_values(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the items of a YAML list that look like keys."""
    for found in _ITEM.finditer(data, start, stop):
        if is_opaque(data, *(found.start(1), found.start(1), found.end(1))):
            yield found.span(1)


_LINE_BREAK = rb"(?:\\{1,7}[rn]|[\r\n])+"
_ITEM = re.compile(rb"- *[\"']?([^\s\"'\\#,]+)")
_ITEMS = re.compile(rb"[^\r\n\\]*(?:%s[ \t]*- [^\r\n\\]*)*" % _LINE_BREAK)


def _items_end(_data: bytes, _at: int) -> End:
    def end(data: bytes, at: int) -> int:
        found = _ITEMS.match(data, at)
        return found.end() if found else at

    return end


_SQL_STRING = re.compile(rb"'((?:[^'\\]|''|\\.)*)'")


def _accept_any(_data: bytes, _lead: int, _start: int, _stop: int) -> bool:
    return True


_LISTED_NAMES = tuple(name for name in BARE_NAMES if not name.endswith("cookie"))

CONTAINERS = (
    SecretRule(
        kind="J",
        lead=(
            Word((*SECRET_NAMES, *(f"{name}s" for name in SECRET_NAMES), "secrets"), nocase=True),
            Word((":",)),
            Repeat("[ ]", 0, 4),
            Repeat("[\\\\rn\\s]", 1, 24),
        ),
        begin=(Word(("- ",)),),
        end=_items_end,
        is_real=_accept_any,
        is_bounded=False,
        find_inner=_item_values,
    ),
    SecretRule(
        kind="J",
        lead=(
            Word((*SECRET_NAMES, *(f"{name}s" for name in SECRET_NAMES)), nocase=True),
            *QUOTE,
            *ASSIGNMENT,
            Repeat("[\\[{]", 1, 1),
        ),
        end=_container_end,
        is_real=_accept_any,
        is_bounded=False,
        find_inner=_secret_values,
    ),
    SecretRule(
        kind="J",
        lead=(
            Word((*_LISTED_NAMES, "secrets", "auth", "credential", "credentials"), nocase=True),
            *QUOTE,
            *ASSIGNMENT,
            Repeat("[\\[{]", 1, 1),
        ),
        end=_container_end,
        is_real=_accept_any,
        find_inner=_secret_values,
    ),
    SecretRule(
        kind="C",
        lead=(Word(("cookie", "set-cookie"), nocase=True), *QUOTE, *ASSIGNMENT, Repeat("[\\[{]", 1, 1)),
        end=_container_end,
        is_real=_accept_any,
        find_inner=partial(_secret_values, is_secret=_is_cookie),
    ),
    SecretRule(
        kind="C",
        lead=(Word(("cookies",), nocase=True), *QUOTE, *ASSIGNMENT, Repeat("[\\[{]", 1, 1)),
        end=_container_end,
        is_real=_accept_any,
        find_inner=_cookie_values,
    ),
    SecretRule(
        kind="J",
        lead=(
            Word(SECRET_NAMES, nocase=True),
            Repeat("[\\w\\s,`.]", 0, 100),
            Word((")",)),
            Repeat("[\\s\\\\nrt]", 0, 8),
            Word(("values",), nocase=True),
            Repeat("[\\s\\\\nrt]", 0, 8),
            Word(("(",)),
        ),
        end=end_of_run('^;"'),
        is_real=_accept_any,
        is_bounded=False,
        find_inner=_sql_values,
    ),
)
