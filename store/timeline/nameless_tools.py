"""Match the results of tool calls that have no ids with the answer that requested them: by name, and in order. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from calls.codec.lenient_json import as_text
from store.otlp.spans.conversation import Part
from store.timeline.facts import SpokenCall
from store.timeline.prompt_history import NewPart

MOST_RECENT: Final = 500
"""Calls of tools that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamelessMatch:
    """A tool call without an id whose result a prompt has."""

    asker: SpokenCall
    place: int
    """Among the tool calls of its answer."""

    name: str
    executor: SpokenCall | None
    """The call that executed it, if one of this name is between the two."""

    @property
    def executor_step(self) -> int | None:
        """The step of that call."""
        return None if self.executor is None else self.executor.number


@dataclass(slots=True)
class NamelessTools:
    """The results of a run so far that are matched with tool calls."""

    _matches: dict[int, tuple[Part, NamelessMatch]] = field(default_factory=dict)
    """By the identity of the part, which is held so that it stays its own."""

    _tools: list[SpokenCall] = field(default_factory=list)

    def add(self, call: SpokenCall) -> None:
        """Add the next call, which may have executed a tool call."""
        if call.kind in ("tool", "retrieval") and call.tool_calls:
            self._tools.append(call)
            del self._tools[:-MOST_RECENT]

    def match_results(self, call: SpokenCall, new: NewPart) -> Iterator[NamelessMatch]:
        """Match the new results of a prompt with the answer that it continues."""
        if new.after is None:
            return
        asker = new.after
        open_calls = [
            (place, as_text(tool.get("name"))) for place, tool in enumerate(asker.tool_calls) if not tool.get("id")
        ]
        executors = [tool for tool in self._tools if asker.number < tool.number < call.number]
        for part in (part for message in new.messages for part in message.parts):
            if part.kind != "tool_call_response" or part.id:
                continue
            found = next((one for one in open_calls if part.name in ("", one[1])), None)
            if found is None:
                continue
            open_calls.remove(found)
            place, name = found
            executor = next((one for one in executors if as_text(one.tool_calls[0].get("name")) == name), None)
            if executor is not None:
                executors.remove(executor)
            match = NamelessMatch(asker=asker, place=place, name=name, executor=executor)
            self._matches[id(part)] = (part, match)
            yield match

    def find_match(self, part: Part) -> NamelessMatch | None:
        """Return the tool call of which a part is the result; None if none was matched."""
        found = self._matches.get(id(part))
        return found[1] if found is not None else None
