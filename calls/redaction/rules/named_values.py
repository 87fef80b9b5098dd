"""Find values that are secret because of their name: members, variables, columns, fields and elements.

The syntax between a name and its value decides how much the value must look like a key: after `"name":` any value is secret,
in prose and code only one with a digit, and next to the name in a list only one that is neither a word nor a date.
"""

import re
from functools import cache

from calls.redaction.rules.command_values import COMMANDS
from calls.redaction.rules.listed_values import CONTAINERS
from calls.redaction.rules.option_values import COOKIES, OPTIONS, PARAMETERS, is_own_variable
from calls.redaction.rules.packed_values import PACKED
from calls.redaction.rules.patterns import Either, Part, Repeat, Word, beginnings_expression, full_expression
from calls.redaction.rules.secret_names import BARE_NAMES, LIKELY_NAMES, SECRET_NAMES
from calls.redaction.rules.secret_rule import (
    LOOKBEHIND,
    TOKEN_LIKE,
    End,
    SecretRule,
    is_actual_value,
    is_assigned,
    is_opaque,
    is_token_like,
    quoted_end,
    reject_replaced,
)
from calls.redaction.rules.value_syntax import (
    ARROW,
    ASSIGNMENT,
    BRACKETED,
    CDATA,
    ELEMENT,
    ELEMENT_WITH_ATTRIBUTES,
    FORM_PART,
    GAP,
    LITERAL,
    MARKDOWN,
    MAYBE_QUOTE,
    NEXT_ITEM,
    PAIR,
    PLIST,
    PROSE,
    QUOTE,
    QUOTED_IN_URL,
    is_in_query,
    named_end,
)


def _is_named_value(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value is secret: after `"name":`, in a form and in `<name>` always; else if it looks like a key.

    The first line of a private key is excluded, because its own rule knows where the key ends.
    """
    if data.startswith(b"-----BEGIN ", start) and data[start - 1] not in b"\"'":
        return False
    if data.endswith(b"<![CDATA[", 0, start):
        return _OPENED.search(data, max(0, lead - LOOKBEHIND), lead) is not None and is_actual_value(
            data, lead, start, stop
        )
    if data.endswith(b"<string>", lead, start):
        return _PLIST_KEY.search(data, max(0, lead - LOOKBEHIND), lead) is not None and is_actual_value(
            data, lead, start, stop
        )
    if data[start - 1 : start] == b">" and data[start - 2 : start - 1] not in b"=-":
        return _is_element_text(data, lead, start, stop) and is_actual_value(data, lead, start, stop)
    stars = _STARS.search(data, lead, start)
    if stars and not _is_marked(data, lead, stop, stars[1]):
        return False
    if _QUOTED_NAME.search(data, lead, start) or is_in_query(data, lead):
        return is_actual_value(data, lead, start, stop)
    if _LISTED.search(data, lead, start):
        return is_opaque(data, lead, start, stop)
    return is_assigned(data, lead, start, stop)


_STARS = re.compile(rb"[:=]\s*(\*+)[*`\s]*\Z")


def _is_marked(data: bytes, lead: int, stop: int, stars: bytes) -> bool:
    """Return whether asterisks before a value are Markdown; else they replace a short secret, and no other follows."""
    closed = data.startswith(stars, stop) or (stop == len(data) and data.endswith(stars))
    return len(stars) <= 2 and (closed or stars in data[max(0, lead - 2) : lead])


def _is_likely_value(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether the value of a member, field or element with an ambiguous name looks like a token."""
    if TOKEN_LIKE.fullmatch(data, start, stop) is None:
        return False
    if data[start - 1 : start] == b">":
        return _is_element_text(data, lead, start, stop)
    return _QUOTED_NAME.search(data, lead, start) is not None or data.endswith(b"22", lead, start)


def _is_value_of_variable(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value is secret: right after `=`, as in a shell, if it has a digit; in quotes only if it looks like a token."""
    is_real = is_assigned if data[start - 1 : start] == b"=" else is_token_like
    return is_real(data, lead, start, stop)


def _is_value_of_secret(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether the value of a member whose name ends with `secret` looks like a token, or that of SecretString is a text.

    Where that is JSON, its members are searched, and the client can still parse it in a replay.
    """
    if _SECRET_STRING.match(data, lead):
        return data[start : start + 1] not in (b"{", b"[") and is_actual_value(data, lead, start, stop)
    return is_token_like(data, lead, start, stop)


def _is_value_of_netrc(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a machine is named before, or the value looks like a token: prose has "the login and password fields"."""
    is_real = is_actual_value if _MACHINE.search(data, max(0, lead - LOOKBEHIND), lead) else is_token_like
    return is_real(data, lead, start, stop)


_MACHINE = re.compile(rb"(?:\bmachine(?:\s|\\[nt])+[^\s\"']+|\bdefault)(?:\s|\\[nt])+\Z")
_SECRET_STRING = re.compile(rb"(?i)secretstring")
_QUOTED_NAME = re.compile(
    rb"[\"'](?:\s*(?:[:=]|=>|:=)\s*\\*[\"']|\r\n\r\n|[^{}<>\[\]]*(?i:value|val)\\*[\"']?\s*[:=]\s*\\*[\"'])\Z"
)
_LISTED = re.compile(rb"[\"']\s*,\s*\\*[\"']\Z")


@reject_replaced
def _is_element_text(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether the name is a tag (`<SessionToken>`, `<ns:Password>`) and the value its whole content.

    Prose contains tags too.
    """
    opened = _OPENED.search(data, max(0, lead - LOOKBEHIND), lead) is not None
    if _NEXT_FIELD.fullmatch(data, start, stop):
        return False
    return opened and not data[start : start + 1].isspace() and data[stop : stop + 1] == b"<"


_PLIST_KEY = re.compile(rb"<key>[\w .:-]*\Z")
_OPENED = re.compile(rb"<[\w:.-]*\Z")
_NEXT_FIELD = re.compile(rb"&\w+=")


def _rule_for_names(names: tuple[str, ...], *, bounded: bool) -> SecretRule:
    ways: tuple[tuple[Part, ...], ...] = (
        (*QUOTE, *ASSIGNMENT, *QUOTE),
        (*ASSIGNMENT, *QUOTE),
        ARROW,
        PAIR,
        NEXT_ITEM,
        MARKDOWN,
        PROSE,
        LITERAL,
        FORM_PART,
        CDATA,
        ELEMENT,
        ELEMENT_WITH_ATTRIBUTES,
        PLIST,
        BRACKETED,
        QUOTED_IN_URL,
    )
    return SecretRule(
        kind="J",
        lead=(Word(names, nocase=True), Either(ways)),
        end=named_end,
        is_real=_is_named_value,
        is_bounded=bounded,
    )


_IDENTIFIED_BY = SecretRule(
    kind="J",
    lead=(Word(("identified by",), nocase=True), Repeat("\\s", 1, 4), *QUOTE),
    end=named_end,
    is_real=is_actual_value,
)

_BEHIND_VALUE = (
    *QUOTE,
    *(GAP, Word((",",)), GAP, *QUOTE),
    *(Word(("name", "key", "header", "variable"), nocase=True), *QUOTE, *ASSIGNMENT, *QUOTE),
    Repeat("[\\w.\\- ]", 0, 48),
)
_LAST_NAMES = (Word((*SECRET_NAMES, "token", "secret", "auth"), nocase=True), *QUOTE)


# Compiled on first use: they take 14 ms, and few texts have a value before its name.
@cache
def _name_behind() -> re.Pattern[bytes]:
    return re.compile(full_expression((*_BEHIND_VALUE, *_LAST_NAMES)).encode())


@cache
def _name_may_follow() -> re.Pattern[bytes]:
    return re.compile(rf"(?:{beginnings_expression((*_BEHIND_VALUE, *_LAST_NAMES))})?\Z".encode())


def compile_expressions() -> None:
    """Compile now what is otherwise compiled on first use."""
    _name_behind()
    _name_may_follow()


def _end_before_name(data: bytes, at: int) -> End:
    value_end = quoted_end(data, at)

    def end(data: bytes, at: int) -> int:
        stop = value_end(data, at)
        return len(data) if _name_may_follow().match(data, stop) else stop

    return end


_VALUE_BEFORE_NAME = SecretRule(
    kind="J",  # {"value": …, "name": "API_KEY"}
    lead=(Word(("value",), nocase=True), *QUOTE, *ASSIGNMENT, *QUOTE),
    end=_end_before_name,
    is_real=lambda data, lead, start, stop: (
        data[lead - 1 : lead] in (b'"', b"'")
        and _name_behind().match(data, stop) is not None
        and is_actual_value(data, lead, start, stop)
    ),
    is_bounded=False,
)

NAMED: tuple[SecretRule, ...] = (
    COOKIES,
    *CONTAINERS,
    _rule_for_names(SECRET_NAMES, bounded=False),
    _rule_for_names(BARE_NAMES, bounded=True),
    SecretRule(
        kind="J",
        lead=(
            Word(LIKELY_NAMES, nocase=True),
            Either(((*QUOTE, *ASSIGNMENT, *QUOTE), QUOTED_IN_URL, FORM_PART, ELEMENT)),
        ),
        end=named_end,
        is_real=_is_likely_value,
    ),
    SecretRule(
        kind="J",  # Azure OpenAI On Your Data: {"type": "api_key", "key": …}
        lead=(Word(("api_key",)), *QUOTE, GAP, Word((",",)), GAP, *QUOTE, Word(("key",)), *QUOTE, *ASSIGNMENT, *QUOTE),
        end=named_end,
        is_real=is_actual_value,
    ),
    SecretRule(
        kind="J",
        # In a shell, a .env file or a connection string
        lead=(
            Word(
                (
                    *("ACCESS_KEY=", "_KEY=", "_PASS=", "_PWD=", "_AUTH=", "_CREDENTIALS="),
                    *("AccountKey=", "SharedAccessKey="),
                )
            ),
            *MAYBE_QUOTE,
        ),
        end=named_end,
        is_real=_is_value_of_variable,
        is_bounded=False,
    ),
    SecretRule(
        kind="J",  # in YAML too
        lead=(Word(("SECRET", "TOKEN")), *ASSIGNMENT, *MAYBE_QUOTE),
        end=named_end,
        is_real=_is_value_of_variable,
        is_bounded=False,
    ),
    SecretRule(
        kind="J",
        # `token=…` without quotes is one of the parameters.
        lead=(
            Word(("token", "jwt"), nocase=True),
            Either(((GAP, Word((":",)), GAP, *MAYBE_QUOTE), (*ASSIGNMENT, *QUOTE), (GAP, Word(("= ",)), GAP))),
        ),
        end=named_end,
        is_real=is_own_variable,
    ),
    SecretRule(
        kind="J",  # "jwt_secret": "…", "stripeSecret": "…", and SecretString of AWS Secrets Manager
        lead=(Word(("secret", "secretstring"), nocase=True), *QUOTE, *ASSIGNMENT, *QUOTE),
        end=named_end,
        is_real=_is_value_of_secret,
        is_bounded=False,
    ),
    SecretRule(
        kind="J",  # .netrc
        lead=(Word(("login ",)), Repeat("[^\\s\"'\\\\]", 1, 64), Repeat("[ ]", 1, 4), Word(("password ",))),
        end=named_end,
        is_real=_is_value_of_netrc,
    ),
    _IDENTIFIED_BY,
    _VALUE_BEFORE_NAME,
    PACKED,
    *COMMANDS,
    *OPTIONS,
    *PARAMETERS,
)
