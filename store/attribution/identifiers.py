"""Collect the identifiers in what a call asked and got: ticket numbers, ids of orders, of files. Pure.

Words with a digit in them count: other words say nothing of whose work a call is.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from calls.model import Call, Exchange
from store.call_graph.call_graph import values_in

MOST: Final = 192
"""Identifiers of one exchange: of one with more it is not known what else it may hold."""

READ: Final = 64 << 10
"""Characters in which they are looked for."""

_IDENTIFIER: Final = re.compile(r"(?=[A-Za-z_-]*\d)[A-Za-z0-9][\w-]{2,63}", re.ASCII)
_RANDOM: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{24,}", re.IGNORECASE
)


class Identifiers(NamedTuple):
    """What an exchange says."""

    asked: frozenset[str]
    """In its request, but for those that look random and are not in its path."""

    known: frozenset[str]
    """In its request and its answer."""

    is_whole: bool
    """Whether these are all."""


def identifiers(exchange: Exchange, call: Call) -> Identifiers:
    """The identifiers of a call."""
    url, url_is_read = _found(_in_url(exchange.request.url))
    body, body_is_read = _found(values_in(call.request))
    answer, answer_is_read = _found([call.text or "", *values_in(call.answer), *_arguments(call)])
    known = list(dict.fromkeys([*url, *body, *answer]))
    asked = frozenset((*url, *(one for one in body if not _RANDOM.fullmatch(one))))
    is_whole = url_is_read and body_is_read and answer_is_read and len(known) <= MOST and not exchange.truncated
    return Identifiers(asked, frozenset(known[:MOST]), is_whole)


def _arguments(call: Call) -> Iterator[str]:
    for tool in call.tool_calls:
        yield from values_in(tool.arguments)


def _found(texts: Iterable[str]) -> tuple[list[str], bool]:
    """The identifiers in these texts, and whether all of them were read."""
    found: list[str] = []
    left = READ
    for text in texts:
        found += _IDENTIFIER.findall(text[:left])
        left -= len(text)
        if left < 0:
            return found, False
    return found, True


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield unquote(parts.path)
        for name, value in parse_qsl(parts.query, max_num_fields=100):
            yield name
            yield value
    except ValueError:
        return
