"""The script of a small agent for trials, which makes the calls that `tests.store.agents.Agent` recorded, and bundles
of these calls.
"""

from pathlib import Path

AGENT = """
import json, os, pathlib, sys, urllib.request

SYSTEM = "Be brief."

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)

# Each replay has a scratch directory of its own, so this never exists.
if "PLAYHEAD_SCRATCH" in os.environ:
    (pathlib.Path(os.environ["PLAYHEAD_SCRATCH"]) / "once").touch(exist_ok=False)
messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Find out."}]
message = post("https://api.openai.com/v1/chat/completions", {"model": "gpt-5", "messages": messages})["choices"][0]["message"]
for call in message.get("tool_calls") or ():
    found = post("https://tools.example.com/search", json.loads(call["function"]["arguments"]))
    print("found", found)
"""


def write_agent(directory: Path, system: str = "Be brief.", more: str = "") -> Path:
    """Write the agent with this system prompt, and with further code at its end."""
    file = directory / "agent.py"
    file.write_text(AGENT.replace("Be brief.", system) + more)
    return file
