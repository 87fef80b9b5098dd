"""Find values that their name makes secret: members, variables, columns, fields and elements.

What stands between a name and its value decides how much the value must look like a key: behind `"name":` anything is
taken, in prose and code only what holds a digit, and in a list beside the name only what is neither a word nor a date.
"""

import re

from calls.redaction.rules.listed_values import CONTAINERS
from calls.redaction.rules.option_values import COOKIES, OPTIONS, PARAMETERS
from calls.redaction.rules.packed_values import PACKED
from calls.redaction.rules.patterns import Either, Part, Some, Word, beginnings, full
from calls.redaction.rules.secret_names import BARE_NAMES, LIKELY_NAMES, SECRET_NAMES
from calls.redaction.rules.secret_rule import (
    AROUND,
    End,
    Real,
    SecretRule,
    is_assigned,
    is_opaque,
    is_plain,
    quoted_end,
    reject_replaced,
)
from calls.redaction.rules.value_syntax import (
    ARROW,
    BESIDE,
    ELEMENT,
    ELEMENT_WITH_ATTRIBUTES,
    GAP,
    IS,
    LITERAL,
    MARKED,
    PAIR,
    PART_OF_A_FORM,
    PROSE,
    QUOTE,
    is_in_query,
    named_end,
)


def _is_named_value(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Behind `"name":`, in a form and in `<name>` whatever there is; in prose and code (`name = …`) what looks like a key.

    A private key's first line is none of it: its own rule knows where it ends.
    """
    if data.startswith(b"-----BEGIN ", start) and data[start - 1] not in b"\"'":
        return False
    if data[start - 1 : start] == b">" and data[start - 2 : start - 1] not in b"=-":
        return _is_element_text(data, lead, start, stop) and is_plain(data, lead, start, stop)
    stars = _STARS.search(data, lead, start)
    if stars and not _is_marked(data, lead, stop, stars[1]):
        return False
    if _QUOTED_NAME.search(data, lead, start) or is_in_query(data, lead):
        return is_plain(data, lead, start, stop)
    if _LISTED.search(data, lead, start):
        return is_opaque(data, lead, start, stop)
    return is_assigned(data, lead, start, stop)


_STARS = re.compile(rb"[:=]\s*(\*+)[*`\s]*\Z")


def _is_marked(data: bytes, lead: int, stop: int, stars: bytes) -> bool:
    """Whether asterisks before a value are Markdown's; else they stand for a short secret, and what follows is none."""
    closed = data.startswith(stars, stop) or (stop == len(data) and data.endswith(stars))
    return len(stars) <= 2 and (closed or stars in data[max(0, lead - 2) : lead])


def _is_likely_value(data: bytes, lead: int, start: int, stop: int) -> bool:
    """The value of a member whose name is also given to harmless things."""
    return _QUOTED_NAME.search(data, lead, start) is not None and _TOKEN_LIKE.fullmatch(data, start, stop) is not None


_QUOTED_NAME = re.compile(
    rb"[\"'](?:\s*(?:[:=]|=>|:=)\s*\\*[\"']|\r\n\r\n|[^{}<>\[\]]*(?i:value|val)\\*[\"']?\s*[:=]\s*\\*[\"'])\Z"
)
_LISTED = re.compile(rb"[\"']\s*,\s*\\*[\"']\Z")
_TOKEN_LIKE = re.compile(rb"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])(?!\d{4}-\d\d-\d\d)[A-Za-z0-9._~+/=-]{16,}")


@reject_replaced
def _is_element_text(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Whether the name is a tag's (`<SessionToken>`, `<ns:Password>`) and the value all of its element: prose has tags too."""
    opened = _OPENED.search(data, max(0, lead - AROUND), lead) is not None
    if _NEXT_FIELD.fullmatch(data, start, stop):
        return False
    return opened and not data[start : start + 1].isspace() and data[stop : stop + 1] == b"<"


_OPENED = re.compile(rb"<[\w:.-]*\Z")
_NEXT_FIELD = re.compile(rb"&\w+=")


def _rule_for_names(names: tuple[str, ...], *, bounded: bool, real: Real = _is_named_value) -> SecretRule:
    ways: tuple[tuple[Part, ...], ...] = (
        (*QUOTE, *IS, *QUOTE),
        (*IS, *QUOTE),
        ARROW,
        PAIR,
        BESIDE,
        MARKED,
        PROSE,
        LITERAL,
        PART_OF_A_FORM,
        ELEMENT,
        ELEMENT_WITH_ATTRIBUTES,
    )
    return SecretRule(
        kind="J", lead=(Word(names, nocase=True), Either(ways)), end=named_end, real=real, bounded=bounded
    )


_IDENTIFIED_BY = SecretRule(
    kind="J",
    lead=(Word(("identified by",), nocase=True), Some("\\s", 1, 4), *QUOTE),
    end=named_end,
    real=is_plain,
)

_BEHIND_VALUE = (
    *QUOTE,
    *(GAP, Word((",",)), GAP, *QUOTE),
    *(Word(("name", "key", "header", "variable"), nocase=True), *QUOTE, *IS, *QUOTE),
    Some("[\\w.\\- ]", 0, 48),
)
_LAST_NAMES = (Word((*SECRET_NAMES, "token", "secret", "auth"), nocase=True), *QUOTE)
_NAME_BEHIND = re.compile(full((*_BEHIND_VALUE, *_LAST_NAMES)).encode())
_NAME_MAY_FOLLOW = re.compile(rf"(?:{beginnings((*_BEHIND_VALUE, *_LAST_NAMES))})?\Z".encode())


def _end_before_name(data: bytes, at: int) -> End:
    value_end = quoted_end(data, at)

    def end(data: bytes, at: int) -> int:
        stop = value_end(data, at)
        return len(data) if _NAME_MAY_FOLLOW.match(data, stop) else stop

    return end


_VALUE_BEFORE_NAME = SecretRule(
    kind="J",  # {"value": …, "name": "API_KEY"}
    lead=(Word(("value",), nocase=True), *QUOTE, *IS, *QUOTE),
    end=_end_before_name,
    real=lambda data, lead, start, stop: (
        data[lead - 1 : lead] in (b'"', b"'")
        and _NAME_BEHIND.match(data, stop) is not None
        and is_plain(data, lead, start, stop)
    ),
    bounded=False,
)

NAMED: tuple[SecretRule, ...] = (
    COOKIES,
    *CONTAINERS,
    _rule_for_names(SECRET_NAMES, bounded=False),
    _rule_for_names(BARE_NAMES, bounded=True),
    SecretRule(
        kind="J",
        lead=(Word(LIKELY_NAMES, nocase=True), *QUOTE, *IS, *QUOTE),
        end=named_end,
        real=_is_likely_value,
    ),
    SecretRule(
        kind="J",  # Azure, for a search in one's own data: {"type": "api_key", "key": …}
        lead=(Word(("api_key",)), *QUOTE, GAP, Word((",",)), GAP, *QUOTE, Word(("key",)), *QUOTE, *IS, *QUOTE),
        end=named_end,
        real=is_plain,
    ),
    SecretRule(
        kind="J",
        # Of a shell, a .env file or a connection string
        lead=(
            Word(
                (
                    *("ACCESS_KEY=", "SECRET=", "TOKEN=", "_KEY=", "_PASS=", "_PWD=", "_AUTH=", "_CREDENTIALS="),
                    *("AccountKey=", "SharedAccessKey="),
                )
            ),
        ),
        end=named_end,
        real=is_assigned,
        bounded=False,
    ),
    _IDENTIFIED_BY,
    _VALUE_BEFORE_NAME,
    PACKED,
    *OPTIONS,
    *PARAMETERS,
)
