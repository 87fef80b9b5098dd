"""Ask a person, where Playhead keeps the questions of a run: its store in a recording, the recording itself in a replay."""

from __future__ import annotations

import getpass
import json
import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from playhead.binding import current_run
from playhead.rest import post_json

if TYPE_CHECKING:
    from collections.abc import Mapping

WAITING = 75
"""The exit code of a program that stops until a person has answered: EX_TEMPFAIL of sysexits.h."""

_question_counts: Counter[tuple[str, str, str]] = Counter()
_lock = threading.Lock()


class WaitingForAnswer(SystemExit):
    """A person has to answer first, and the program stops. Not an Exception, so that an agent's `except` does not hide it."""

    def __init__(self, question: str) -> None:
        super().__init__(WAITING)
        self.question = question


@dataclass(frozen=True)
class PersonAnswer:
    """What a person answered."""

    value: str
    by: str
    at: str
    """When, in RFC 3339."""


@dataclass(frozen=True)
class Asked:
    """A question, and its answer if it has one."""

    run: str
    prompt: str
    id: str
    answer: PersonAnswer | None
    question: Mapping[str, Any] = field(default_factory=dict)
    """As it was sent to the API."""

    def store_answer(self, value: str, by: str) -> PersonAnswer:
        """Store the answer that a person gave here. Raises Unreachable."""
        body = {"value": value, "question": self.id, "by": by}
        post_json(f"/v1/runs/{quote(self.run, safe='')}/answers", body)
        # Asking again says that the program has received it.
        answer = _post_question(self.run, self.question)["answer"]
        return _answer(answer)


def ask(prompt: str, where: str, branch: str) -> Asked | None:
    """Ask, and return the answer if there is one; None where nothing keeps questions.

    Raises Unreachable, and LookupError in a replay if this question is not in the recording.
    """
    recorded = _questions_of_recording()
    run = current_run() or os.environ.get("PLAYHEAD_RUN")
    is_stored = bool(run and os.environ.get("PLAYHEAD_API"))
    if recorded is None and not is_stored:
        return None
    with _lock:
        number = _question_counts[(run or "", prompt, branch)]
        _question_counts[(run or "", prompt, branch)] += 1
    earlier = _find(recorded or [], prompt, branch, number)
    if not run or not is_stored:
        if earlier is None:
            raise LookupError(_describe_miss(recorded or [], prompt, where))
        # Where the recorded program did not receive the answer, it stopped.
        return Asked(run or "", prompt, "", _recorded_answer(earlier) if earlier.get("received") else None)
    body = {"prompt": prompt, "asked_from": where[:500], "branch": branch, "number": number}
    found = _post_question(run, body)
    question = Asked(run, prompt, found["question"], _answer(found["answer"]) if found["answer"] else None, body)
    known = _recorded_answer(earlier) if earlier else None
    if question.answer is None and known is not None:
        # The recording is a file, and the store does not have the run that this one continues.
        return replace(question, answer=question.store_answer(known.value, known.by or "the recording"))
    return question


def _post_question(run: str, question: Mapping[str, Any]) -> dict[str, Any]:
    return post_json(f"/v1/runs/{quote(run, safe='')}/questions", question)


def stop(question: Asked) -> WaitingForAnswer:
    """Say on standard error how to answer, and return the exception that ends the program."""
    if question.id:
        message = (
            f"waits for an answer to {question.prompt!r}: playhead answer {question.run} --value TEXT,"
            f" then playhead resume {question.run} -- COMMAND"
        )
    else:
        message = f"waits for an answer to {question.prompt!r}, as the recorded program did"
    sys.stderr.write(f"playhead: {message}\n")
    return WaitingForAnswer(question.prompt)


def _questions_of_recording() -> list[dict[str, Any]] | None:
    """The questions of the recording that this program replays or continues; None if it does neither."""
    text = os.environ.get("PLAYHEAD_QUESTIONS")
    if text is None:
        return None
    questions: list[dict[str, Any]] = json.loads(text)
    return questions


def _find(recorded: list[dict[str, Any]], prompt: str, branch: str, number: int) -> dict[str, Any] | None:
    expected = {"prompt": prompt, "branch": branch, "number": number}
    return next((one for one in recorded if expected.items() <= one.items()), None)


def _describe_miss(recorded: list[dict[str, Any]], prompt: str, where: str) -> str:
    known = ", ".join(repr(one["prompt"]) for one in recorded[:5])
    return f"{where} asks {prompt!r}, which the recording has not: it has {known or 'no questions'}"


def _recorded_answer(question: Mapping[str, Any]) -> PersonAnswer | None:
    if "value" not in question:
        return None
    at = datetime.fromtimestamp(int(question["at"]) / 1e9, timezone.utc)
    return PersonAnswer(str(question["value"]), str(question["by"]), rfc3339(at))


def rfc3339(at: datetime) -> str:
    """Write a time in UTC, to the second."""
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def rfc3339_now() -> str:
    """Return the time now."""
    return rfc3339(datetime.now(timezone.utc))


def user_name() -> str:
    """Return the name of the user who answers, also where the system does not know this user, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # which of them depends on the version of Python
        return "unknown user"


def _answer(members: Mapping[str, Any]) -> PersonAnswer:
    return PersonAnswer(str(members["value"]), str(members["by"]), str(members["at"]))
