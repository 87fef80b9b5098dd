"""Make the conversation of a run: of each prompt only what is new in it, and tool calls with the results they led to. Pure.

A tool call and its result are found by the id of the tool call: the answer that requests it, the call that executes it, and the
message of a later prompt that has its result. Where an API has no such ids (Gemini), they are matched by name and order, with the answer that the
prompt continues (`nameless_tools`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from calls.codec.lenient_json import as_object, as_text
from store.otlp.spans.conversation import Message, Part, answer_reasoning
from store.timeline.facts import SpokenCall, ToolLinks
from store.timeline.nameless_tools import NamelessMatch, NamelessTools
from store.timeline.prompt_history import EarlierPrompts, NewPart
from store.timeline.texts import LONGEST_TEXT, TextBudget

MOST_MESSAGES: Final = 60
"""New messages of one prompt that are shown: the first and the last ones."""

MOST_PARTS: Final = 40
"""Parts of one message that are shown."""

MOST_TOOL_CALLS: Final = 100
"""Tool calls of one answer that are shown."""

MOST_TOOLS: Final = 100
"""Names of offered tools that are shown."""

LONGEST_NAME: Final = 200

type Shape = dict[str, Any]


def make_conversation(
    calls: Sequence[SpokenCall],
    links: ToolLinks,
    *,
    earlier: Iterable[SpokenCall] = (),
    shows_texts: bool = True,
    longest_text: int = LONGEST_TEXT,
) -> list[Shape]:
    """Make the conversation of some consecutive calls of a run, as many as fit into one document.

    `earlier` are calls of models before them, with which their prompts may have to be compared, in step order.
    """
    writer = _Writer(links=links, budget=TextBudget(shows_texts, longest=longest_text))
    for call in earlier:
        writer.learn(call)
    shapes: list[Shape] = []
    for call in calls:
        if writer.budget.is_spent:
            break
        shapes.append(writer.call_shape(call))
    return shapes


@dataclass(slots=True)
class _Writer:
    links: ToolLinks
    budget: TextBudget
    _history: EarlierPrompts = field(default_factory=EarlierPrompts)
    _askers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By id of a tool call: the step that requested it, and the name of the tool."""

    _executors: dict[str, str] = field(default_factory=dict)
    """By id of a tool call: the call that executed it."""

    _executed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By call: the tool call that it executed."""

    _nameless: NamelessTools = field(default_factory=NamelessTools)
    _shapes: dict[str, Shape] = field(default_factory=dict)
    """The calls that are in the document."""

    def __post_init__(self) -> None:
        for pair, call in self.links.executed_by.items():
            self._executors[pair[1]] = call
            self._executed[call] = pair
        for call, id_ in self.links.answered_by:
            if (number := self.links.numbers.get(call)) is not None:
                self._askers.setdefault(id_, (number, ""))

    def learn(self, call: SpokenCall) -> None:
        self._history.add(call)
        self._nameless.add(call)
        self._note_tool_calls(call)

    def call_shape(self, call: SpokenCall) -> Shape:
        shape = self._call_shape(call)
        self._shapes[call.call] = shape
        return shape

    def _call_shape(self, call: SpokenCall) -> Shape:
        shape: Shape = {"step": call.number, "call": call.call, "kind": call.kind, "too_large": call.is_large}
        if call.is_large:
            return shape | {"prompt": None, "answer": None, "request": None, "response": None, "executes": None}
        self._note_tool_calls(call)
        self._nameless.add(call)
        if call.kind == "model":
            new = self._history.add(call)
            for match in self._nameless.match_results(call, new):
                self._link_nameless(match, call)
            if new.messages or new.repeated:
                return shape | {
                    "prompt": self._prompt_shape(new),
                    "answer": self._answer_shape(call),
                    "request": None,
                    "response": None,
                    "executes": None,
                }
        return shape | {
            "prompt": None,
            "answer": self._answer_shape(call) if call.text or call.tool_calls else None,
            "request": None if call.request is None else self.budget.shorten(call.request),
            "response": None if call.answer is None else self.budget.shorten(call.answer),
            "executes": self._executes(call),
        }

    def _note_tool_calls(self, call: SpokenCall) -> None:
        if call.kind == "model":
            for tool in call.tool_calls:
                if isinstance(id_ := tool.get("id"), str):
                    self._askers[id_] = (call.number, as_text(tool.get("name"))[:LONGEST_NAME])

    def _executes(self, call: SpokenCall) -> Shape | None:
        if (found := self._executed.get(call.call)) is None:
            return None
        return {"step": self.links.numbers.get(found[0]), "call": found[0], "tool_call": found[1]}

    def _link_nameless(self, match: NamelessMatch, call: SpokenCall) -> None:
        """Add a link to the calls that are in the document already."""
        if (asker := self._shapes.get(match.asker.call)) is not None and match.place < MOST_TOOL_CALLS:
            tool_call = asker["answer"]["tool_calls"][match.place]
            tool_call |= {"answered_by": call.number, "executed_by": match.executor_step}
        if match.executor is not None and (executing := self._shapes.get(match.executor.call)) is not None:
            executing["executes"] = {"step": match.asker.number, "call": match.asker.call, "tool_call": match.name}

    def _prompt_shape(self, new: NewPart) -> Shape:
        half = MOST_MESSAGES // 2
        messages = list(enumerate(new.messages, new.repeated))
        listed_messages = messages if len(messages) <= MOST_MESSAGES else [*messages[:half], *messages[-half:]]
        return {
            "after": None if new.after is None else {"step": new.after.number, "call": new.after.call},
            "repeated": new.repeated,
            "dropped": new.dropped,
            "new": len(new.messages),
            "left_out": len(messages) - len(listed_messages),
            "messages": [self._message_shape(number, message, new) for number, message in listed_messages],
            "tools": [name[:LONGEST_NAME] for name in new.tools[:MOST_TOOLS]],
            "tools_changed": new.has_new_tools,
        }

    def _message_shape(self, number: int, message: Message, new: NewPart) -> Shape:
        return {
            "index": number,
            "role": message.role[:LONGEST_NAME],
            "echo": new.after.number if new.after is not None and _is_echo(message, new.after) else None,
            "parts": [self._part_shape(part) for part in message.parts[:MOST_PARTS]],
            "parts_left_out": max(0, len(message.parts) - MOST_PARTS),
        }

    def _part_shape(self, part: Part) -> Shape:
        shape: Shape = {"kind": part.kind, "id": part.id, "name": part.name[:LONGEST_NAME] or None}
        if part.kind in ("tool_call", "tool_call_response"):
            shape |= self.budget.shorten(part.value)
        else:
            shape |= self.budget.shorten(part.text)
        if part.kind == "tool_call_response":
            step, name = self._askers.get(part.id or "", (None, ""))
            executor = self.links.numbers.get(self._executors.get(part.id or "", ""))
            if (match := self._nameless.find_match(part)) is not None:
                step, executor = match.asker.number, match.executor_step
            shape |= {"asked_by": step, "name": shape["name"] or name or None, "executed_by": executor}
        return shape

    def _answer_shape(self, call: SpokenCall) -> Shape:
        reasoning = answer_reasoning(call.answer)
        return {
            "reasoning": None if reasoning is None else self.budget.shorten(reasoning),
            "text": None if call.text is None else self.budget.shorten(call.text),
            "tool_calls": [self._tool_call_shape(call.call, tool) for tool in call.tool_calls[:MOST_TOOL_CALLS]],
            "tool_calls_left_out": max(0, len(call.tool_calls) - MOST_TOOL_CALLS),
            "error": self._error_shape(call),
        }

    def _error_shape(self, call: SpokenCall) -> Shape | None:
        error = as_object(call.answer).get("error")
        return self.budget.shorten(error) if error and call.text is None and not call.tool_calls else None

    def _tool_call_shape(self, call: str, tool: Mapping[str, Any]) -> Shape:
        id_ = tool.get("id")
        pair = (call, id_) if isinstance(id_, str) else ("", "")
        return {
            "id": id_,
            "name": as_text(tool.get("name"))[:LONGEST_NAME],
            "arguments": self.budget.shorten(tool.get("arguments")),
            "executed_by": self.links.numbers.get(self.links.executed_by.get(pair, "")),
            "answered_by": self.links.numbers.get(self.links.answered_by.get(pair, "")),
        }


def _is_echo(message: Message, call: SpokenCall) -> bool:
    """Whether a message of a prompt is the answer of an earlier call, sent back."""
    if message.role != "assistant":
        return False
    call_ids = {tool.get("id") for tool in call.tool_calls} - {None}
    message_ids = {part.id for part in message.parts if part.kind == "tool_call"} - {None}
    if call_ids or message_ids:
        return bool(call_ids & message_ids)
    text = "".join(_message_texts(message))
    return bool(text) and text.strip() == (call.text or "").strip()


def _message_texts(message: Message) -> Iterator[str]:
    return (part.text for part in message.parts if part.kind == "text")
