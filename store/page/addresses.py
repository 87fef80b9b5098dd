"""The addresses of the page. Each shows what one address of the REST API returns: its JSON twin."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

_NAME: Final = r"[^/]{1,255}"

FILTERS: Final = frozenset(
    (
        *("since", "until", "label", "model", "provider", "tool", "host", "status", "kind", "dialect", "operation"),
        *("actor", "key", "min_cost", "min_duration", "error", "parent", "incomplete", "q"),
    )
)
"""Parameters of the page that its JSON twins have, too; all others are states of a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One kind of address."""

    template: str
    """The path, with the names of its parts in braces."""

    twin: str
    """The path of the REST API, with the same names, and maybe a query."""

    parameters: frozenset[str] = frozenset()
    """The parameters that the twin takes over; `project` always."""

    views: tuple[str, ...] = ()
    """The modules of `views/` that show it."""


ADDRESSES: Final = (
    Address(template="/", twin="/v1/runs", parameters=FILTERS | {"sort", "order"}, views=("runs", "actions")),
    Address(
        template="/runs/{run}",
        twin="/v1/runs/{run}",
        views=("run", "conversation", "said", "waterfall", "actions", "timelines"),
    ),
    Address(
        template="/runs/{run}/calls/{call}",
        twin="/v1/calls/{call}",
        views=("call", "bytes", "json", "said", "snippets", "timelines"),
    ),
    Address(template="/diff/{a}/{b}", twin="/v1/runs/{a}/diff/{b}"),
    Address(template="/costs", twin="/v1/stats?group_by=day&group_by=model", parameters=FILTERS),
    Address(template="/drift", twin="/v1/drift"),
    Address(template="/misses/{replay}", twin="/v1/replays/{replay}"),
    Address(template="/login", twin="/v1/session"),
)

TEMPLATES: Final = tuple(address.template for address in ADDRESSES)

_PATTERNS: Final = tuple(
    (re.compile(re.sub(r"\{(\w+)\}", rf"(?P<\1>{_NAME})", address.template)), address) for address in ADDRESSES
)


def is_page_path(path: str) -> bool:
    """Whether a path, percent-decoded, is an address of the page."""
    return any(pattern.fullmatch(path) for pattern, _ in _PATTERNS)


def views_of(path: str) -> tuple[str, ...]:
    """Return the modules that show an address of the page."""
    return next((address.views for pattern, address in _PATTERNS if pattern.fullmatch(path)), ())


def twin_address(path: str, parameters: list[tuple[str, str]]) -> str:
    """Return the address of the JSON that the page at `path` shows. Raises KeyError for other paths."""
    for pattern, address in _PATTERNS:
        if found := pattern.fullmatch(path):
            names = {name: quote(value, safe=":@") for name, value in found.groupdict().items()}
            allowed = [pair for pair in parameters if pair[0] in address.parameters or pair[0] == "project"]
            twin = address.twin.format(**names)
            return twin + (("&" if "?" in twin else "?") + urlencode(allowed) if allowed else "")
    raise KeyError(path)
