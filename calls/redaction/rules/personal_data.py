"""Find personal data by its form: card numbers, bank accounts, e-mail addresses, telephone numbers.

Found only where the setting asks for it. A card and an account are taken by their check digits; names of people have no
form: those that are listed are found by `personal_names`.
"""

import re
from collections.abc import Callable

from calls.redaction.rules.patterns import Some, Word
from calls.redaction.rules.secret_rule import AROUND, ESCAPE, End, SecretRule, reject_replaced

_DIGITS = bytes(range(0x30, 0x3A))
_NO_DIGIT = bytes(char for char in range(256) if char not in _DIGITS)


def has_check_digit(number: bytes) -> bool:
    """Whether the last digit is the one that Luhn's algorithm gives (ISO/IEC 7812-1)."""
    digits = [char - 0x30 for char in reversed(number.translate(None, _NO_DIGIT))]
    return sum(digits[0::2]) % 10 == -sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2]) % 10


def is_account(number: bytes) -> bool:
    """Whether the check digits of an IBAN are right (ISO 13616, ISO 7064 mod 97-10)."""
    text = number.replace(b" ", b"")
    return int("".join(str(int(chr(char), 36)) for char in text[4:] + text[:4])) % 97 == 1


_MOST = 64
"""So many bytes behind its end can belong to a number or an address."""


def _rule(
    shape: bytes, begin: tuple[Some | Word, ...], is_real: Callable[[bytes], bool], *, bounded: bool = True
) -> SecretRule:
    """What has this shape, is real, and is no part of a longer word."""
    whole = re.compile(shape)

    def end(_data: bytes, start: int) -> End:
        def found(data: bytes, _at: int) -> int:
            longest = whole.match(data, start)
            for stop in range(longest.end(), start, -1) if longest else ():
                if (
                    whole.fullmatch(data, start, stop)
                    and not data[stop : stop + 1].isalnum()
                    and is_real(data[start:stop])
                ):
                    return stop
            return start

        return found

    def real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        if stop == start or is_inside_word(data, start):
            return False
        return not is_part_of_number(data, start, stop)

    return SecretRule(kind="D", begin=begin, end=end, real=reject_replaced(real), bounded=bounded, ahead=_MOST)


_DIGITS_ONLY = re.compile(rb"[0-9 -]+")
_IN_NUMBER = re.compile(rb"(?:[0-9]\.|[0-9A-Fa-f]-|\"\s*:\s*-?|\[\s*-?|,-?)\Z")


def is_part_of_number(data: bytes, start: int, stop: int) -> bool:
    """Whether these digits are a number of JSON, its decimals, or a part of a UUID: of a vector's numbers each tenth is a card's."""
    return (
        _DIGITS_ONLY.fullmatch(data, start, stop) is not None
        and _IN_NUMBER.search(data, max(0, start - AROUND), start) is not None
    )


_ESCAPED = re.compile(rb"(?:%s)\Z" % ESCAPE.encode("latin-1"))


def is_inside_word(data: bytes, start: int) -> bool:
    """Whether a letter or digit stands before, which does not belong to an escape (`\\n`)."""
    return data[start - 1 : start].isalnum() and _ESCAPED.search(data, max(0, start - AROUND), start) is None


def _any(_number: bytes) -> bool:
    return True


_LOCAL = "[A-Za-z0-9._%+\\-]"

PERSONAL_DATA: tuple[SecretRule, ...] = (
    _rule(
        rb"[2-6](?:[ -]?[0-9]){12,18}",
        (Some("[2-6]", 1, 1), Some("[0-9]", 3, 3), Some("[ \\-]", 0, 1), Some("[0-9]", 2, 2)),
        has_check_digit,
    ),
    _rule(
        rb"[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}",
        (Some("[A-Z]", 2, 2), Some("[0-9]", 2, 2), Some("[ ]", 0, 1), Some("[A-Z0-9]", 4, 4)),
        is_account,
    ),
    _rule(
        rb"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,40}\.){1,8}[A-Za-z]{2,24}",
        (Some(_LOCAL, 1, 64), Word(("@",)), Some("[A-Za-z0-9]", 1, 1)),
        _any,
    ),
    _rule(
        rb"\+[1-9](?:[ ().-]{0,2}[0-9]){7,14}",
        (Word(("+",)), Some("[1-9]", 1, 1), Some("[0-9]", 0, 2), Some("[ ().\\-]", 0, 2), Some("[0-9]", 2, 2)),
        _any,
        bounded=False,
    ),
    _rule(
        rb"\([2-9][0-9]{2}\)[ .-]{0,2}[0-9]{3}[ .-][0-9]{4}",
        (Word(("(",)), Some("[2-9]", 1, 1), Some("[0-9]", 2, 2), Word((")",))),
        _any,
        bounded=False,
    ),
    _rule(
        rb"[2-9][0-9]{2}[.-][0-9]{3}[.-][0-9]{4}",
        (Some("[2-9]", 1, 1), Some("[0-9]", 2, 2), Some("[.\\-]", 1, 1), Some("[0-9]", 3, 3), Some("[.\\-]", 1, 1)),
        _any,
    ),
)
