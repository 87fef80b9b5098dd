"""Digest all that a request says, whatever its profile ignores; only noise of the transport is left out.

Equal raw digests have equal strict keys, and equal strict keys have equal keys under every profile. So a hit can say by
which tier it matched: the same bytes, the same request, or the same in what its profile calls load-bearing.
"""

from collections.abc import Iterator
from typing import Final

from calls import placeholder
from calls.codec import body
from calls.codec.canonical import canonical_parsed, digest, unicode
from calls.keys.profile import NEVER_KEYS
from calls.model import Headers, Json, Request
from calls.route import target

DOMAIN: Final = "strict/1"

_OF_THE_BODY: Final = frozenset(("content-encoding", "content-type"))
"""How the body is packed and labelled: it counts by what it was read as."""


def strict_key(request: Request, read: body.Read) -> str:
    """The strict key of a (redacted) request and of its body, as it was read."""
    authority, path, query = target(request.url)
    said = {
        "method": unicode(request.method.upper()),
        "origin": unicode(f"{_scheme(request.url)}://{authority}"),
        "path": path,
        "query": [[name, value] for name, value in body.pairs(query)],
        "headers": _headers(request.headers),
        "form": read.form,
        "body": read.value,
    }
    text = canonical_parsed(said)
    # Another machine's secrets are the same request: they count by where they occur.
    return digest(DOMAIN, placeholder.fold(text.decode()).encode() if placeholder.MARK in text else text)


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _headers(headers: Headers) -> Json:
    """Every header but those of one sending, of the body's packing, and those that are nothing but a secret."""
    return [[name, value] for name, value in sorted(_telling(headers))]


def _telling(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        lowered = name.lower()
        noise = lowered in _OF_THE_BODY or NEVER_KEYS.fullmatch(lowered)
        if not noise and not placeholder.is_placeholder(value.encode("latin-1", "replace")):
            yield unicode(lowered), unicode(value.strip())
