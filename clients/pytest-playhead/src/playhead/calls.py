"""The calls of a run, in the order in which they were made, and the questions that a test asks of them.

What a question finds is a list, so that a failed `assert` shows what there is; what cannot be answered is an AssertionError
that names what there is instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class ToolCall:
    """A tool that was asked for, with its arguments."""

    name: str
    arguments: Any
    id: str | None = None
    call: str | None = None
    """The id of the call in which it was asked for."""

    @property
    def shape(self) -> Any:
        """Its arguments with types in place of values: `{"ticket": str, "tags": [str]}`."""
        return shape(self.arguments)

    def __repr__(self) -> str:
        if isinstance(self.arguments, dict):
            return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"
        return f"{self.name}({self.arguments!r})"


@dataclass(frozen=True)
class Call:
    """One call of a model or a tool."""

    id: str
    step: int | None
    kind: str
    """model, tool, retrieval or other."""

    operation: str
    provider: str
    host: str
    method: str
    path: str
    status: int | None
    model: str | None
    """The model that was asked for, else the one that answered."""

    text: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    cost_usd: float | None
    streamed: bool
    complete: bool
    actor: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that is known of it, as `GET /v1/calls/{id}` tells it."""

    @property
    def name(self) -> str:
        """What a person would call it: a model, a tool, or whom was asked."""
        if self.kind == "model":
            return self.model or self.operation
        if self.kind == "tool" and self.tool_calls:
            return self.tool_calls[0].name
        return f"{self.method} {self.host}{self.path}"

    def __repr__(self) -> str:
        tools = f" {list(self.tool_calls)}" if self.tool_calls else ""
        what = f" ({self.name})" if self.kind == "model" or (self.kind == "tool" and self.tool_calls) else ""
        return f"<{self.method} {self.host}{self.path} {self.status or 'unanswered'}{what}{tools}>"


class ToolCalls(list[ToolCall]):
    """Tools that were asked for, in order."""


class Calls:
    """Calls in their order. Equal to a list of the same calls."""

    __hash__ = None  # type: ignore[assignment] # as a list has none

    def __init__(self, calls: Iterable[Call]) -> None:
        self._calls = list(calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    @overload
    def __getitem__(self, place: int) -> Call: ...
    @overload
    def __getitem__(self, place: slice) -> Calls: ...
    def __getitem__(self, place: int | slice) -> Call | Calls:
        return Calls(self._calls[place]) if isinstance(place, slice) else self._calls[place]

    def __eq__(self, other: object) -> bool:
        return self._calls == list(other) if isinstance(other, (Calls, list, tuple)) else NotImplemented

    def __repr__(self) -> str:
        return repr(self._calls)

    @property
    def path(self) -> list[str]:
        """What was done, step by step: models and tools by name, everything else by method, host and path."""
        return [call.name for call in self]

    @property
    def models(self) -> list[str]:
        """The models that were asked, in order."""
        return [call.model or call.operation for call in self if call.kind == "model"]

    @property
    def texts(self) -> list[str]:
        """What models said, in order, where they said something."""
        return [call.text for call in self if call.kind == "model" and call.text]

    @property
    def tools(self) -> list[str]:
        """The names of the tools that were asked for, in order."""
        return [tool.name for tool in self.tool_calls]

    @property
    def tool_calls(self) -> ToolCalls:
        """The tools that were asked for, in order: by a model, or by the agent itself (MCP). What a model has asked for and
        the agent then does counts once."""
        asked, waiting = ToolCalls(), ToolCalls()
        for call in self:
            for tool in call.tool_calls:
                done = next((one for one in waiting if (one.name, one.arguments) == (tool.name, tool.arguments)), None)
                if call.kind != "model" and done is not None:
                    waiting.remove(done)
                    continue
                asked.append(tool)
                if call.kind == "model":
                    waiting.append(tool)
        return asked

    def tool(self, name: str, nth: int | None = None) -> ToolCall:
        """The one time that a tool was asked for, or the `nth` (from 0; -1 is the last)."""
        found = self.all(name)
        if nth is None and len(found) > 1:
            raise AssertionError(f"{name} was asked for {len(found)} times; say which, .tool({name!r}, 0): {found!r}")
        try:
            return found[nth or 0]
        except IndexError:
            instead = f"it was asked for {len(found)} times" if found else f"these were: {self.tools!r}"
            raise AssertionError(
                f"{name}{'' if nth is None else f' number {nth}'} was not asked for; {instead}"
            ) from None

    def all(self, name: str) -> ToolCalls:
        """Every time that a tool was asked for; `*` stands for anything."""
        return ToolCalls(tool for tool in self.tool_calls if fnmatchcase(tool.name, name))

    def count(self, name: str) -> int:
        """How often a tool was asked for; `*` stands for anything."""
        return len(self.all(name))

    def to(self, host: str, method: str | None = None, path: str = "*") -> Calls:
        """The calls to a host; `*` stands for anything: `run.calls.to("*.bank.example", method="POST") == []`."""
        return Calls(
            call
            for call in self
            if fnmatchcase(call.host.lower(), host.lower())
            and method in (None, call.method)
            and fnmatchcase(call.path, path)
        )

    def of(self, kind: str) -> Calls:
        """The calls of a kind: model, tool, retrieval or other."""
        return Calls(call for call in self if call.kind == kind)

    def forbid(self, *tools: str) -> None:
        """Raise AssertionError where one of these tools was asked for; `*` stands for anything."""
        for pattern in tools:
            if found := self.all(pattern):
                raise AssertionError(f"{pattern} is forbidden, and was asked for: {found!r}; all tools: {self.tools!r}")


def shape(value: Any) -> Any:
    """A value with types in place of what it says. A list has the shapes of its elements, each once."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        shapes: list[Any] = []
        for one in map(shape, value):
            if one not in shapes:
                shapes.append(one)
        return shapes
    return None if value is None else type(value)


def calls(told: Sequence[Mapping[str, Any]]) -> Calls:
    """Calls as the API tells them."""
    return Calls(map(_call, told))


def _call(raw: Mapping[str, Any]) -> Call:
    usage = raw.get("usage") or {}
    cost = raw.get("cost_usd")
    return Call(
        id=raw["id"],
        step=raw.get("step"),
        kind=raw.get("kind") or "other",
        operation=raw.get("operation") or "",
        provider=raw.get("provider") or "",
        host=raw.get("host") or "",
        method=raw.get("method") or "",
        path=raw.get("path") or "",
        status=raw.get("status"),
        model=raw.get("model_requested") or raw.get("model_returned"),
        text=raw.get("text"),
        tool_calls=tuple(
            ToolCall(one.get("name") or "", one.get("arguments"), one.get("id"), raw["id"])
            for one in raw.get("tool_calls") or ()
        ),
        finish_reason=raw.get("finish_reason"),
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cached_tokens=usage.get("cached_tokens"),
        reasoning_tokens=usage.get("reasoning_tokens"),
        cost_usd=None if cost is None else float(cost),
        streamed=bool(raw.get("streamed")),
        complete=bool(raw.get("complete")),
        actor=raw.get("actor"),
        raw=raw,
    )
