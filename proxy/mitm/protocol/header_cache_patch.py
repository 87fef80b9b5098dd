"""Replace slow functions of mitmproxy's headers and messages, which cost a tenth of every call.

mitmproxy decodes and lowercases every header name at each lookup, and checks the field types of each new message (without
`python -O`). The results are equal, which tests/proxy/mitm/protocol/test_header_cache_patch.py checks.
"""

from mitmproxy import http

type Fields = tuple[tuple[bytes, bytes], ...]


def install() -> None:
    """Replace mitmproxy's functions in this process."""
    headers, data = http.Headers, http.MessageData
    headers.get_all = get_all  # type: ignore[method-assign, assignment]
    headers.get = get  # type: ignore[method-assign, assignment]
    headers.__getitem__ = get_item  # type: ignore[method-assign, assignment]
    headers.__contains__ = has_header  # type: ignore[method-assign, assignment]
    data.__post_init__ = skip_type_check  # type: ignore[method-assign]


def get_all(headers: http.Headers, name: str | bytes) -> list[str]:
    """Return all values of a header."""
    return list(_values(headers, name))


def get(headers: http.Headers, key: str | bytes, default: str | None = None) -> str | None:
    """Return the values of a header, joined into one."""
    values = _values(headers, key)
    return ", ".join(values) if values else default


def get_item(headers: http.Headers, key: str | bytes) -> str:
    """Return the values of a header, joined into one. Raises KeyError if there is none."""
    values = _values(headers, key)
    if not values:
        raise KeyError(key)
    return ", ".join(values)


def has_header(headers: http.Headers, key: object) -> bool:
    """Return whether there is such a header."""
    return isinstance(key, str | bytes) and bool(_values(headers, key))


def skip_type_check(_data: http.MessageData) -> None:
    """Do nothing: mypy checks the types."""


def _values(headers: http.Headers, name: str | bytes) -> list[str] | tuple[()]:
    encoded = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    fields = headers.fields
    # The tuple of fields is never changed in place, so its identity is the key of the cache.
    known: tuple[Fields, dict[bytes, list[str]]] | None = headers.__dict__.get("_by_name")
    if known is None or known[0] is not fields:
        known = headers.__dict__["_by_name"] = fields, _by_name(fields)
    return known[1].get(encoded.lower(), ())


def _by_name(fields: Fields) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for name, value in fields:
        found.setdefault(name.lower(), []).append(value.decode("utf-8", "surrogateescape"))
    return found
