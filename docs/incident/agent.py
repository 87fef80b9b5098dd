"""A support agent that finds and deletes customer records. It does not use Playhead itself."""

import json
import sys

import httpx2
import openai

SYSTEM = "You are a support agent. Find the customer's record, and delete it if the user asks for that."
CRM = "https://crm.example.com/records"
REQUEST = "I am Jo Miller. Please delete my record R-1042."


def tool(name: str, purpose: str, properties: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": purpose, "parameters": parameters}}


def build_tools() -> list[dict[str, object]]:
    """Return the tools that the model may request."""
    return [
        tool("find_records", "Find records by a customer's name.", {"name": {"type": "string"}}),
        tool("delete_record", "Delete a record for good.", {"id": {"type": "string"}}),
    ]


def call_tool(crm: httpx2.Client, name: str, arguments: dict[str, str]) -> str:
    if name == "find_records":
        return crm.get(CRM, params={"name": arguments["name"]}).text
    return crm.delete(f"{CRM}/{arguments['id']}").text


def answer(request: str) -> str:
    """Answer a user's request."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": request}]
    with openai.OpenAI(api_key="sk-none", max_retries=1) as model, httpx2.Client() as crm:
        for _ in range(6):
            completion = model.chat.completions.create(model="support-1", messages=messages, tools=build_tools())
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = call_tool(crm, call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "I could not finish."


if __name__ == "__main__":
    print(answer(sys.argv[1] if len(sys.argv) > 1 else REQUEST))
