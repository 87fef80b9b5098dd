"""Send the requests in a file to an OpenAI-compatible server, and write the texts of its answers.

    python -m proxy.judgement.ask DIRECTORY

DIRECTORY has `questions.json`: {"url": …, "key_variable": …, "timeout_s": …, "bodies": […]}. `answers.json` is written beside it: a list with
{"text": …} or {"error": …} for each body, in order. The program knows nothing of Playhead: it is recorded and replayed as any agent is.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import httpx2

CONCURRENT: Final = 4
TRIES: Final = 3
LONGEST_WAIT: Final = 20.0
"""Seconds between two tries, at most."""

_RETRIED: Final = (408, 409, 429, 500, 502, 503, 504)


async def ask_all(questions: dict[str, Any]) -> list[dict[str, str | None]]:
    """Send all requests, a few at a time. Return the answers in the order of the requests."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get(questions["key_variable"]):
        headers["authorization"] = f"Bearer {key}"
    limit = asyncio.Semaphore(CONCURRENT)
    async with httpx2.AsyncClient(headers=headers, timeout=questions["timeout_s"]) as http:

        async def ask(body: dict[str, Any]) -> dict[str, str | None]:
            async with limit:
                return await _ask_one(http, questions["url"], body)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(body)) for body in questions["bodies"]]
    return [task.result() for task in tasks]


async def _ask_one(http: httpx2.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, str | None]:
    error = ""
    for attempt in range(TRIES):
        try:
            answer = await http.post(url, content=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"))
        except httpx2.HTTPError as failure:
            error = f"{type(failure).__name__}: {failure}"
        else:
            if answer.status_code < 300:
                return _answer_text(answer.content)
            error = f"{url} answered {answer.status_code}: {answer.text[:300]}"
            if answer.status_code not in _RETRIED:
                break
        if attempt + 1 < TRIES:
            await asyncio.sleep(min(LONGEST_WAIT, 2.0**attempt))
    return {"error": error}


def _answer_text(content: bytes) -> dict[str, str | None]:
    """Return the text of a chat completion."""
    try:
        choice = json.loads(content)["choices"][0]["message"]
        return {"text": choice.get("content") or choice.get("refusal")}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {"error": f"the answer is not a chat completion: {content[:200].decode('utf-8', 'replace')}"}


def main() -> None:
    """Run the program."""
    directory = Path(sys.argv[1])
    questions = json.loads((directory / "questions.json").read_bytes())
    answers = asyncio.run(ask_all(questions))
    (directory / "answers.json").write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main()
