"""Represent the calls of a run in the order in which they were made, and answer the queries of a test.

Queries return lists, so that a failed `assert` shows their content. A query without an answer raises an AssertionError that
lists what there is instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True)
class ToolCall:
    """A requested tool call with its arguments."""

    name: str
    arguments: Any
    id: str | None = None
    call: str | None = None
    """The id of the call that requested it."""

    @property
    def shape(self) -> Any:
        """The arguments with types in place of values: `{"ticket": str, "tags": [str]}`."""
        return value_shape(self.arguments)

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
    """The requested model, or the one that answered if the request names none."""

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
    run: str | None = field(default=None, repr=False, compare=False)
    started_at: str | None = field(default=None, repr=False, compare=False)
    duration_ms: float | None = field(default=None, repr=False, compare=False)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole call, as returned by `GET /v1/calls/{id}`."""

    @property
    def name(self) -> str:
        """A readable name: the model, the tool, or method, host and path."""
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
    """Requested tool calls, in order."""


class Calls:
    """Calls in order. Equal to a list of the same calls."""

    __hash__ = None  # type: ignore[assignment] # unhashable, like a list

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
        """The names of all calls: models and tools by name, everything else by method, host and path."""
        return [call.name for call in self]

    @property
    def models(self) -> list[str]:
        """The models of all model calls, in order."""
        return [call.model or call.operation for call in self if call.kind == "model"]

    @property
    def texts(self) -> list[str]:
        """The texts of all model calls that have one, in order."""
        return [call.text for call in self if call.kind == "model" and call.text]

    @property
    def tools(self) -> list[str]:
        """The names of the requested tools, in order."""
        return [tool.name for tool in self.tool_calls]

    @property
    def tool_calls(self) -> ToolCalls:
        """The requested tool calls in order, by a model or by the agent itself (MCP).

        A call that a model requests and the agent then makes counts once.
        """
        found, requested = ToolCalls(), ToolCalls()
        for call in self:
            for tool in call.tool_calls:
                request = next(
                    (one for one in requested if (one.name, one.arguments) == (tool.name, tool.arguments)), None
                )
                if call.kind != "model" and request is not None:
                    requested.remove(request)
                    continue
                found.append(tool)
                if call.kind == "model":
                    requested.append(tool)
        return found

    def tool(self, name: str, nth: int | None = None) -> ToolCall:
        """The only call of a tool, or the `nth` (from 0; -1 is the last)."""
        found = self.all(name)
        if nth is None and len(found) > 1:
            raise AssertionError(f"{name} was requested {len(found)} times; select one, .tool({name!r}, 0): {found!r}")
        try:
            return found[nth or 0]
        except IndexError:
            instead = f"it was requested {len(found)} times" if found else f"these were: {self.tools!r}"
            raise AssertionError(
                f"{name}{'' if nth is None else f' number {nth}'} was not requested; {instead}"
            ) from None

    def all(self, name: str) -> ToolCalls:
        """All calls of a tool; `*` matches anything."""
        return ToolCalls(tool for tool in self.tool_calls if fnmatchcase(tool.name, name))

    def count(self, name: str) -> int:
        """The number of calls of a tool; `*` matches anything."""
        return len(self.all(name))

    def to(self, host: str, method: str | None = None, path: str = "*") -> Calls:
        """The calls to a host; `*` matches anything: `run.calls.to("*.bank.example", method="POST") == []`."""
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
        """Raise AssertionError if one of these tools was requested; `*` matches anything."""
        for pattern in tools:
            if found := self.all(pattern):
                raise AssertionError(f"{pattern} is forbidden but was requested: {found!r}; all tools: {self.tools!r}")


def value_shape(value: Any) -> Any:
    """A JSON value with types in place of its leaves. A list has the distinct shapes of its elements."""
    if isinstance(value, dict):
        return {name: value_shape(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        shapes: list[Any] = []
        for one in map(value_shape, value):
            if one not in shapes:
                shapes.append(one)
        return shapes
    return None if value is None else type(value)


def read_calls(entries: Sequence[Mapping[str, Any]]) -> Calls:
    """Read calls as the API returns them."""
    return Calls(map(_read_call, entries))


def _read_call(raw: Mapping[str, Any]) -> Call:
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
        run=raw.get("run"),
        started_at=raw.get("started_at"),
        duration_ms=raw.get("duration_ms"),
        raw=raw,
    )
