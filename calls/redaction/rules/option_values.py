"""Find secret values of command-line options, URL parameters and cookies by their names."""

import re

from calls.redaction.rules.patterns import Either, Repeat, Word
from calls.redaction.rules.secret_names import LIKELY_PARAMETERS, SECRET_NAMES, SECRET_PARAMETERS
from calls.redaction.rules.secret_rule import (
    Real,
    SecretRule,
    end_of_run,
    is_actual_value,
    is_assigned,
    is_long,
    is_token_like,
    reject_replaced,
)
from calls.redaction.rules.value_syntax import ASSIGNMENT, MAYBE_QUOTE, NEXT_ITEM, QUOTE, VALUE, is_in_query, named_end

_OPTION_NAMES = ("token", "bearer", "secret", "pass", "auth", "access~key", *SECRET_NAMES)
OPTIONS = (
    SecretRule(
        kind="J",
        lead=(
            Word(("--",)),
            Repeat("[a-zA-Z0-9-]", 0, 24),
            Word(_OPTION_NAMES, nocase=True),
            Either((NEXT_ITEM, (Repeat("[ =]", 1, 2), *MAYBE_QUOTE))),
        ),
        end=named_end,
        is_real=lambda data, lead, start, stop: _is_no_option(data, start) and is_assigned(data, lead, start, stop),
        is_bounded=False,
    ),
    SecretRule(  # .npmrc
        kind="J", lead=(Word(("_auth",)), *ASSIGNMENT, *MAYBE_QUOTE), end=named_end, is_real=is_token_like
    ),
    # The same with a quote at once: it goes before the parameter `auth=`, which would match here and find no value.
    SecretRule(
        kind="J",
        lead=(Word(("auth=",)), *QUOTE),
        end=named_end,
        is_real=lambda data, lead, start, stop: _is_npm_auth(data, lead, start, stop),
    ),
)


def _is_no_option(data: bytes, start: int) -> bool:
    return not data.startswith(b"-", start)


def _parameter_rule(names: tuple[str, ...], is_real: Real) -> SecretRule:
    return SecretRule(
        kind="Q",
        lead=(Word(names, nocase=True), Word(("=",))),
        end=VALUE,
        is_real=lambda data, lead, start, stop: (
            is_real(data, lead, start, stop) if is_in_query(data, lead) else _is_variable(data, lead, start, stop)
        ),
    )


def _is_variable(data: bytes, lead: int, start: int, stop: int) -> bool:
    if _VARIABLE.search(data, lead, start):
        return is_own_variable(data, lead, start, stop)
    return _is_npm_auth(data, lead, start, stop)


def _is_npm_auth(data: bytes, lead: int, start: int, stop: int) -> bool:
    return _NPM_AUTH.search(data, max(0, lead - 2), start) is not None and is_token_like(data, lead, start, stop)


_NPM_AUTH = re.compile(rb"(?:\A|[^\w-])_auth=(?:\\{0,7}[\"'])?\Z")
"""In `.npmrc`: the name and the password in base64."""

_VARIABLE = re.compile(rb"(?i:token|jwt)=\Z")
_BEFORE_VARIABLE = (b"", *(bytes([char]) for char in b" \t\r\n\"'{(,[:"))
"""What may be before the name of a variable; nothing where the text begins."""


def is_own_variable(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether the name is a whole variable, as in YAML, TOML, logs and code, and its value looks like a token."""
    # An escape before the name, as in `\\ntoken = …`, belongs to the lead.
    is_own = data[lead - 1 : lead] in _BEFORE_VARIABLE or data[lead : lead + 1] == b"\\"
    return is_own and is_token_like(data, lead, start, stop)


PARAMETERS = (
    _parameter_rule(SECRET_PARAMETERS, is_actual_value),
    _parameter_rule(LIKELY_PARAMETERS, reject_replaced(is_long(12))),
)

COOKIES = SecretRule(
    kind="C",
    lead=(Word(("cookie:",), nocase=True), Repeat("\\s", 0, 2)),
    end=end_of_run("^\\r\\n\"'\\\\"),
    is_real=reject_replaced(lambda data, _lead, start, stop: stop - start >= 8 and b"=" in data[start:stop]),
)
