"""A support agent that the demo records. It does not use Playhead itself.

It calls a model, runs the two tools that the model requests (one over `requests`, one over `httpx2`) and calls the model
again. It prints the conversation and, at the end, a digest of every byte that it received. Its argument is the prompt.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import requests

MODEL_API = "https://api.model.example/v1"
TICKETS_API = "https://tickets.example.com/v2"
PROMPT = "Which refund tickets are open? Leave a note on the oldest."
SYSTEM = "You are a support agent for an online shop. Use the tools; be brief."


def tool(name: str, purpose: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": purpose, "parameters": parameters}}


TOOLS: list[Any] = [
    tool(
        "search_tickets", "Find tickets by a word of their subject.", query="string", status="string", limit="integer"
    ),
    tool("add_note", "Leave a note on a ticket, for colleagues only.", ticket="string", text="string"),
]


class ReceivedBytes:
    """A digest of every byte of every answer, as received from the network."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.answers = 0

    def add(self, data: bytes) -> bytes:
        self.digest.update(data)
        self.size += len(data)
        return data

    def begin(self, status: int) -> None:
        self.answers += 1
        self.add(f"{status}\n".encode())

    def watch(self, response: httpx2.Response) -> None:
        """An event hook for httpx2: add the body's bytes before they are decoded."""
        self.begin(response.status_code)
        response.stream = WatchedStream(response.stream, self)


class WatchedStream(httpx2.SyncByteStream):
    def __init__(self, stream: Any, received: ReceivedBytes) -> None:
        self.stream = stream
        self.received = received

    def __iter__(self) -> Iterator[bytes]:
        for data in self.stream:
            yield self.received.add(data)

    def close(self) -> None:
        self.stream.close()


def search_tickets(received: ReceivedBytes, **arguments: Any) -> str:
    response = requests.get(f"{TICKETS_API}/tickets", params=arguments, timeout=30)
    received.begin(response.status_code)
    response.raise_for_status()
    return received.add(response.content).decode()


def add_note(received: ReceivedBytes, ticket: str, text: str) -> str:
    response = httpx2.post(f"{TICKETS_API}/tickets/{ticket}/notes", json={"text": text}, timeout=30)
    received.begin(response.status_code)
    response.raise_for_status()
    return received.add(response.content).decode()


RUN_TOOL: dict[str, Callable[..., str]] = {"search_tickets": search_tickets, "add_note": add_note}


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def ask(client: openai.OpenAI, messages: list[Any]) -> dict[str, Any]:
    """Call the model, print its text as it arrives, and return its message."""
    say("model   ")
    with client.chat.completions.stream(
        model="example-large", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            if event.type == "content.delta":
                say(event.delta.replace("\n", "\n        "))
        message = stream.get_final_completion().choices[0].message
    say("\n")
    reply: dict[str, Any] = message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    return reply


def work(client: openai.OpenAI, received: ReceivedBytes, prompt: str) -> None:
    """Run the agent: call the model and run the tools that it requests, until it requests none."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    say(f"user    {prompt}\n")
    while True:
        message = ask(client, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = RUN_TOOL[name](received, **json.loads(arguments))
            say(f"tool    {name} {arguments}\n        {result}\n")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def main() -> None:
    received = ReceivedBytes()
    http_client = openai.DefaultHttpxClient(event_hooks={"response": [received.watch]})
    key = os.environ.get("OPENAI_API_KEY") or "sk-demo-0123456789abcdefghijklmnopqrstuvwxyz"
    client = openai.OpenAI(base_url=MODEL_API, api_key=key, http_client=http_client)
    try:
        work(client, received, " ".join(sys.argv[1:]) or PROMPT)
    except openai.APIStatusError as error:
        say("\n")
        detail = error.body.get("message") if isinstance(error.body, dict) else None
        sys.exit(f"agent: stopped by status {error.status_code}: {detail or error.message}")
    say(f"received {received.answers} answers, {received.size} bytes\n        sha256:{received.digest.hexdigest()}\n")


if __name__ == "__main__":
    main()
