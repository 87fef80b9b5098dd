"""Search the text of answers. It is derived from the stored exchanges, not stored a second time.

A column with the text of every answer would add a quarter to the size of the database.
"""

import re
from collections.abc import Iterator

from calls.codec.json import write_json
from calls.derive import answer_summary, decode_response_body
from calls.dialects.dialect import AnswerSummary
from calls.model import Json, Response, header

_LETTERS = re.compile(r"[a-z]{2,}")


def can_contain(words: str, response: Response | None) -> bool:
    """Whether an answer may contain these words, by its bytes alone: parsing large ones, such as vectors and images, is slow."""
    body = response and _plain_json(response)
    if not body:
        return True
    low = body.lower()
    return all(part.encode() in low for part in _LETTERS.findall(words))


def _plain_json(response: Response) -> bytes | None:
    """Return the body if it is a single JSON object in ASCII without escapes, so that words can be found in its bytes."""
    if not (header(response.headers, "content-type") or "").startswith("application/json"):
        return None
    body = decode_response_body(response)
    several = body is None or not body.lstrip().startswith(b"{") or b"\n{" in body.lstrip()
    return None if several or body is None or not body.isascii() or b"\\u" in body else body


def searchable_text(dialect: str, response: Response | None) -> str:
    """Return the text and tool calls of an answer for a search, casefolded."""
    return "\n".join(_searchable_parts(answer_summary(response, dialect))).casefold()


def _searchable_parts(summary: AnswerSummary) -> Iterator[str]:
    if summary.text:
        yield summary.text
    for tool in summary.tool_calls:
        yield f"{tool.name} {_argument_text(tool.arguments)}"


def _argument_text(value: Json) -> str:
    """Write a value as a person would type it: text without quotes, everything else as JSON."""
    return value if isinstance(value, str) else write_json(value, list)
