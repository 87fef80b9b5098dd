"""The places in a JSON document that the paths of rules name."""

from dataclasses import dataclass

type Place = tuple["str | int | ElementType | None", ...]
"""Member names, indexes and types from the root down; None is every member or element."""


class BadPath(ValueError):
    """The text is not an RFC 9535 path."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """Every element with this `type`."""

    name: str
