"""Send pinned calls, within a budget, and write down what is compared of their answers.

    python -m proxy.canary.ask DIRECTORY

DIRECTORY has `questions.json`: {"key_variable", "timeout_s", "budget_usd", "profiles", "questions": […]}, and maybe "embedding" and "judged",
each {"url", "model", "key_variable"}, for the distance of answers from the "references" of their questions. `answers.json` is written beside
it: {"answers": [{"pin", "number", "answer"}], "failed", "sent", "problem", "not_run", "spent_usd", "unpriced"}, where `number` counts all
requests. The program is recorded as any agent is.
"""

import base64
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from msgspec.structs import replace

from calls.canary.distance import (
    InvalidAnswer,
    answer_words,
    embedding_distance,
    judge_body,
    judged_distance,
    read_vectors,
)
from calls.canary.observation import Observation, observe_answer
from calls.codec.json import dumps
from calls.derive import derive_call
from calls.keys.profile import Profiles
from calls.model import Body, Call, Exchange, Json, Request, Response
from proxy.canary.credentials import with_credentials
from store.active_profiles import load_profiles
from store.pricing.prices import call_cost

MOST_FAILURES: Final = 3
"""Calls in a row without an answer after which the others are not tried."""


KINDS: Final = ("embedding", "judged")
"""The distances, as an observation has them."""


type Question = Mapping[str, Any]
"""A call, as `PinnedCall.as_question` gives it."""


class NoAnswer(Exception):
    """A call was not answered. The message says how."""


def ask_all(content: dict[str, Any], client: httpx2.Client, keys: Mapping[str, str]) -> dict[str, Any]:
    """Send the calls one after the other, until the budget is used up or nobody answers."""
    shot = _Shot(client, keys, load_profiles(content["profiles"]), Decimal(str(content["budget_usd"])))
    measures = [
        _Measure(kind, content[kind]["url"], content[kind]["model"], content[kind]["key_variable"])
        for kind in KINDS
        if content.get(kind) is not None
    ]
    answers: list[dict[str, Any]] = []
    failed, in_a_row, problem, count = 0, 0, None, 0
    for question in content["questions"]:
        if shot.is_budget_used_up:
            problem = f"the budget of {content['budget_usd']:g} USD was used up"
            break
        if in_a_row >= MOST_FAILURES:
            break
        count += 1
        try:
            call, answer = shot.ask(question, keys.get(content["key_variable"]))
        except NoAnswer as error:
            failed, in_a_row, problem = failed + 1, in_a_row + 1, str(error)
            continue
        in_a_row, number = 0, shot.sent
        references = question.get("references") or []
        words = answer_words(call.text, [(tool.name, tool.arguments) for tool in call.tool_calls])
        distances = {one.kind: one.distance(shot, references, words) for one in measures} if references else {}
        answers.append(
            {"pin": question["pin"], "number": number, "answer": msgspec.to_builtins(replace(answer, **distances))}
        )
    problems = [problem, *(one.problem for one in measures)]
    return {
        "answers": answers,
        "failed": failed,
        "sent": shot.sent,
        "problem": "; ".join(filter(None, problems)) or None,
        "not_run": len(content["questions"]) - count,
        "spent_usd": float(shot.spent),
        "unpriced": shot.unpriced,
    }


class _Shot:
    """Sends requests, and counts what they cost."""

    def __init__(self, client: httpx2.Client, keys: Mapping[str, str], profiles: Profiles, budget: Decimal) -> None:
        self._client = client
        self.keys = keys
        self._profiles = profiles
        self._budget = budget
        self.spent = Decimal(0)
        self.unpriced = 0
        self.sent = 0

    @property
    def is_budget_used_up(self) -> bool:
        return self.spent >= self._budget

    def ask(self, question: Question, key: str | None) -> tuple[Call, Observation]:
        """Send a pinned call. Raises NoAnswer."""
        headers, url = with_credentials(question["headers"], question["url"], key)
        data = base64.b64decode(question["body"])
        call = self._send(question["pin"], question["method"], url, question["url"], headers, data)
        plan = self._profiles.ignored_answer_fields(call.profile)
        return call, observe_answer(call, exchange=None, plan=plan)

    def post(self, name: str, url: str, key: str | None, body: Mapping[str, Any]) -> Json:
        """Send JSON, and return the JSON of the answer. Raises NoAnswer."""
        headers = [("content-type", "application/json"), *([("authorization", f"Bearer {key}")] if key else [])]
        return self._send(name, "POST", url, url, headers, dumps(body)).answer

    def _without_keys(self, text: str) -> str:
        """Replace keys in a text that is printed and stored: a provider may repeat the key that it refuses."""
        for key in filter(None, self.keys.values()):
            text = text.replace(key, "*" * len(key))
        return text

    def _send(
        self, name: str, method: str, url: str, redacted_url: str, headers: Sequence[tuple[str, str]], data: bytes
    ) -> Call:
        self.sent += 1
        try:
            answer = self._client.request(method, url, headers=list(headers), content=data)
        except httpx2.HTTPError as error:
            why = self._without_keys(f"{type(error).__name__}: {error}")
            raise NoAnswer(f"{name} was not answered: {why}") from error
        if answer.status_code >= 300:
            raise NoAnswer(f"{name} was answered with {answer.status_code}: {self._without_keys(answer.text)[:200]}")
        media = (("content-type", answer.headers.get("content-type", "")),)
        request = Request(method=method, url=redacted_url, headers=tuple(headers), body=Body(data=data, size=len(data)))
        exchange = Exchange(
            id="",
            run="",
            request=request,
            response=Response(
                status=answer.status_code, headers=media, body=Body(data=answer.content, size=len(answer.content))
            ),
            outcome="completed",
            started_at=time.time_ns(),
            first_byte_at=0,
            ended_at=0,
        )
        call = derive_call(exchange, self._profiles)
        if not call.complete:
            raise NoAnswer(f"the answer to {name} broke off")
        cost = call_cost(exchange, call)
        self.spent += cost.usd if cost else 0
        self.unpriced += cost is None
        return call


@dataclass(slots=True)
class _Measure:
    """A model that is asked how far answers are from the reference answers."""

    kind: str
    url: str
    model: str
    key_variable: str
    problem: str | None = None
    in_a_row: int = 0
    vectors: dict[str, list[float]] = field(default_factory=dict)
    """Of the reference answers."""

    def distance(self, shot: _Shot, references: Sequence[str], words: str) -> float | None:
        """Return the distance of an answer; None where it cannot be had."""
        if words in references:
            return 0.0
        if self.in_a_row >= MOST_FAILURES or shot.is_budget_used_up:
            return None
        try:
            found = (self._embed if self.kind == "embedding" else self._judge)(shot, references, words)
        except (NoAnswer, InvalidAnswer) as error:
            self.in_a_row, self.problem = self.in_a_row + 1, f"{self.url} gave no distance: {error}"
            return None
        self.in_a_row = 0
        return found

    def _embed(self, shot: _Shot, references: Sequence[str], words: str) -> float:
        texts = [words, *(one for one in references if one not in self.vectors)]
        answer = shot.post(
            "the model of embeddings", f"{self.url}/embeddings", self._key(shot), {"model": self.model, "input": texts}
        )
        vectors = read_vectors(answer, len(texts))
        self.vectors |= dict(zip(texts[1:], vectors[1:], strict=True))
        return embedding_distance(vectors[0], [self.vectors[one] for one in references])

    def _judge(self, shot: _Shot, references: Sequence[str], words: str) -> float:
        body = judge_body(self.model, references[0], words)
        answer = shot.post("the judge", f"{self.url}/chat/completions", self._key(shot), body)
        return judged_distance(answer, references[0], words)

    def _key(self, shot: _Shot) -> str | None:
        return shot.keys.get(self.key_variable)


def main() -> None:
    """Run the program."""
    directory = Path(sys.argv[1])
    content = json.loads((directory / "questions.json").read_bytes())
    with httpx2.Client(timeout=content["timeout_s"]) as client:
        answers = ask_all(content, client, os.environ)
    (directory / "answers.json").write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main()
