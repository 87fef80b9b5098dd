"""Find secrets in commands of a shell that no name of their own marks: the command says what a short option or a word is.

A command is a line, or a list of its words in JSON. Only the `LOOKBEHIND` bytes before an option can show its command.
"""

import re

from calls.redaction.rules.patterns import Either, Part, Repeat, Word
from calls.redaction.rules.secret_names import SECRET_NAMES
from calls.redaction.rules.secret_rule import (
    LOOKBEHIND,
    Real,
    SecretRule,
    is_actual_value,
    is_assigned,
    reject_replaced,
)
from calls.redaction.rules.value_syntax import MAYBE_QUOTE, NEXT_ITEM, named_end, word_end

_ARGUMENT = Either((NEXT_ITEM, (Repeat("[ =]", 0, 2), *MAYBE_QUOTE)))
"""What is between an option and its value, if anything is."""

_WORD_BEFORE = (" ", '"', "'")
_CONTINUED = rb"(?<=\\)\n|(?<=\\\r)\n"
_SAME_LINE = rb"(?:[^\n]|" + _CONTINUED + rb")*\Z"
_SAME_COMMAND = rb"(?:[^\n|;&]|" + _CONTINUED + rb"|(?<=[^\s;&\"'])[;&](?=[\w%]))*\Z"
"""Up to the next command. A sign between two words, as in `?a=1&b=2`, separates no commands."""

_MYSQL = re.compile(rb"\b(?:mysql|mariadb)[\w-]*" + _SAME_COMMAND)
_COMMANDS = {
    b"p": re.compile(
        rb"(?:\blogin\b|--service-principal\b|\b(?:twine|mongo(?:sh|dump|restore)?|snowsql|sqlcmd)\b)" + _SAME_COMMAND
        + rb"|\bsshpass[\s\"',\\]*\Z"
    ),
    b"w": re.compile(rb"\bldap\w+" + _SAME_COMMAND),
    b"a": re.compile(rb"\b(?:redis-cli|http|https|xh)\b(?!:)" + _SAME_COMMAND),
    b"k": re.compile(rb"\bnuget\W+push\b" + _SAME_COMMAND),
    b"t": re.compile(rb"\bfly(?:ctl)?\W+auth\W+login\b" + _SAME_COMMAND),
    b"b": re.compile(rb"\bsecret\W+set\b" + _SAME_COMMAND),
}  # fmt: skip
"""The commands whose option of this letter is followed by a password or token."""

_SETTINGS = (
    *("_auth", "_authToken", "_password", "npmAuthToken", "npmAuthIdent", "pypi-token.pypi", "pypi-token.testpypi"),
    *SECRET_NAMES,
)

_ANY_COMMAND = re.compile(
    rb"login|principal|twine|mongo|snowsql|sqlcmd|sshpass|mysql|mariadb|ldap|redis|http|xh|nuget|fly|secret|curl|wget"
)


def is_of_another_command(data: bytes, at: int) -> bool:
    """Return whether an option begins here that no command is before in which it is secret, as nearly everywhere.

    It only saves the search for the rule that matches.
    """
    if data[at + 1 : at + 2] != b"-" or data[at : at + 1] not in (b" ", b'"', b"'"):
        return False
    begin = max(0, at - LOOKBEHIND)
    line = data.rfind(b"\n", begin, at)
    if line > 0 and data[line - 1 : line] not in (b"\\", b"\r"):
        begin = line
    return _ANY_COMMAND.search(data, begin, at) is None


_BEGIN = (Repeat("[A-Za-z0-9+/=_.~:@!#^-]", 8, 8),)
_SHORTEST = 4
_STUCK = re.compile(rb"[ \"']-p(?:\\{0,7}[\"'])?")
_CURL = re.compile(rb"\b(?:curl|wget|http|https(?!:))\b" + _SAME_LINE)  # headers have semicolons
_SETTING = re.compile(rb"\b(?:set|config|configure|create)\b" + _SAME_COMMAND)
_NOT_A_VALUE = re.compile(
    rb"[-$<`{(].*|(?i:[a-z_-]*(?:password|passwd|pass|token|secret|value|key)s?)|(?:[\d.]+:)?\d+:\d+(?:/\w+)?",
    re.DOTALL,
)
_ENCODED = re.compile(rb"(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])[A-Za-z0-9+/]{8,}={0,2}")


def _is_given(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a word is a value that was given, and no option, variable, stand-in (`-p PASSWORD`) or port (`-p 8080:80`)."""
    return (
        stop - start >= _SHORTEST
        and is_actual_value(data, lead, start, stop)
        and not _NOT_A_VALUE.fullmatch(data, start, stop)
    )


_is_given_value = reject_replaced(_is_given)


def _is_after_option(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether the value of an option of one letter is secret, by the command before it."""
    before = data[max(0, lead - LOOKBEHIND) : lead + 1]
    # To mysql, the word after -p is the database.
    is_stuck = _STUCK.fullmatch(data, lead, start) is not None
    if is_stuck and _MYSQL.search(before):
        return is_actual_value(data, lead, start, stop)
    command = _COMMANDS.get(data[lead + 2 : lead + 3])
    if command is None or command.search(before[:-1]) is None:
        return False
    # `-port`, `-publish`: other options with this letter
    return (is_assigned if is_stuck else _is_given_value)(data, lead, start, stop)


@reject_replaced
def _is_setting(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value is given to a setting with a secret's name: `npm config set _auth dXNlcj…`."""
    if _SETTING.search(data, max(0, lead - LOOKBEHIND), lead) is None or not _is_given(data, lead, start, stop):
        return False
    return is_assigned(data, lead, start, stop) or _ENCODED.fullmatch(data, start, stop) is not None


_LOOKAHEAD = 96
_LOGIN_BEHIND = re.compile(
    rb"(?:\\{0,7}[\"'])?\s*\|\s*(?:sudo\s+-S|(?:[\w./-]+\s+){1,6}(?:login|secret|--password-stdin|--with-token)\b|chpasswd)"
)


@reject_replaced
def _is_piped(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value is written to the input of a command that expects a password or token there."""
    return _LOGIN_BEHIND.match(data, stop, stop + _LOOKAHEAD) is not None and _is_given(data, lead, start, stop)


_LOGIN = re.compile(rb"(?:\b(?:login|secret|chpasswd)\b|--with-token\b|-stdin\b)" + _SAME_COMMAND)
_SECRET_SET = re.compile(rb"\bsecrets?\W+set\b" + _SAME_COMMAND)
_OPENSSL = re.compile(rb"-pass(?:in|out|word)?(?:[ =]|\\{0,7}[\"'],\s*\\{0,7}[\"'])\Z")


def _after(command: re.Pattern[bytes], is_real: Real) -> Real:
    """Accept such values only behind this command."""
    return lambda data, lead, start, stop: (
        command.search(data, max(0, lead - LOOKBEHIND), lead) is not None and is_real(data, lead, start, stop)
    )


def _rule(
    lead: tuple[Part, ...], is_real: Real, *, begin: tuple[Part, ...] = (), is_bounded: bool = False
) -> SecretRule:
    return SecretRule(
        kind="U",
        lead=lead,
        begin=begin,
        end=named_end,
        is_real=is_real,
        is_bounded=is_bounded,
        lookahead=_LOOKAHEAD if is_real is _is_piped else 0,
    )


_SPACES = (Repeat("[ ]", 1, 4), *MAYBE_QUOTE)
_WRITTEN = (
    Word(("echo ", "printf ")),
    Either(
        (
            MAYBE_QUOTE,
            (Word(("-n ", "-e ", "-ne ", "-en ")), *MAYBE_QUOTE),
            (*MAYBE_QUOTE, Word(("%s",)), Repeat(r"[\\n\"']", 0, 12), Word((" ",)), *MAYBE_QUOTE),
        )
    ),
)
_USERS = tuple(f"{before}--{name}" for before in _WORD_BEFORE for name in ("user", "proxy-user", "auth"))
_LOGIN_OPTION = Either(
    (
        (Word(tuple(f"{before}-" for before in _WORD_BEFORE)), Repeat("[sSkfvLigN]", 0, 5), Word(("u", "U"))),
        (Word(_USERS),),
    )
)

COMMANDS = (
    SecretRule(
        kind="U",  # curl -u name:password, -su name:password
        lead=(_LOGIN_OPTION, _ARGUMENT, Repeat(r"[^\s:\"'\\]", 1, 32), Word((":",))),
        end=lambda _data, _at: word_end,
        is_real=_after(_CURL, is_actual_value),
        is_bounded=False,
    ),
    _rule(
        (Word(tuple(f"{before}-{letter}" for before in _WORD_BEFORE for letter in "pwaktb")), _ARGUMENT),
        _is_after_option,
    ),
    _rule((Word(("--body",)), _ARGUMENT), _after(_SECRET_SET, _is_given_value)),
    # What a command reads from its input
    _rule(_WRITTEN, _is_piped, begin=_BEGIN, is_bounded=True),
    _rule((Word(("<<<",)), Repeat("[ ]", 0, 2), *MAYBE_QUOTE), _after(_LOGIN, _is_given_value)),
    _rule((Word(("vault login", "wandb login", "cargo login")), *_SPACES), is_assigned, is_bounded=True),
    _rule((Word(("pass:",)),), _after(_OPENSSL, _is_given_value), is_bounded=True),
    _rule((Word(_SETTINGS, nocase=True), Either((NEXT_ITEM, (*MAYBE_QUOTE, *_SPACES)))), _is_setting, begin=_BEGIN),
    _rule(  # of poetry and composer, with the name of a user
        (Word(("http-basic.",)), Repeat(r"[\w.-]", 1, 32), *_SPACES, Repeat(r"[^\s\"'\\]", 1, 32), *_SPACES),
        _after(_SETTING, _is_given_value),
        is_bounded=True,
    ),
)
