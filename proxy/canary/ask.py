"""Send pinned calls, within a budget, and write down what is compared of their answers.

    python -m proxy.canary.ask DIRECTORY

DIRECTORY has `questions.json`: {"key_variable", "timeout_s", "budget_usd", "profiles", "questions": […]}. `answers.json` is written beside it:
{"answers": [{"pin", "number", "answer"}], "failed", "problem", "not_run", "spent_usd", "unpriced"}. The program is recorded as any agent is.
"""

import base64
import json
import os
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from calls.canary.observation import Observation, observe_answer
from calls.derive import derive_call
from calls.keys.profile import Profiles
from calls.model import Body, Exchange, Request, Response
from proxy.canary.pinned_calls import Question, with_credentials
from store.active_profiles import load_profiles
from store.prices import call_cost

MOST_FAILURES: Final = 3
"""Calls in a row without an answer after which the others are not tried."""


class NoAnswer(Exception):
    """A call was not answered. The message says how."""


def ask_all(content: dict[str, Any], client: httpx2.Client, key: str | None) -> dict[str, Any]:
    """Send the calls one after the other, until the budget is used up or nobody answers."""
    profiles = load_profiles(content["profiles"])
    answers: list[dict[str, Any]] = []
    spent, failed, in_a_row, unpriced, problem, asked = Decimal(0), 0, 0, 0, None, 0
    for question in content["questions"]:
        if spent >= Decimal(str(content["budget_usd"])):
            problem = f"the budget of {content['budget_usd']:g} USD was used up"
            break
        if in_a_row >= MOST_FAILURES:
            break
        asked += 1
        try:
            answer, cost = _ask(client, question, key, profiles)
        except NoAnswer as error:
            failed, in_a_row, problem = failed + 1, in_a_row + 1, str(error)
            continue
        in_a_row = 0
        spent += cost or 0
        unpriced += cost is None
        answers.append({"pin": question["pin"], "number": asked, "answer": msgspec.to_builtins(answer)})
    not_run = len(content["questions"]) - asked
    return {
        "answers": answers,
        "failed": failed,
        "problem": problem,
        "not_run": not_run,
        "spent_usd": float(spent),
        "unpriced": unpriced,
    }


def _ask(
    client: httpx2.Client, question: Question, key: str | None, profiles: Profiles
) -> tuple[Observation, Decimal | None]:
    """Send one call. Raises NoAnswer."""
    headers, url = with_credentials(question["headers"], question["url"], key)
    data = base64.b64decode(question["body"])
    try:
        answer = client.request(question["method"], url, headers=headers, content=data)
    except httpx2.HTTPError as error:
        raise NoAnswer(f"{question['pin']} was not answered: {type(error).__name__}: {error}") from error
    if answer.status_code >= 300:
        raise NoAnswer(f"{question['pin']} was answered with {answer.status_code}: {answer.text[:200]}")
    media = (("content-type", answer.headers.get("content-type", "")),)
    exchange = Exchange(
        id="",
        run="",
        request=Request(
            method=question["method"],
            url=question["url"],
            headers=tuple((name, value) for name, value in question["headers"]),
            body=Body(data=data, size=len(data)),
        ),
        response=Response(
            status=answer.status_code, headers=media, body=Body(data=answer.content, size=len(answer.content))
        ),
        outcome="completed",
        started_at=time.time_ns(),
        first_byte_at=0,
        ended_at=0,
    )
    call = derive_call(exchange, profiles)
    if not call.complete:
        raise NoAnswer(f"the answer to {question['pin']} broke off")
    cost = call_cost(exchange, call)
    plan = profiles.ignored_answer_fields(call.profile)
    return observe_answer(call, exchange=None, plan=plan), cost.usd if cost else None


def main() -> None:
    """Run the program."""
    directory = Path(sys.argv[1])
    content = json.loads((directory / "questions.json").read_bytes())
    with httpx2.Client(timeout=content["timeout_s"]) as client:
        answers = ask_all(content, client, os.environ.get(content["key_variable"]))
    (directory / "answers.json").write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main()
