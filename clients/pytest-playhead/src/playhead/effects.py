"""What a workflow receives from outside, asked for in such a way that it is recorded, and given from the record in a replay.

    from playhead import effects

    def decide(order):
        if effects.now() > deadline(order):
            return effects.input("Refund it anyway?")

Outside of a step of a `playhead.Workflow` these functions do what they say, and nothing is recorded.
"""

from __future__ import annotations

import json as json_module
import os
import random as random_module
import secrets
import sys
import time
import urllib.error
import urllib.request
import uuid as uuid_module
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from playhead.people import PersonAnswer, ask, rfc3339_now, stop, user_name
from playhead.workflow.execution import Suspended, caller, current_place, perform
from playhead.workflow.trace import Question
from playhead.workflow.values import Json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playhead.workflow.execution import Place

MOST_BYTES = 8 * 2**20
"""Of a file or an answer that is read."""

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key")


@dataclass(frozen=True)
class HttpAnswer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body's JSON. Raises ValueError."""
        return json_module.loads(self.body)


def now() -> datetime:
    """Return the time, in UTC."""
    found: datetime = perform("now", None, lambda: datetime.now(timezone.utc))
    return found


def random() -> float:
    """Return a number from 0 to less than 1, which depends on the seed of the run."""
    found: float = perform("random", None, lambda: _generator().random())
    return found


def uuid() -> str:
    """Return a UUID (version 4), which depends on the seed of the run."""
    found: str = perform("uuid", None, lambda: str(uuid_module.UUID(int=_generator().getrandbits(128), version=4)))
    return found


@overload
def read(file: str | os.PathLike[str]) -> str: ...
@overload
def read(file: str | os.PathLike[str], encoding: str) -> str: ...
@overload
def read(file: str | os.PathLike[str], encoding: None) -> bytes: ...
def read(file: str | os.PathLike[str], encoding: str | None = "utf-8") -> str | bytes:
    """Return the content of a file of at most 8 MiB, as text, or as bytes with `encoding=None`. Raises OSError and ValueError."""
    content: bytes = perform("read", {"file": os.fspath(file)}, lambda: _read_file(Path(file)))
    return content if encoding is None else content.decode(encoding)


def env(name: str, default: str | None = None) -> str | None:
    """Return a variable of the environment.

    One whose name says that it is a secret (`…_KEY`, `…_TOKEN`) is read each time, and its value is not recorded.
    """
    if any(word in name.upper() for word in _SECRET_WORDS):
        perform("env", {"name": name, "is_secret": True}, lambda: None)
        return os.environ.get(name, default)
    found: str | None = perform("env", {"name": name}, lambda: os.environ.get(name))
    return default if found is None else found


def sleep(seconds: float) -> None:
    """Wait. A replay does not."""
    perform("sleep", {"seconds": seconds}, lambda: time.sleep(seconds))


def input(prompt: str) -> Any:  # noqa: A001 - the name in the public API
    """Ask a person. On a terminal the answer is read there.

    Elsewhere the program stops until somebody answers: a workflow returns its trace, which waits for `resume(trace, answer)`; other
    code of a recorded run raises WaitingForAnswer, which ends the program, and `playhead answer` and `playhead resume` go on.
    """
    where, place = caller(), current_place()
    new_answers: list[PersonAnswer] = []

    def receive() -> str:
        answer = _ask_person(prompt, where, place)
        new_answers.append(answer)
        return answer.value

    value = perform("input", {"prompt": prompt}, receive, where=where)
    if new_answers and place is not None:
        place.effects[-1] = replace(place.effects[-1], answered_by=new_answers[0].by, answered_at=new_answers[0].at)
    return value


def http(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    json: Any = None,
    timeout: float = 60.0,
) -> HttpAnswer:
    """Send a request, and return the answer, whatever its status. The values of headers with credentials are not recorded.

    A replay sends nothing. Raises OSError if there is no answer, and ValueError for one of more than 8 MiB.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http address")
    all_headers = dict(headers or {})
    if json is not None:
        body = json_module.dumps(json).encode()
        all_headers.setdefault("content-type", "application/json")
    recorded_headers = {
        name: "[not recorded]" if name.lower() in _SECRET_HEADERS else value for name, value in all_headers.items()
    }
    content = to_json(_as_text(body), "the body")
    arguments: Json = {"method": method.upper(), "url": url, "headers": dict(recorded_headers), "body": content}
    found = perform("http", arguments, lambda: _send(method.upper(), url, all_headers, body, timeout))
    return HttpAnswer(found["status"], found["headers"], found["body"])


def _generator() -> random_module.Random:
    place = current_place()
    if place is None:
        return secrets.SystemRandom()
    return random_module.Random(f"{place.execution.seed}:{place.path}:{place.number}")  # noqa: S311 - no secret


def _read_file(file: Path) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{file} has more than {MOST_BYTES >> 20} MiB: read it outside of the workflow")
    return content


def _ask_person(prompt: str, where: str, place: Place | None) -> PersonAnswer:
    """Return the answer that is recorded, or given on the terminal. Raises Suspended or WaitingForAnswer if there is none."""
    question = ask(prompt, where, place.path.partition("/")[2] if place else "")
    if question is not None and question.answer is not None:
        return question.answer
    if sys.stdin is not None and sys.stdin.isatty() and (question is None or question.id):
        answer = PersonAnswer(_ask_on_terminal(prompt), user_name(), rfc3339_now())
        return answer if question is None else question.store_answer(answer.value, answer.by)
    if place is not None:
        raise Suspended(Question(place.step, place.path, prompt, where))
    if question is None:
        raise RuntimeError(
            "there is no terminal on which a person could answer, and no run or workflow that could wait"
        )
    raise stop(question)


def _ask_on_terminal(prompt: str) -> str:
    sys.stderr.write(f"{prompt} ")
    sys.stderr.flush()
    return sys.stdin.readline().rstrip("\n")


def _send(method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)  # noqa: S310 - checked by the caller
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310 - checked by the caller
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        content = answer.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"{url} answered with more than {MOST_BYTES >> 20} MiB")
        return {"status": answer.status, "headers": dict(answer.headers.items()), "body": content}


def _as_text(body: bytes | None) -> str | bytes | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        return body
