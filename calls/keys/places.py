"""Places in a JSON document, as the paths of rules name them."""

from dataclasses import dataclass

type Place = tuple["str | int | Type | None", ...]
"""Member names, indexes and types from the root down; None is every member or element."""


class BadPath(ValueError):
    """This is not an RFC 9535 path."""


@dataclass(frozen=True, slots=True)
class Type:
    """Every element whose `type` is this."""

    name: str
