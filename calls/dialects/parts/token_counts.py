"""Read token counts from headers (Bedrock, Hugging Face) and from Cohere's answers, and add up those of a session."""

from collections.abc import Iterable, Mapping
from typing import Final

from calls.codec.lenient_json import as_count, as_object
from calls.model import Headers, Json, Usage, header

_INPUT: Final = ("x-amzn-bedrock-input-token-count", "x-prompt-tokens")
_OUTPUT: Final = ("x-amzn-bedrock-output-token-count", "x-generated-tokens")
_CACHED: Final = ("x-amzn-bedrock-cache-read-input-token-count",)


_LENGTHS: Final = frozenset(map(len, (*_INPUT, *_OUTPUT, *_CACHED)))
NO_USAGE: Final = Usage()


def header_usage(headers: Headers) -> Usage:
    """The token counts in the headers of a response."""
    # Nearly no response has such a header.
    found = tuple((name.lower(), value) for name, value in headers if len(name) in _LENGTHS)
    if not found:
        return NO_USAGE
    return Usage(
        input_tokens=_count(found, _INPUT),
        output_tokens=_count(found, _OUTPUT),
        cached_tokens=_count(found, _CACHED),
    )


def cohere_usage(meta: Mapping[str, Json]) -> Usage:
    """The billed counts of an answer of Cohere, or else the actual ones: searches are billed in other units."""
    billed, actual = as_object(meta.get("billed_units")), as_object(meta.get("tokens"))
    return Usage(
        input_tokens=as_count((billed if "input_tokens" in billed else actual).get("input_tokens")),
        output_tokens=as_count((billed if "output_tokens" in billed else actual).get("output_tokens")),
        cached_tokens=as_count(meta.get("cached_tokens")),
    )


def sum_usages(usages: Iterable[Usage]) -> Usage:
    """Add up the counts that are known."""
    total: dict[str, int] = {}
    for usage in usages:
        for name in Usage.__slots__:
            if (number := getattr(usage, name)) is not None:
                total[name] = total.get(name, 0) + number
    return Usage(**total)


def _count(headers: Headers, names: tuple[str, ...]) -> int | None:
    digits = next((value for value in (header(headers, name) for name in names) if value), "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None
