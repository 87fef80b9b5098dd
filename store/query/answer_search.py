"""Search the words of answers. They are read from the evidence and stored nowhere else.

A column with the words of every answer would be a quarter of all that is stored.
"""

import re
from collections.abc import Iterator

from calls.codec.json import written
from calls.derive import answered, opened
from calls.dialects import AnswerSummary
from calls.model import Json, Response, header

_LETTERS = re.compile(r"[a-z]{2,}")


def could_say(words: str, response: Response | None) -> bool:
    """False where a look at the bytes is enough to know that an answer does not hold these words: to read a large one takes
    long, vectors and pictures above all."""
    body = response and _plain(response)
    if not body:
        return True
    low = body.lower()
    return all(part.encode() in low for part in _LETTERS.findall(words))


def _plain(response: Response) -> bytes | None:
    """The one JSON value that an answer is, if it says each word in one piece and in ASCII."""
    if not (header(response.headers, "content-type") or "").startswith("application/json"):
        return None
    body = opened(response)
    several = body is None or not body.lstrip().startswith(b"{") or b"\n{" in body.lstrip()
    return None if several or body is None or not body.isascii() or b"\\u" in body else body


def said(dialect: str, response: Response | None) -> str:
    """The text of an answer and what it asks of tools, as a search sees them: in one case."""
    return "\n".join(_said(answered(response, dialect))).casefold()


def _said(told: AnswerSummary) -> Iterator[str]:
    if told.text:
        yield told.text
    for tool in told.tool_calls:
        yield f"{tool.name} {_written(tool.arguments)}"


def _written(value: Json) -> str:
    """A value as people would type it: text bare, all else as JSON."""
    return value if isinstance(value, str) else written(value, list)
