"""Collect the identifiers in the request and answer of a call, such as ticket numbers and ids of orders or files. Pure.

Only words with a digit count, because other words do not show which work a call belongs to.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from calls.model import Call, Exchange
from store.call_graph.call_graph import scalar_values

MAX_IDENTIFIERS: Final = 192
"""Identifiers of an exchange at most; if it has more, they are incomplete."""

MAX_CHARACTERS: Final = 64 << 10
"""Characters that are searched at most, in each part of an exchange."""

_IDENTIFIER: Final = re.compile(r"(?=[A-Za-z_-]*\d)[A-Za-z0-9][\w-]{2,63}", re.ASCII)
_RANDOM_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{24,}", re.IGNORECASE
)


class Identifiers(NamedTuple):
    """The identifiers in an exchange."""

    in_request: frozenset[str]
    """Those in its request, without those in its body that look random."""

    in_call: frozenset[str]
    """Those in its request and its answer."""

    is_whole: bool
    """Whether all identifiers were collected."""


def collect_identifiers(exchange: Exchange, call: Call) -> Identifiers:
    """Collect the identifiers of a call."""
    url, url_is_read = _find_identifiers(_url_texts(exchange.request.url))
    body, body_is_read = _find_identifiers(scalar_values(call.request))
    answer, answer_is_read = _find_identifiers([call.text or "", *scalar_values(call.answer), *_argument_values(call)])
    in_call = list(dict.fromkeys([*url, *body, *answer]))
    in_request = frozenset((*url, *(one for one in body if not _RANDOM_ID.fullmatch(one))))
    is_read = url_is_read and body_is_read and answer_is_read
    is_whole = is_read and len(in_call) <= MAX_IDENTIFIERS and not exchange.is_truncated
    return Identifiers(in_request, frozenset(in_call[:MAX_IDENTIFIERS]), is_whole)


def _argument_values(call: Call) -> Iterator[str]:
    for tool in call.tool_calls:
        yield from scalar_values(tool.arguments)


def _find_identifiers(texts: Iterable[str]) -> tuple[list[str], bool]:
    """Find the identifiers in these texts; also return whether all text was read."""
    found: list[str] = []
    remaining = MAX_CHARACTERS
    for text in texts:
        found += _IDENTIFIER.findall(text[:remaining])
        remaining -= len(text)
        if remaining < 0:
            return found, False
    return found, True


def _url_texts(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield unquote(parts.path)
        for name, value in parse_qsl(parts.query, max_num_fields=100):
            yield name
            yield value
    except ValueError:
        return
