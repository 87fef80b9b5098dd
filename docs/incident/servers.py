"""Stand-ins for the model, the judge and the CRM of the incident: one server, which writes playhead.toml and serves until it is stopped.

    python servers.py DIRECTORY

The model is as careless as its prompt allows: it deletes the first record that it finds, unless it is told to be exact, and then still
deletes another one if the right one is missing. It never breaks the schema of a tool, as a provider guarantees for strict tools.
"""

import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

RECORDS = [
    {"id": "R-1024", "name": "Jo Miller", "city": "Leeds", "note": "moved in 2019"},
    {"id": "R-1042", "name": "Jo Miller", "city": "York"},
    {"id": "R-2001", "name": "Ada Brown", "city": "Hull"},
]

CONFIG = """[upstreams]
"api.openai.com" = "{origin}"
"crm.example.com" = "{origin}"

[[canary]]
name = "deletes"
calls = ["fixed-again/incident.jsonl"]
baseline = 20
"""

SERVED_MODEL = Path("served-model")
"""A file with the name of the model that answers, whichever was asked for."""


def complete(body: dict[str, Any]) -> dict[str, Any]:
    """Answer a chat completion."""
    messages = body["messages"]
    if body["model"] == "judge":
        return {"role": "assistant", "content": judge(messages[-1]["content"])}
    user = next(one["content"] for one in messages if one["role"] == "user")
    results = [one["content"] for one in messages if one["role"] == "tool"]
    if not results:
        return request_tool(len(messages), "find_records", {"name": re.findall(r"I am [\w ]* (\w+)", user)[0]})
    if len(results) > 1:
        deleted = re.search(r'"deleted": *"(.*?)"', results[1])
        text = f"I deleted record {deleted[1]}." if deleted else "I could not delete the record."
        return {"role": "assistant", "content": text}
    chosen = choose(user, messages[0]["content"], results[0], body["tools"])
    if chosen is None:
        return {"role": "assistant", "content": "I did not find the record that you named, so nothing was deleted."}
    return request_tool(len(messages), "delete_record", {"id": chosen})


def choose(user: str, system: str, found: str, tools: list[dict[str, Any]]) -> str | None:
    """Choose the record to delete."""
    try:
        ids = [str(one["id"]) for one in json.loads(found)["records"]]
    except (ValueError, LookupError, TypeError):
        ids = []
    named = re.findall(r"R-\d+", user)
    if "exactly" in system:
        ids.sort(key=lambda one: one not in named)
    allowed = tools[1]["function"]["parameters"]["properties"]["id"].get("enum")
    if allowed is not None:
        ids = [one for one in ids if one in allowed]
    return ids[0] if ids else None


def request_tool(number: int, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    """Return a message that requests a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def judge(question: str) -> str:
    """Say whether an answer tells the user what was deleted."""
    quote = re.search(r"I (?:deleted record R-\d+\.|did not find the record that you named)", question)
    verdict = {
        "verdict": "pass" if quote else "fail",
        "reason": "It says what was done.",
        "quote": quote[0] if quote else "",
    }
    return json.dumps(verdict)


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = parse_qs(urlsplit(self.path).query).get("name", [""])[0]
        self._send({"records": [one for one in RECORDS if name in one["name"]]})

    def do_DELETE(self) -> None:
        self._send({"deleted": self.path.rpartition("/")[2]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = complete(body)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        self._send(
            {
                "id": f"chatcmpl-{len(body['messages'])}",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": SERVED_MODEL.read_text().strip() if SERVED_MODEL.exists() else body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 200, "completion_tokens": 20, "total_tokens": 220},
            }
        )

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    origin = f"http://127.0.0.1:{server.server_port}"
    os.chdir(sys.argv[1])
    Path("playhead.toml").write_text(CONFIG.format(origin=origin))
    print(origin, flush=True)
    server.serve_forever()
