"""Guess the class of a field that differs between two recordings from the look of its values.

A guess, with its reason in words, for a person to judge: it is never acted on without being asked for.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final, Literal

from calls.keys.divergence import AbsentValue, common_prefix
from calls.model import Json
from calls.placeholder import PATTERN

type Guessed = Literal["transient", "identity", "secret", "key", "id", "nonces"]
"""A class of a profile, or one of its folds: `id` counts by where it occurs first, of `nonces` the first line is left out."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What a field may count as, and why."""

    field_class: Guessed
    reason: str
    named: bool = False
    """The name of the field says so, whatever the value looks like."""
    starts: str = ""
    """Of a nonce: how its line begins."""


_UUID: Final = re.compile(r"(?:[A-Za-z][\w.]*[-_:/])?[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?)?")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?")
_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY: Final = re.compile(
    rf"(?:\w{{3,9}},? )?(?:\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}})"
    r"(?:,?(?: at)? \d\d?:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?(?: [A-Z]{2,4}| ?[+-]\d{4})?)?"
)
_SEGMENT: Final = re.compile(r"[A-Za-z0-9]{12,}")
_EPOCHS: Final = tuple((10**9 * unit, 4 * 10**9 * unit) for unit in (1, 10**3, 10**6, 10**9))
"""From 2001 to 2096, in seconds down to nanoseconds."""

_SECRETS: Final = re.compile(
    r"(.*_)?(password|passwd|secret|client_secret|api_?key|apikey|(access|refresh|auth|id|session|bearer)_token"
    r"|authorization|signature|credentials?)|token"
)
_IDENTITIES: Final = re.compile(
    r"(.*_)?(user|session|account|tenant|customer|device|client|visitor|conversation|organization|org|team|agent|actor)"
    r"(_(id|name|uuid|key))?|metadata|prompt_cache_key|safety_identifier"
)
_TRANSIENTS: Final = re.compile(
    r"(.*_)?(nonce|salt|timestamp|(request|correlation|trace|span|invocation|event|message)_?(id|uuid)|traceparent"
    r"|idempotency_key|sent_at|created(_at)?|updated_at|requested_at|issued_at|(local|client|current)_(time|date)|cache_?buster)|now|ts"
)
_DURATIONS: Final = re.compile(
    r"(.*_)?(took|elapsed|duration|latency|uptime|age|remaining|processing_time|query_time)(_?(ms|us|ns|s|secs?|seconds|millis))?"
    r"|.*_(ms|us|ns|secs|seconds|millis)"
)
_MODELS: Final = re.compile(r"(.*_)?model(_?(id|name))?|deployment")
_COUNTERS: Final = re.compile(r"(.*_)?(id|seq|sequence|counter|serial|attempt|revision)")

_PROSE: Final = 40
"""A text with blanks that is longer is read by a model, or by people."""


def guess(name: str, one: Json | AbsentValue, other: Json | AbsentValue) -> Guess:
    """What a field of this name may count as that held these two values."""
    called = _snake(name)
    given = [value for value in (one, other) if not isinstance(value, AbsentValue)]
    if _SECRETS.fullmatch(called) or any(isinstance(value, str) and re.fullmatch(PATTERN, value) for value in given):
        return Guess("secret", "its name, or a replaced value, says that it is a secret", named=True)
    if _MODELS.fullmatch(called):
        return Guess("key", "which model is asked always matters")
    shapes = {looks(value) for value in given}
    if len(shapes) == 1 and (shape := shapes.pop()):
        kind: Guessed = "identity" if _IDENTITIES.fullmatch(called) else "transient"
        return Guess(kind, f"looks like {shape}")
    if all(_small(value) for value in given) and _COUNTERS.fullmatch(called):
        return Guess("transient", "looks like a counter", named=True)
    if isinstance(one, str) and isinstance(other, str):
        if starts := _line(one, other):
            return Guess("nonces", f"a first line {starts}… that is made anew", starts=starts)
        if _prose(one) and _prose(other):
            return _within(one, other)
    if any(isinstance(value, dict | list) for value in given):
        return Guess("key", "its structure differs")
    if _IDENTITIES.fullmatch(called):
        return Guess("identity", "its name says whose request it is", named=True)
    if _TRANSIENTS.fullmatch(called):
        return Guess("transient", "its name says that it is made for one sending", named=True)
    return Guess("key", "nothing says that it does not matter")


def guess_of_answer(name: str, one: Json | AbsentValue, other: Json | AbsentValue) -> Guess | None:
    """Why a field of answers may be ignored that held these two values; None where nothing says so."""
    if isinstance(one, AbsentValue) or isinstance(other, AbsentValue):
        return None
    shape = looks(one)
    if shape is not None and shape == looks(other):
        return Guess("transient", f"looks like {shape}")
    numbers = all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (one, other))
    if numbers and _DURATIONS.fullmatch(_snake(name)):
        return Guess("transient", "its name says that it is measured anew", named=True)
    return None


def names_a_sending(name: str) -> bool:
    """Whether a field of this name is made for one sending: `request_id`, `created_at`."""
    return _TRANSIENTS.fullmatch(_snake(name)) is not None


def looks(value: Json) -> str | None:
    """What a value is an instance of, in words; None where it could mean anything."""
    match value:
        case bool() | None:
            return None
        case int() | float() | Decimal():
            return "a timestamp" if _epoch(value) else None
        case str():
            return _text(value.strip())
        case _:
            return None


def _text(value: str) -> str | None:
    if _UUID.fullmatch(value):
        return "a uuid"
    if _ISO.fullmatch(value) or _DAY.fullmatch(value):
        return "a timestamp"
    if value.isdecimal() and value.isascii():
        return "a timestamp" if len(value) < 20 and _epoch(int(value)) else None
    return "a random id" if not re.search(r"\s", value) and _random(value) else None


def _random(value: str) -> bool:
    """Whether digits, small and capital letters take turns in a part of it as no person writes: not so `gpt-4o-2024-08-06`."""
    return any(sum(map(str.isdigit, part)) >= 2 and _turns(part) >= 4 for part in _SEGMENT.findall(value))


def _turns(text: str) -> int:
    kinds = [char.isdigit() + 2 * char.isupper() for char in text]
    return sum(before != after for before, after in pairwise(kinds))


def _epoch(value: int | float | Decimal) -> bool:
    return any(low <= value < high for low, high in _EPOCHS)


def _small(value: Json) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) < 10
    return type(value) is int and abs(value) < 10**9


def _prose(text: str) -> bool:
    return len(text) > _PROSE and " " in text


def _line(one: str, other: str) -> str:
    """How the first line begins of two texts that differ in nothing but that line; empty where that is not so."""
    head, break_, rest = one.partition("\n")
    label = re.match(r"[A-Za-z][\w-]{3,}:", head)
    same = break_ and label and rest == other.partition("\n")[2] and other.startswith(label[0])
    return label[0] if same and label else ""


def _within(one: str, other: str) -> Guess:
    """Two texts: what they differ in tells why, but a rule on a field cannot leave out a part of a text."""
    shapes = {_differing(one, other), _differing(other, one)}
    if len(shapes) == 1 and (shape := shapes.pop()):
        return Guess("key", f"{shape} within a text: no rule can leave out a part of it; have the program leave it out")
    return Guess("key", "the texts differ")


def _differing(one: str, other: str) -> str | None:
    """What the part of the first text looks like in which it differs from the second."""
    start = common_prefix(one, other)
    end = len(one) - common_prefix(one[start:][::-1], other[start:][::-1])
    near = one[max(0, start - _AROUND) : end + _AROUND]
    first, last = min(start, _AROUND), min(start, _AROUND) + end - start
    for name, shape in _KINDS:
        if any(found.start() <= last and first <= found.end() for found in shape.finditer(near)):
            return name
    return _text(_words(one, start, end))


def _words(text: str, start: int, end: int) -> str:
    """The words of a text in which a part of it lies."""
    left, right = text.rfind(" ", 0, start) + 1, text.find(" ", end)
    return text[left : right if right >= 0 else len(text)].strip(" \n\t.,;:()[]<>\"'")


_AROUND: Final = 60
"""A date is no longer: of a long text only so much is looked at on either side."""

_KINDS: Final = (("a uuid", _UUID), ("a date", _ISO), ("a date", _DAY), ("a time", _CLOCK))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
