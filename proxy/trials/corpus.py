"""Learn the shapes of tools' answers from all recordings, one answer at a time: what is kept are shapes, whose size is bounded."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from calls.model import Json
from calls.perturbation.shape import AnswerShape, merge_shapes, shape_of
from proxy.processes.store_client import Api
from proxy.terminal.text import count_text
from proxy.trials.tool_answers import FoundAnswer, tool_answer

_PAGE: Final = 100
"""Calls that are read at a time, so that a page of large answers fits into memory."""

_FIELDS: Final = "run,kind,dialect,method,host,path,complete,answer,tool_calls"
_PROGRESS_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class ToolShapes:
    """The shapes of some tools' answers, as far as answers have been read."""

    tools: frozenset[str]
    """The tools that the varied run called: others are skipped."""

    shapes: dict[str, AnswerShape] = field(default_factory=dict)
    answers: int = 0
    runs: set[str] = field(default_factory=set)
    is_whole: bool = True
    """Whether the store's recordings were read to the end."""

    def learn(self, answers: Iterable[FoundAnswer], run: str) -> None:
        """Learn from the answers of a recording."""
        for one in answers:
            self._add(one.tool, one.value, run)

    def learn_from_calls(
        self, items: Iterable[Mapping[str, Any]], *, skipped: str, limit_s: float, show: Callable[[str], None]
    ) -> None:
        """Learn from calls as the store lists them, except those of one run, until the time is over."""
        started = shown_at = time.monotonic()
        for item in items:
            now = time.monotonic()
            if now - started > limit_s:
                self.is_whole = False
                return
            if now - shown_at > _PROGRESS_S:
                shown_at = now
                show(f"reading what tools answered in all recordings: {self.summary}")
            if item["run"] != skipped and (found := tool_answer(item)) is not None:
                self._add(*found, item["run"])

    @property
    def summary(self) -> str:
        """How much was read, for display."""
        return f"{count_text(self.answers, 'answer')} of {count_text(len(self.runs), 'run')}"

    def _add(self, tool: str, value: Json, run: str) -> None:
        if tool not in self.tools:
            return
        self.answers += 1
        self.runs.add(run)
        self.shapes[tool] = merge_shapes(self.shapes.get(tool, AnswerShape()), shape_of(value))


def list_calls(api: Api, hosts: Sequence[str]) -> Iterable[Mapping[str, Any]]:
    """List every successful call to these hosts, the newest first."""
    query = {"host": list(hosts), "status": "2xx", "fields": _FIELDS, "limit": _PAGE}
    return api.list_items("/calls", **query)
