"""Find what is new in each prompt. Pure.

An agent sends its history again with each request. Each prompt is compared with that of an earlier call: the one that it
continues, as far as ids show it, else the one among the newest calls of the same actor with which it has most in common. What
both begin with is repeated, and the rest is new: so the repeated part of the earlier prompt and the new messages make the prompt.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object, as_text
from calls.model import Json
from store.otlp.spans.conversation import Message, RequestMessages, request_conversation
from store.timeline.facts import SpokenCall

CANDIDATES: Final = 8
"""The newest calls of the same actor with which a prompt is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The messages of a request, each with its digest."""

    messages: Sequence[Message]
    """The instructions that are given apart from the messages come first."""

    digests: Sequence[bytes]
    tools: Sequence[str]
    """The names of the tools that it offers."""

    tools_digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPart:
    """What is new in a prompt."""

    after: SpokenCall | None
    """The earlier call with which it was compared."""

    repeated: int
    """Messages that both begin with."""

    dropped: int
    """Messages of the earlier prompt that come after those, and are not sent again."""

    messages: Sequence[Message]
    """The rest."""

    has_new_tools: bool
    tools: Sequence[str]


def read_prompt(call: SpokenCall) -> Prompt:
    """Read the messages of a call's request."""
    found = request_conversation(call.request)
    messages = [*([Message("system", found.system)] if found.system else ()), *found.messages]
    digests = [hashlib.sha256(_encoder.encode(message)).digest() for message in messages]
    return Prompt(
        messages=messages,
        digests=digests,
        tools=_tool_names(found),
        tools_digest=hashlib.sha256(dumps(list(found.tools))).digest(),
    )


_encoder: Final = msgspec.msgpack.Encoder(decimal_format="string")


def _tool_names(request: RequestMessages) -> list[str]:
    names = (_tool_name(tool) for tool in request.tools)
    return [name for name in names if name]


def _tool_name(tool: Json) -> str:
    fields = as_object(tool)
    places = (fields, *(as_object(fields.get(name)) for name in ("function", "toolSpec")))
    return next((name for place in places if (name := as_text(place.get("name")))), "")


@dataclass(slots=True)
class EarlierPrompts:
    """The prompts of a run so far."""

    _known: dict[str, tuple[SpokenCall, Prompt]] = field(default_factory=dict)
    _newest: dict[str | None, list[str]] = field(default_factory=dict)
    """By actor: the newest calls."""

    def add(self, call: SpokenCall) -> NewPart:
        """Add the next call of a model, and return what is new in its prompt."""
        prompt = read_prompt(call)
        before = self._find_earlier(call, prompt)
        self._remember(call, prompt)
        if before is None:
            return NewPart(
                after=None,
                repeated=0,
                dropped=0,
                messages=prompt.messages,
                has_new_tools=bool(prompt.tools),
                tools=prompt.tools,
            )
        earlier, old = before
        repeated = _common_length(old.digests, prompt.digests)
        return NewPart(
            after=earlier,
            repeated=repeated,
            dropped=len(old.digests) - repeated,
            messages=prompt.messages[repeated:],
            has_new_tools=prompt.tools_digest != old.tools_digest,
            tools=prompt.tools,
        )

    def _find_earlier(self, call: SpokenCall, prompt: Prompt) -> tuple[SpokenCall, Prompt] | None:
        linked = next((self._known[name] for name in call.follows if name in self._known), None)
        if linked is not None:
            return linked
        candidates = [self._known[name] for name in reversed(self._newest.get(call.actor, ()))]
        # Of those that have equally much in common, the newest. A chat of which nothing returns is another conversation.
        best = max(candidates, key=lambda one: _common_length(one[1].digests, prompt.digests), default=None)
        return best if best is not None and _common_length(best[1].digests, prompt.digests) else None

    def _remember(self, call: SpokenCall, prompt: Prompt) -> None:
        self._known[call.call] = (call, prompt)
        newest = self._newest.setdefault(call.actor, [])
        newest.append(call.call)
        del newest[:-CANDIDATES]


def _common_length(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
