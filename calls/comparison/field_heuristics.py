"""Guess the class of a field that differs between two recordings from its name and values.

A guess comes with its reason for the user to judge, and is applied only on request.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final, Literal

from calls.keys.divergence import AbsentValue, common_prefix_length
from calls.model import Json
from calls.placeholder import PATTERN

type GuessedClass = Literal["transient", "identity", "secret", "key", "id", "nonces"]
"""A class of a profile, or one of its folds: an `id` counts by its first occurrence, `nonces` leave out the first line."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The likely class of a field, with the reason."""

    field_class: GuessedClass
    reason: str
    is_by_name: bool = False
    """Whether the guess follows from the field's name, whatever its values."""
    nonce_start: str = ""
    """For a nonce: the beginning of its line."""


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
"""The ranges of epoch times from 2001 to 2096, in seconds, milliseconds, microseconds and nanoseconds."""

_SECRET_NAMES: Final = re.compile(
    r"(.*_)?(password|passwd|secret|client_secret|api_?key|apikey|(access|refresh|auth|id|session|bearer)_token"
    r"|authorization|signature|credentials?)|token"
)
_IDENTITY_NAMES: Final = re.compile(
    r"(.*_)?(user|session|account|tenant|customer|device|client|visitor|conversation|organization|org|team|agent|actor)"
    r"(_(id|name|uuid|key))?|metadata|prompt_cache_key|safety_identifier"
)
_TRANSIENT_NAMES: Final = re.compile(
    r"(.*_)?(nonce|salt|timestamp|(request|correlation|trace|span|invocation|event|message)_?(id|uuid)|traceparent"
    r"|idempotency_key|sent_at|created(_at)?|updated_at|requested_at|issued_at|(local|client|current)_(time|date)|cache_?buster)|now|ts"
)
_DURATION_NAMES: Final = re.compile(
    r"(.*_)?(took|elapsed|duration|latency|uptime|age|remaining|processing_time|query_time)(_?(ms|us|ns|s|secs?|seconds|millis))?"
    r"|.*_(ms|us|ns|secs|seconds|millis)"
)
_MODEL_NAMES: Final = re.compile(r"(.*_)?model(_?(id|name))?|deployment")
_COUNTER_NAMES: Final = re.compile(r"(.*_)?(id|seq|sequence|counter|serial|attempt|revision)")

_PROSE_LENGTH: Final = 40
"""A longer text with spaces is treated as prose."""


def guess_class(name: str, one: Json | AbsentValue, other: Json | AbsentValue) -> Guess:
    """Guess the class of a field from its name and two differing values."""
    snake_name = _snake_case(name)
    present = [value for value in (one, other) if not isinstance(value, AbsentValue)]
    if _SECRET_NAMES.fullmatch(snake_name) or any(
        isinstance(value, str) and re.fullmatch(PATTERN, value) for value in present
    ):
        return Guess("secret", "its name or a placeholder marks it as a secret", is_by_name=True)
    if _MODEL_NAMES.fullmatch(snake_name):
        return Guess("key", "the model always matters")
    shapes = {value_shape(value) for value in present}
    if len(shapes) == 1 and (shape := shapes.pop()):
        kind: GuessedClass = "identity" if _IDENTITY_NAMES.fullmatch(snake_name) else "transient"
        return Guess(kind, f"looks like {shape}")
    if all(_is_small_number(value) for value in present) and _COUNTER_NAMES.fullmatch(snake_name):
        return Guess("transient", "looks like a counter", is_by_name=True)
    if isinstance(one, str) and isinstance(other, str):
        if starts := _nonce_label(one, other):
            return Guess("nonces", f"a first line {starts}… that is generated anew", nonce_start=starts)
        if _is_prose(one) and _is_prose(other):
            return _guess_prose(one, other)
    if any(isinstance(value, dict | list) for value in present):
        return Guess("key", "its structure differs")
    if _IDENTITY_NAMES.fullmatch(snake_name):
        return Guess("identity", "its name is that of a user, session or account", is_by_name=True)
    if _TRANSIENT_NAMES.fullmatch(snake_name):
        return Guess("transient", "its name is that of a value generated for each request", is_by_name=True)
    return Guess("key", "nothing suggests that it does not matter")


def guess_answer_class(name: str, one: Json | AbsentValue, other: Json | AbsentValue) -> Guess | None:
    """Guess whether a field of answers may be ignored, from its name and two values; None if nothing suggests it."""
    if isinstance(one, AbsentValue) or isinstance(other, AbsentValue):
        return None
    shape = value_shape(one)
    if shape is not None and shape == value_shape(other):
        return Guess("transient", f"looks like {shape}")
    numbers = all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (one, other))
    if numbers and _DURATION_NAMES.fullmatch(_snake_case(name)):
        return Guess("transient", "its name is that of a duration", is_by_name=True)
    return None


def is_per_request_name(name: str) -> bool:
    """Return whether a field of this name is generated for each request: `request_id`, `created_at`."""
    return _TRANSIENT_NAMES.fullmatch(_snake_case(name)) is not None


def value_shape(value: Json) -> str | None:
    """Return the kind of generated value that this looks like; None if it looks like none."""
    match value:
        case bool() | None:
            return None
        case int() | float() | Decimal():
            return "a timestamp" if _is_epoch(value) else None
        case str():
            return _text_shape(value.strip())
        case _:
            return None


def _text_shape(value: str) -> str | None:
    if _UUID.fullmatch(value):
        return "a uuid"
    if _ISO.fullmatch(value) or _DAY.fullmatch(value):
        return "a timestamp"
    if value.isdecimal() and value.isascii():
        return "a timestamp" if len(value) < 20 and _is_epoch(int(value)) else None
    return "a random id" if not re.search(r"\s", value) and _is_random(value) else None


def _is_random(value: str) -> bool:
    """Return whether digits, lower and upper case alternate in a part of the value, unlike in `gpt-4o-2024-08-06`."""
    return any(sum(map(str.isdigit, part)) >= 2 and _count_turns(part) >= 4 for part in _SEGMENT.findall(value))


def _count_turns(text: str) -> int:
    kinds = [char.isdigit() + 2 * char.isupper() for char in text]
    return sum(before != after for before, after in pairwise(kinds))


def _is_epoch(value: int | float | Decimal) -> bool:
    return any(low <= value < high for low, high in _EPOCHS)


def _is_small_number(value: Json) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) < 10
    return type(value) is int and abs(value) < 10**9


def _is_prose(text: str) -> bool:
    return len(text) > _PROSE_LENGTH and " " in text


def _nonce_label(one: str, other: str) -> str:
    """Return the label of the first line if two texts differ only in that line, else ""."""
    head, break_, rest = one.partition("\n")
    label = re.match(r"[A-Za-z][\w-]{3,}:", head)
    same = break_ and label and rest == other.partition("\n")[2] and other.startswith(label[0])
    return label[0] if same and label else ""


def _guess_prose(one: str, other: str) -> Guess:
    """Guess for two texts. The differing part gives the reason, but no rule can leave out a part of a text."""
    shapes = {_differing_shape(one, other), _differing_shape(other, one)}
    if len(shapes) == 1 and (shape := shapes.pop()):
        return Guess(
            "key", f"{shape} within a text: no rule can leave out a part of a text, so remove it in the program"
        )
    return Guess("key", "the texts differ")


def _differing_shape(one: str, other: str) -> str | None:
    """Return what the part of the first text that differs from the second looks like (a date, a uuid …), or None."""
    start = common_prefix_length(one, other)
    end = len(one) - common_prefix_length(one[start:][::-1], other[start:][::-1])
    near = one[max(0, start - _CONTEXT_LENGTH) : end + _CONTEXT_LENGTH]
    first, last = min(start, _CONTEXT_LENGTH), min(start, _CONTEXT_LENGTH) + end - start
    for name, shape in _SHAPES:
        if any(found.start() <= last and first <= found.end() for found in shape.finditer(near)):
            return name
    return _text_shape(_words_around(one, start, end))


def _words_around(text: str, start: int, end: int) -> str:
    """Return the whole words around a part of a text."""
    left, right = text.rfind(" ", 0, start) + 1, text.find(" ", end)
    return text[left : right if right >= 0 else len(text)].strip(" \n\t.,;:()[]<>\"'")


_CONTEXT_LENGTH: Final = 60
"""Characters on either side of a difference that are examined; no date is longer."""

_SHAPES: Final = (("a uuid", _UUID), ("a date", _ISO), ("a date", _DAY), ("a time", _CLOCK))


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
