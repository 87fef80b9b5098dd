"""Make the strict key: the digest of a whole request, whatever its profile ignores, without transport details.

Requests with equal raw digests have equal strict keys, and requests with equal strict keys have equal keys under every
profile. So a hit can report how it matched: the same bytes, the same request, or the same key fields.
"""

from collections.abc import Iterator
from typing import Final

from calls import placeholder
from calls.codec import body
from calls.codec.canonical import canonical_parsed_json, digest, escape_surrogates
from calls.keys.profile import NEVER_KEYS
from calls.model import Headers, Json, Request
from calls.route import split_url

DOMAIN: Final = "strict/1"

_BODY_HEADERS: Final = frozenset(("content-encoding", "content-type"))
"""Headers that describe the body's encoding: the body counts by its parsed value."""


def strict_key(request: Request, parsed: body.ParsedBody) -> str:
    """Make the strict key of a (redacted) request with a parsed body."""
    authority, path, query = split_url(request.url)
    content = {
        "method": escape_surrogates(request.method.upper()),
        "origin": escape_surrogates(f"{_scheme(request.url)}://{authority}"),
        "path": path,
        "query": [[name, value] for name, value in body.query_pairs(query)],
        "headers": _stable_headers(request.headers),
        "form": parsed.form,
        "body": parsed.value,
    }
    text = canonical_parsed_json(content)
    # Placeholders count by first occurrence, so that machines with other secrets get the same key.
    return digest(
        DOMAIN, placeholder.number_placeholders(text.decode()).encode() if placeholder.PREFIX in text else text
    )


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _stable_headers(headers: Headers) -> Json:
    """Return all headers except those that change on each send, those of the body's encoding, and pure secrets."""
    return [[name, value] for name, value in sorted(_stable_pairs(headers))]


def _stable_pairs(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        lowered = name.lower()
        noise = lowered in _BODY_HEADERS or NEVER_KEYS.fullmatch(lowered)
        if not noise and not placeholder.is_placeholder(value.encode("latin-1", "replace")):
            yield escape_surrogates(lowered), escape_surrogates(value.strip())
