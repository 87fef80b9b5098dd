"""Answer the requests of a test without any recording: `playhead.answer(text="Done.")`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Union

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Condition = Union[str, Mapping[str, Any]]
    """A text that must be contained, or `{"contains": …, "lacks": …, "matches": "a regular expression"}`."""

_add_answer: Callable[[Mapping[str, Any]], None] | None = None


def set_answers(add: Callable[[Mapping[str, Any]], None] | None) -> None:
    """Set where the answers of the running test go; None when no test runs."""
    global _add_answer
    _add_answer = add


def answer(
    *,
    text: str | None = None,
    tool_calls: Sequence[Mapping[str, Any]] = (),
    results: Sequence[Any] = (),
    body: Any = ...,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    error: int | str | None = None,
    message: str | None = None,
    retry_after: float | None = None,
    finish_reason: str | None = None,
    usage: Mapping[str, int] | None = None,
    model: str | None = None,
    path: str | None = None,
    host: str | None = None,
    method: str | None = None,
    prompt: Condition | None = None,
    last_message: Condition | None = None,
    delay: float = 0,
    pace: float = 0,
    times: int | None = 1,
) -> None:
    """Answer a request of this test, which must be marked `playhead(recording=False)`.

    A request gets the first answer that is left and whose conditions it meets, so answers without conditions are given in
    their order. The answer is made in the form of the API that is asked, and streamed if the request asks for a stream.

    What it says: `text` and `tool_calls` (each with `name`, `arguments` and, if you like, `id`); or `results`, such as the
    vectors of embeddings; or a whole `body` with `status` and `headers`, for tools and for any other API; or an `error`: a
    status, "timeout", "cut" or "malformed".
    `finish_reason` is in the API's own words, and `usage` has `input_tokens` and `output_tokens`.

    Which request it expects: `model`, `path`, `host` and `method`, where `*` stands for anything; a condition on the whole
    `prompt`, or on the `last_message`.

    When: after a `delay` in seconds, with a `pace` in seconds between pieces, and so many `times`; None: any number.
    """
    __tracebackhide__ = True
    if _add_answer is None:
        raise RuntimeError(
            "no test with @pytest.mark.playhead(recording=False) is running: call playhead.answer in such a test, or in its"
            " fixtures of function scope"
        )
    members: dict[str, Any] = {
        "place": _caller(),
        "text": text,
        "tool_calls": [dict(call) for call in tool_calls],
        "results": list(results),
        "status": status,
        "headers": dict(headers or {}),
        "error": error,
        "message": message,
        "retry_after": retry_after,
        "finish_reason": finish_reason,
        "usage": None if usage is None else dict(usage),
        "model": model,
        "path": path,
        "host": host,
        "method": method,
        "prompt": prompt,
        "last_message": last_message,
        "delay": delay,
        "pace": pace,
        "times": times,
    }
    _add_answer(members if body is ... else {**members, "body": body})


def _caller() -> str:
    """The file and line that call `answer`."""
    frame = sys._getframe(2)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
