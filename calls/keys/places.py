"""The places in a JSON document that the paths of rules name."""

import msgspec

type Place = tuple["str | int | ElementType | None", ...]
"""Member names, indexes and types from the root down; None is every member or element."""


class BadPath(ValueError):
    """The text is not an RFC 9535 path."""


class ElementType(msgspec.Struct, frozen=True):
    """Every element with this `type`."""

    name: str
