"""Overrides of effects: another time, file, variable or answer of a person than was recorded (docs/effects.md).

`NAME[:OF][#N]=VALUE` on a command line; in a file, `effect = "NAME[:OF]"`, `nth` and `value`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from calls.model import Json

type Action = Literal["value", "clock", "seed", "content", "process", "line", "bytes"]
"""How the hook makes a result of the value."""


class EffectValue(msgspec.Struct, frozen=True, kw_only=True):
    """Another result of an effect."""

    name: str
    """What it is about, as the user wrote it: `file:policy.txt`."""

    action: Action
    kinds: tuple[str, ...]
    argument: str | None = None
    """The name of the argument that `of` is compared with."""

    of: str | None = None
    nth: int | None = None
    """Which one of each process, from 1; None for all."""

    value: Json = None

    def rule(self, number: int) -> dict[str, Json]:
        """Return the rule for the hook."""
        return {
            "number": number,
            "action": self.action,
            "kinds": list(self.kinds),
            "argument": self.argument,
            "of": self.of,
            "nth": self.nth,
            "value": self.value,
        }


class BadEffectValue(ValueError):
    """An override of an effect is invalid. The message says why."""


class _Form(msgspec.Struct, frozen=True):
    action: Action
    kinds: tuple[str, ...]
    argument: str | None = None
    needs_argument: bool = False


_FORMS: Final[Mapping[str, _Form]] = {
    "clock": _Form("clock", ("time.time", "datetime.now")),
    "monotonic": _Form("clock", ("time.monotonic",)),
    "perf_counter": _Form("clock", ("time.perf_counter",)),
    "file": _Form("content", ("open",), "path", needs_argument=True),
    "listing": _Form("value", ("os.listdir", "os.scandir"), "path", needs_argument=True),
    "env": _Form("value", ("os.environ",), "name", needs_argument=True),
    "input": _Form("line", ("input", "sys.stdin.readline", "sys.stdin.read"), "prompt"),
    "run": _Form("process", ("subprocess.run", "os.system"), "command", needs_argument=True),
    "random": _Form("value", ("random.random", "random_source.random")),
    "seed": _Form("seed", ("random.random", "random.getrandbits", "random_source.seed", "numpy.seed", "torch.seed")),
    "uuid": _Form("value", ("uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.uuid8")),
    "bytes": _Form("bytes", ("os.urandom", "secrets.token_bytes")),
}

_WORDS: Final = re.compile(
    rf"(?P<name>{'|'.join(_FORMS)})(?P<of>:(?:[^=#]|#(?!\d+=)|=(?=[^=]*=@))*)?(?:#(?P<nth>[1-9]\d*))?=(?P<value>.*)",
    re.DOTALL,
)


def parse_effect_words(words: str) -> dict[str, Any] | None:
    """Return the entry that words of a command line stand for, with its value as text; None if they name a file."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    entry: dict[str, Any] = {"effect": found["name"] + (found["of"] or ""), "value": found["value"]}
    return entry | ({"nth": int(found["nth"])} if found["nth"] else {})


def read_effect_value(entry: Mapping[str, Any]) -> EffectValue:
    """Validate an entry with the member `effect`. Raises BadEffectValue."""
    if unknown := [name for name in entry if name not in ("effect", "nth", "value")]:
        raise BadEffectValue(f"unknown {', '.join(unknown)} beside effect: use effect, nth and value")
    name, nth = entry["effect"], entry.get("nth")
    word, colon, of = name.partition(":") if isinstance(name, str) else ("", "", "")
    form = _FORMS.get(word)
    if form is None:
        raise BadEffectValue(f"effect is {str(name)[:80]!r}: use one of {', '.join(_FORMS)}, such as env:NAME")
    if form.needs_argument and not of:
        raise BadEffectValue(f"effect {word} needs a {form.argument}: write {word}:{(form.argument or '').upper()}")
    if colon and form.argument is None:
        raise BadEffectValue(f"effect {word} has no argument: write {word}, without :{of}")
    if nth is not None and (not isinstance(nth, int) or isinstance(nth, bool) or nth < 1):
        raise BadEffectValue("nth must be a whole number of at least 1")
    if "value" not in entry:
        raise BadEffectValue(f"effect {name} needs a value")
    value = _VALUES.get(word, _text)(entry["value"], word)
    return EffectValue(
        name=name, action=form.action, kinds=form.kinds, argument=form.argument, of=of or None, nth=nth, value=value
    )


def _text(value: Any, word: str) -> Json:
    if isinstance(value, str):
        return value
    raise BadEffectValue(f"the value of {word} must be a text")


def _content(value: Any, word: str) -> Json:
    if isinstance(value, Mapping) and set(value) == {"$bytes"} and isinstance(value["$bytes"], str):
        return {"$bytes": value["$bytes"]}
    return _text(value, word)


def _variable(value: Any, word: str) -> Json:
    return None if value is None else _text(value, word)


def _names(value: Any, word: str) -> Json:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise BadEffectValue(f"the value of {word} must be a list of names")
    return [name for name in names if name]


def _process(value: Any, word: str) -> Json:
    if isinstance(value, Mapping):
        if unknown := [name for name in value if name not in ("exit", "stdout", "stderr")]:
            raise BadEffectValue(f"unknown {', '.join(unknown)} in the value of {word}: use exit, stdout and stderr")
        code, texts = value.get("exit", 0), [value.get(name) for name in ("stdout", "stderr")]
        if not isinstance(code, int) or not all(text is None or isinstance(text, str) for text in texts):
            raise BadEffectValue(f"in the value of {word}, exit must be a number, stdout and stderr texts")
        return [code, *texts]
    return [0, _text(value, word), None]


def _fraction(value: Any, word: str) -> Json:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1:
        raise BadEffectValue(f"the value of {word} must be a number from 0 to less than 1, such as 0.5")
    return {"$float": repr(number)}


def _integer(value: Any, word: str) -> Json:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 32:
        raise BadEffectValue(f"the value of {word} must be a whole number from 0 to 4294967295")
    return number


def _uuid(value: Any, word: str) -> Json:
    text = _text(value, word)
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(text).lower()):
        raise BadEffectValue(f"the value of {word} is {str(text)[:80]!r}, which is not a UUID")
    return str(text).lower()


def _hexadecimal(value: Any, word: str) -> Json:
    text = _text(value, word)
    if not re.fullmatch(r"([0-9a-fA-F]{2})+", str(text)):
        raise BadEffectValue(f"the value of {word} must be bytes in hexadecimal")
    return text


def _seconds(value: Any, word: str) -> Json:
    found = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,9}))?", str(value))
    if found is None:
        raise BadEffectValue(f"the value of {word} must be seconds, such as 12.5")
    return str(int(found[1]) * _SECOND + int((found[2] or "0").ljust(9, "0")))


_SECOND: Final = 1_000_000_000
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:[Zz]|([+-])(\d\d):(\d\d))?)?"
)
_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _time(value: Any, word: str) -> Json:
    """Return a time as nanoseconds since 1970, as text. One without an offset is in UTC."""
    found = _TIME.fullmatch(str(value))
    if found is None:
        raise BadEffectValue(f"the value of {word} is {str(value)[:80]!r}: use RFC 3339, such as 2028-02-29T12:00:00Z")
    year, month, day = (int(found[part]) for part in (1, 2, 3))
    hour, minute, second, east, north = (int(found[part] or 0) for part in (4, 5, 6, 9, 10))
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = _DAYS[month - 1] + (month == 2 and is_leap) if 1 <= month <= 12 else 0
    if not (year >= 1970 and 1 <= day <= days and hour < 24 and minute < 60 and second < 60):
        raise BadEffectValue(f"the value of {word} is {str(value)[:80]!r}, which is not a time after 1970")
    before = year - 1
    whole_years = 365 * (year - 1970) + (before // 4 - before // 100 + before // 400) - 477
    in_year = sum(_DAYS[: month - 1]) + (month > 2 and is_leap) + day - 1
    offset = (east * 60 + north) * (-60 if found[8] == "-" else 60)
    seconds = (whole_years + in_year) * 86_400 + hour * 3600 + minute * 60 + second - offset
    return str(seconds * _SECOND + int((found[7] or "0").ljust(9, "0")))


_VALUES: Final = {
    "clock": _time,
    "monotonic": _seconds,
    "perf_counter": _seconds,
    "file": _content,
    "listing": _names,
    "env": _variable,
    "run": _process,
    "random": _fraction,
    "seed": _integer,
    "uuid": _uuid,
    "bytes": _hexadecimal,
}
