"""The key of an environment variable in place of the redacted one of a request.

Apart from `pinned_calls`, which imports all that reads recordings: the program that asks does not.
"""

import re
from collections.abc import Sequence
from typing import Final

from calls.placeholder import is_placeholder

_PLACEHOLDER: Final = re.compile(r"PLAYHEAD_[A-Z2-7]+")


def with_credentials(headers: Sequence[Sequence[str]], url: str, key: str | None) -> tuple[list[tuple[str, str]], str]:
    """Put the key in place of redacted credentials, in headers and in the URL. Without a key they are left out."""
    new_headers: list[tuple[str, str]] = []
    for name, value in headers:
        secret = value.rpartition(" ")[2]
        if is_placeholder(secret.encode("latin-1", "replace")) or set(secret) == {"*"}:
            if key is not None:
                new_headers.append((name, f"{value[: len(value) - len(secret)]}{key}"))
        else:
            new_headers.append((name, value))
    return new_headers, _PLACEHOLDER.sub(key or "", url)
