"""Find personal data by its form: card numbers, bank accounts, e-mail addresses, telephone numbers.

These rules apply only if the settings enable them. Card and account numbers are verified by their check digits. Names of people
have no form: those listed in the settings are found by `personal_names`.
"""

import re
from collections.abc import Callable

from calls.redaction.rules.patterns import Repeat, Word
from calls.redaction.rules.secret_rule import ESCAPE, LOOKBEHIND, End, SecretRule, reject_replaced

_DIGITS = bytes(range(0x30, 0x3A))
_NO_DIGIT = bytes(char for char in range(256) if char not in _DIGITS)


def has_check_digit(number: bytes) -> bool:
    """Return whether the last digit is correct by Luhn's algorithm (ISO/IEC 7812-1)."""
    digits = [char - 0x30 for char in reversed(number.translate(None, _NO_DIGIT))]
    return sum(digits[0::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10


def is_iban(number: bytes) -> bool:
    """Return whether the check digits of an IBAN are correct (ISO 13616, ISO 7064 mod 97-10)."""
    text = number.replace(b" ", b"")
    return int("".join(str(int(chr(char), 36)) for char in text[4:] + text[:4])) % 97 == 1


_LOOKAHEAD = 64
"""The number of bytes after a match that may still belong to a number or address."""


def _pattern_rule(
    shape: bytes, begin: tuple[Repeat | Word, ...], is_real: Callable[[bytes], bool], *, bounded: bool = True
) -> SecretRule:
    """Make a rule for values with this shape that `is_real` accepts and that are not part of a longer word."""
    whole = re.compile(shape)

    def end(_data: bytes, start: int) -> End:
        def find_end(data: bytes, _at: int) -> int:
            longest = whole.match(data, start)
            for stop in range(longest.end(), start, -1) if longest else ():
                if (
                    whole.fullmatch(data, start, stop)
                    and not data[stop : stop + 1].isalnum()
                    and is_real(data[start:stop])
                ):
                    return stop
            return start

        return find_end

    def is_not_part(data: bytes, _lead: int, start: int, stop: int) -> bool:
        if stop == start or is_inside_word(data, start):
            return False
        return not is_part_of_number(data, start, stop)

    return SecretRule(
        kind="D", begin=begin, end=end, is_real=reject_replaced(is_not_part), is_bounded=bounded, lookahead=_LOOKAHEAD
    )


_DIGITS_ONLY = re.compile(rb"[0-9 -]+")
_IN_NUMBER = re.compile(rb"(?:[0-9]\.|[0-9A-Fa-f]-|\"\s*:\s*-?|\[\s*-?|,-?)\Z")


def is_part_of_number(data: bytes, start: int, stop: int) -> bool:
    """Return whether digits belong to a JSON number, its decimals, or a UUID.

    Every tenth number of a vector would pass as a card number.
    """
    return (
        _DIGITS_ONLY.fullmatch(data, start, stop) is not None
        and _IN_NUMBER.search(data, max(0, start - LOOKBEHIND), start) is not None
    )


_ESCAPED = re.compile(rb"(?:%s)\Z" % ESCAPE.encode("latin-1"))


def is_inside_word(data: bytes, start: int) -> bool:
    """Return whether a letter or digit precedes, other than the last character of an escape (`\\n`)."""
    return data[start - 1 : start].isalnum() and _ESCAPED.search(data, max(0, start - LOOKBEHIND), start) is None


def _accept_any(_number: bytes) -> bool:
    return True


_LOCAL = "[A-Za-z0-9._%+\\-]"

PERSONAL_DATA: tuple[SecretRule, ...] = (
    _pattern_rule(
        rb"[2-6](?:[ -]?[0-9]){12,18}",
        (Repeat("[2-6]", 1, 1), Repeat("[0-9]", 3, 3), Repeat("[ \\-]", 0, 1), Repeat("[0-9]", 2, 2)),
        has_check_digit,
    ),
    _pattern_rule(
        rb"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}",
        (Repeat("[A-Z]", 2, 2), Repeat("[0-9]", 2, 2), Repeat("[ ]", 0, 1), Repeat("[A-Z0-9]", 4, 4)),
        is_iban,
    ),
    _pattern_rule(
        rb"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,40}\.){1,8}[A-Za-z]{2,24}",
        (Repeat(_LOCAL, 1, 64), Word(("@",)), Repeat("[A-Za-z0-9]", 1, 1)),
        _accept_any,
    ),
    _pattern_rule(
        rb"\+[1-9](?:[ ().-]{0,2}[0-9]){7,14}",
        (Word(("+",)), Repeat("[1-9]", 1, 1), Repeat("[0-9]", 0, 2), Repeat("[ ().\\-]", 0, 2), Repeat("[0-9]", 2, 2)),
        _accept_any,
        bounded=False,
    ),
    _pattern_rule(
        rb"\([2-9][0-9]{2}\)[ .-]{0,2}[0-9]{3}[ .-][0-9]{4}",
        (Word(("(",)), Repeat("[2-9]", 1, 1), Repeat("[0-9]", 2, 2), Word((")",))),
        _accept_any,
        bounded=False,
    ),
    _pattern_rule(
        rb"[2-9][0-9]{2}[.-][0-9]{3}[.-][0-9]{4}",
        (
            Repeat("[2-9]", 1, 1),
            Repeat("[0-9]", 2, 2),
            Repeat("[.\\-]", 1, 1),
            Repeat("[0-9]", 3, 3),
            Repeat("[.\\-]", 1, 1),
        ),
        _accept_any,
    ),
)
