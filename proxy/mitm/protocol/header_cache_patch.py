"""Replace two functions of mitmproxy that cost a tenth of every call by cheaper ones.

Its headers decode and lower every name again for each look at one, and its messages check the types of their own fields
whenever one is made (only without `python -O`). What they give stays the same; tests/proxy/mitm/protocol/test_header_cache_patch.py compares.
"""

from mitmproxy import http

type Fields = tuple[tuple[bytes, bytes], ...]


def install() -> None:
    """Put them in place of mitmproxy's own, for this process."""
    headers, data = http.Headers, http.MessageData
    headers.get_all = get_all  # type: ignore[method-assign, assignment]
    headers.get = get  # type: ignore[method-assign, assignment]
    headers.__getitem__ = item  # type: ignore[method-assign, assignment]
    headers.__contains__ = contains  # type: ignore[method-assign, assignment]
    data.__post_init__ = unchecked  # type: ignore[method-assign]


def get_all(headers: http.Headers, name: str | bytes) -> list[str]:
    """All values of a header."""
    return list(_values(headers, name))


def get(headers: http.Headers, key: str | bytes, default: str | None = None) -> str | None:
    """The values of a header, folded to one."""
    values = _values(headers, key)
    return ", ".join(values) if values else default


def item(headers: http.Headers, key: str | bytes) -> str:
    """The same. Raises KeyError where there is none."""
    values = _values(headers, key)
    if not values:
        raise KeyError(key)
    return ", ".join(values)


def contains(headers: http.Headers, key: object) -> bool:
    """Whether there is such a header."""
    return isinstance(key, str | bytes) and bool(_values(headers, key))


def unchecked(_data: http.MessageData) -> None:
    """mypy has checked the types."""


def _values(headers: http.Headers, name: str | bytes) -> list[str] | tuple[()]:
    wanted = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    fields = headers.fields
    # Fields are never changed in place: other fields are another tuple.
    known: tuple[Fields, dict[bytes, list[str]]] | None = headers.__dict__.get("_by_name")
    if known is None or known[0] is not fields:
        known = headers.__dict__["_by_name"] = fields, _by_name(fields)
    return known[1].get(wanted.lower(), ())


def _by_name(fields: Fields) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for name, value in fields:
        found.setdefault(name.lower(), []).append(value.decode("utf-8", "surrogateescape"))
    return found
