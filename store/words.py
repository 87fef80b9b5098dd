"""The words of an answer, to be searched: they are read from the evidence, and stored nowhere a second time.

A column with the words of every answer would be a quarter of all that is stored.
"""

from collections.abc import Iterator

from calls.derive import answered
from calls.dialects import Told
from calls.json import written
from calls.model import Json, Response


def said(dialect: str, response: Response | None) -> str:
    """The text of an answer and what it asks of tools, as a search sees them: in one case."""
    return "\n".join(_said(answered(response, dialect))).casefold()


def _said(told: Told) -> Iterator[str]:
    if told.text:
        yield told.text
    for tool in told.tool_calls:
        yield f"{tool.name} {_written(tool.arguments)}"


def _written(value: Json) -> str:
    """A value as people would type it: text bare, all else as JSON."""
    return value if isinstance(value, str) else written(value, list)
