"""Write values as JSON that can be recorded, compared and read back.

JSON's own types, and with a tag: `bytes`, `datetime`, `date`, and floats that JSON does not have. A tuple becomes a list. Anything else is
refused, because the text of an object (`<Ticket at 0x7f…>`) says nothing about its content.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from datetime import date, datetime
from typing import Any, Union

Json = Union[None, bool, int, float, str, "list[Json]", "dict[str, Json]"]

_TAGS = ("$bytes", "$datetime", "$date", "$float", "$dict")


class NotRecordable(TypeError):
    """A value that is not plain data. The message says where it is."""


def to_json(value: Any, what: str, pointer: str = "") -> Json:
    """Return a value as JSON; `what` names it in the message. Raises NotRecordable."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, (list, tuple)):
        return [to_json(each, what, f"{pointer}/{place}") for place, each in enumerate(value)]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise NotRecordable(f"{what} has a key at {pointer or '/'} that is not a str: {name!r}")
        members = {name: to_json(each, what, f"{pointer}/{name}") for name, each in value.items()}
        return {"$dict": members} if len(members) == 1 and next(iter(members)) in _TAGS else members
    raise NotRecordable(
        f"{what} has a {type(value).__qualname__} at {pointer or '/'}: "
        "use str, int, float, bool, None, bytes, datetime, date, lists and dicts"
    )


def from_json(value: Json) -> Any:
    """Return the value of which `to_json` made this."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(tag, content)] = value.items()
        if tag == "$dict" and isinstance(content, dict):
            return {name: from_json(each) for name, each in content.items()}
        if isinstance(content, str):
            if tag == "$bytes":
                return base64.b64decode(content)
            if tag == "$datetime":
                return datetime.fromisoformat(content)
            if tag == "$date":
                return date.fromisoformat(content)
            if tag == "$float":
                return float(content)
    return {name: from_json(each) for name, each in value.items()}


def digest(value: Json) -> str:
    """Return `sha256:` and the digest of a value's JSON with sorted members and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def first_difference(one: Json, other: Json, pointer: str = "") -> tuple[str, Json, Json] | None:
    """Return the first place (a JSON pointer) at which two values differ, and what each has there. None if they are equal.

    A member that only one of them has is `None` in the other. `1`, `1.0` and `true` differ.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            if (name in one) != (name in other):
                return place, one.get(name), other.get(name)
            if (found := first_difference(one[name], other[name], place)) is not None:
                return found
        return None
    if isinstance(one, list) and isinstance(other, list):
        for number, (here, there) in enumerate(zip(one, other)):
            if (found := first_difference(here, there, f"{pointer}/{number}")) is not None:
                return found
        if len(one) == len(other):
            return None
        short = min(len(one), len(other))
        before, after = (each[short] if short < len(each) else None for each in (one, other))
        return f"{pointer}/{short}", before, after
    # By their text, because 0.0 == -0.0.
    return None if type(one) is type(other) and repr(one) == repr(other) else (pointer, one, other)
