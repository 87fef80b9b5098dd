"""Agents that look something up with a tool between two answers of a model: runs to compare, changed at will."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calls.model import Exchange
from tests.store.samples import NOON, SECOND, exchange

MODEL = "https://api.openai.com/v1/chat/completions"
TOOL = "https://tools.example.com/search"

type Said = Callable[[int], Any]


@dataclass(frozen=True, kw_only=True)
class Agent:
    """What it asks and what it is told, turn by turn. Each turn is a model call and a tool call."""

    turns: int = 4
    system: str = "Be brief."
    asks: Said = lambda turn: f"subject-{turn} details"
    """The arguments with which the model calls the tool."""

    finds: Said = lambda turn: {"found": f"alpha {turn} beta"}
    model: str = "gpt-5-2026-01-01"
    fingerprint: Said = lambda turn: "fp_1"
    status: Said = lambda turn: 200
    tokens: Said = lambda turn: 100 + turn
    """How many tokens its prompts have."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    """More members of each model request."""

    repeated: frozenset[int] = frozenset()
    """Turns whose tool is asked a second time."""

    grows: bool = True
    """Whether it sends its whole history each time, or the last turn alone."""

    actor: str | None = None
    offset: int = 0

    def run(self, name: str = "run") -> list[Exchange]:
        """All exchanges, in step order. No two runs have the same ids, times or counts."""
        made: list[Exchange] = []
        messages: list[Mapping[str, Any]] = [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": "Find out."})

        def add(url: str, asked: Any, result: Any, status: int = 200) -> None:
            # The name is of another length in each run of a test: so are the places of the ids in time.
            at = NOON + (len(made) * 10 + self.offset) * SECOND + len(name) * 1_000_000
            number = self.offset * 100_000 + len(made) * 100 + sum(map(ord, name)) * 10_000_000
            request, response = json.dumps(asked).encode(), json.dumps(result).encode()
            made.append(
                exchange(
                    number,
                    actor=self.actor,
                    run=name,
                    at=at,
                    url=url,
                    status=status,
                    request=request,
                    response=response,
                )
            )

        for turn in range(self.turns):
            call: dict[str, object] = {"id": f"call_{name}_{turn}", "type": "function"}
            call |= {"function": {"name": "search", "arguments": json.dumps({"q": self.asks(turn)})}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            request = {"model": "gpt-5", "messages": messages, **self.extra}
            add(MODEL, request, self._answer(name, turn, message), self.status(turn))
            found = self.finds(turn)
            for _ in range(2 if turn in self.repeated else 1):
                add(TOOL, {"q": self.asks(turn)}, found)
            answer = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}
            messages = [*(messages if self.grows else messages[:2]), message, answer]
        return made

    def _answer(self, name: str, turn: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.status(turn) != 200:
            return {"error": {"type": "server_error", "message": "try later"}}
        return {
            "id": f"chatcmpl-{name}-{turn}",
            "object": "chat.completion",
            "created": NOON // SECOND + turn,
            "model": self.model,
            "system_fingerprint": self.fingerprint(turn),
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {
                "prompt_tokens": self.tokens(turn),
                "completion_tokens": 10,
                "total_tokens": self.tokens(turn) + 10,
            },
        }


def interleave(*runs: Sequence[Exchange]) -> list[Exchange]:
    """Several agents' exchanges as one run's, in step order."""
    return sorted((each for run in runs for each in run), key=lambda each: (each.started_at, each.id))
