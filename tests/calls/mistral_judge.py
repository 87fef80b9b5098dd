"""What Mistral's SDK makes of streams: `python mistral_judge.py`, in an environment of its own, base64 lines in, JSON lines out.

Its package brings a `jsonpath` that is not ours, so it cannot live beside us.
"""

import base64
import json
import sys

import httpx2
from mistralai.client import Mistral


def answer(data: bytes) -> dict[str, object]:
    """The chunks joined, as its documentation joins them: text to text, tool calls one after another."""
    head = {"content-type": "text/event-stream"}
    web = httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=head, content=data)))
    text, calls, last = "", [], None
    with Mistral(api_key="none", client=web) as sdk, sdk.chat.stream(model="any", messages=[]) as events:
        for event in events:
            last = event.data
            for choice in last.choices:
                content = choice.delta.content or ""
                text += content if isinstance(content, str) else "".join(getattr(part, "text", "") for part in content)
                calls += [
                    [call.id, call.function.name, call.function.arguments] for call in choice.delta.tool_calls or ()
                ]
    usage = last.usage
    tokens = [usage.prompt_tokens, usage.completion_tokens] if usage else None
    finish = last.choices[0].finish_reason if last.choices else None
    return {"id": last.id, "model": last.model, "text": text, "calls": calls, "finish": finish, "tokens": tokens}


for line in sys.stdin:
    print(json.dumps(answer(base64.b64decode(line))))
