"""Make one call with each SDK that agents of tests use, to nobody: what SDKs build with their first calls takes 36 ms of CPU.

Run in the process of which such agents are forks (`shells.py`). Nothing of this checkout is imported here.
"""

import json
from typing import Any, Final

import httpx2
import openai
import requests

MESSAGE: Final = {"role": "assistant", "content": "so"}
ANSWER: Final[dict[str, Any]] = {"id": "a", "object": "chat.completion", "created": 1, "model": "m"}
CALL: Final = {"index": 0, "id": "call", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def answer(request: httpx2.Request) -> httpx2.Response:
    """Return a whole answer, or a stream of one event."""
    if not json.loads(request.content or b"{}").get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": MESSAGE}
        return httpx2.Response(200, json={**ANSWER, "choices": [choice]})
    choice = {"index": 0, "finish_reason": None, "delta": {**MESSAGE, "tool_calls": [CALL]}}
    event = {**ANSWER, "object": "chat.completion.chunk", "choices": [choice]}
    head = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=head, content=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())


class Nobody(requests.adapters.BaseAdapter):
    """An adapter that answers in place of a connection of `requests`."""

    def send(self, request: requests.PreparedRequest, *_: Any, **_options: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url, response.request = 200, str(request.url), request
        return response

    def close(self) -> None:
        pass


def warm_sdks() -> None:
    """Make one call with each SDK."""
    question: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "what"}]}
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        model = openai.OpenAI(api_key="none", base_url="http://nobody.example/v1", http_client=client)
        model.chat.completions.create(**question)
        list(model.chat.completions.create(**question, stream=True))
        client.get("http://nobody.example", params={"a": "b"}).json()
    with requests.Session() as session:
        session.mount("http://", Nobody())
        session.get("http://nobody.example", params={"a": "b"}, timeout=1)
