"""Token counts that a provider tells in its headers: the body of a model on Bedrock may have none."""

from typing import Final

from calls.model import Headers, Usage, header

_BEDROCK: Final = "x-amzn-bedrock-{}-token-count"


def counted(headers: Headers) -> Usage:
    """What the headers of a response say that it took."""
    return Usage(
        input_tokens=_count(headers, "input"),
        output_tokens=_count(headers, "output"),
        cached_tokens=_count(headers, "cache-read-input"),
    )


def _count(headers: Headers, what: str) -> int | None:
    written = header(headers, _BEDROCK.format(what)) or ""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 16 else None
