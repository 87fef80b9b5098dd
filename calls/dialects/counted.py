"""Token counts: told in headers, as by a model on Bedrock whose body may have none, and added up over the turns of a session."""

from collections.abc import Iterable
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


def added(usages: Iterable[Usage]) -> Usage:
    """The sums of what is known."""
    total: dict[str, int] = {}
    for usage in usages:
        for name in Usage.__slots__:
            if (number := getattr(usage, name)) is not None:
                total[name] = total.get(name, 0) + number
    return Usage(**total)


def _count(headers: Headers, what: str) -> int | None:
    written = header(headers, _BEDROCK.format(what)) or ""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 16 else None
