"""An agent of the help desk: asks a model, runs the tools that it wants, asks again. It may wait for a person before it does.

It prints one line of JSON for each thing that happened.
"""

import argparse
import json
import sys
from typing import Any

import httpx2
import openai

TICKETS = "https://tickets.example.com/v2"
QUESTION = "Which refund tickets are open? Leave a note on the oldest."


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")


def send_chat(client: openai.OpenAI, messages: list[Any], *, stream: bool) -> Any:
    wanted: dict[str, Any] = {"model": "gpt-4o-mini", "messages": messages}
    if not stream:
        return client.chat.completions.create(**wanted).choices[0].message
    with client.chat.completions.stream(**wanted, stream_options={"include_usage": True}) as events:
        return events.get_final_completion().choices[0].message


def ran(name: str, arguments: dict[str, Any]) -> httpx2.Response:
    if name == "search_tickets":
        return httpx2.get(f"{TICKETS}/tickets", params=arguments, timeout=60)
    return httpx2.post(f"{TICKETS}/tickets/{arguments['ticket']}/notes", json={"text": arguments["text"]}, timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--ask-first", action="store_true")
    given = parser.parse_args()
    client = openai.OpenAI(base_url="https://api.openai.com/v1", api_key="sk-none", max_retries=3)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = send_chat(client, messages, stream=given.stream)
        say(text=message.content)
        messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not message.tool_calls:
            return
        if given.ask_first:
            say(waits="for a person")
            return
        for call in message.tool_calls:
            answer = ran(call.function.name, json.loads(call.function.arguments))
            say(tool=call.function.name, status=answer.status_code, answer=answer.json())
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer.text})


if __name__ == "__main__":
    main()
