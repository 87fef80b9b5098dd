"""A program asks a person and stops. Later somebody answers, and rewritten code goes on without paying for the past again."""

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proxy.demo.demo import CONFIG, prepare_directory
from proxy.demo.service import ShellResult
from tests.support.service import keeping

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIENT = Path(__file__).parents[2] / "clients" / "pytest-playhead" / "src"

AGENT = f"""
import json, sys, urllib.request
sys.path.insert(0, {str(CLIENT)!r})
from playhead import effects

MODEL = "https://api.model.example/v1/chat/completions"

def ask(text):
    body = json.dumps({{"model": "example-large", "messages": [{{"role": "user", "content": text}}]}}).encode()
    message = urllib.request.Request(MODEL, body, {{"content-type": "application/json"}})
    with urllib.request.urlopen(message, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]
"""

FIRST = """
ask("What does the customer want?")
approved = effects.input("Refund 120 EUR?")
print(approved, ask(f"The answer is {approved}."))
"""

REWRITTEN = """
def classify():
    return ask("What does the customer want?")

def respond(approved):
    return ask(f"The answer is {approved}.")

classify()
answer = effects.input("Refund 120 EUR?")
print(answer, respond(answer))
"""


WORKFLOW = f"""
import sys
sys.path.insert(0, {str(CLIENT)!r})
from playhead import Trace, Workflow, effects

flow = Workflow("refunds", ask=lambda request: {{"text": "REFUND"}})
flow.step("classify", model="example-large", prompt="{{input}}")
flow.step("route", fn=lambda intent: {{"queue": intent, "at": effects.now(), "region": QUEUE}})
if __name__ == "__main__":
    flow.run("Where is my money?", seed=7)
"""


def write(file: Path, text: str) -> None:
    file.write_text(text)


READING = """
stored, other = Trace.from_run("flow-1", flow), Trace.from_run("flow-2", flow)
print(stored == Trace.from_run("flow.jsonl", flow), stored.step("route").output["region"], bool(stored.replay()))
other.steps[1].output["region"] = "EU"
print(bool(stored.diff(other)))
print(stored.bisect(other))
"""


async def require_stored_workflow(playhead: Callable[..., Awaitable[ShellResult]], program: Path) -> None:
    """Require that the steps of a workflow and its trace are in its run, and a diff names the step that differs."""
    for run, region in (("flow-1", "EU"), ("flow-2", "US")):
        write(program, WORKFLOW.replace("QUEUE", repr(region)))
        await playhead("record", "--run", run, "--", "python", "agent.py")
    shown = [json.loads(line) for line in (await playhead("show", "flow-1", "--effects", "--json")).out.splitlines()]
    steps = [(one["args"]["name"], one["task"]) for one in shown if one["kind"] == "workflow.step"]
    assert steps == [("classify", "refunds/classify"), ("route", "refunds/route")]
    differing = (await playhead("diff", "flow-1", "flow-2")).out
    assert "workflow.step route" in differing, differing
    await playhead("export", "flow-1", "-o", "flow.jsonl")
    write(program.with_name("again.py"), WORKFLOW.partition("if __name__")[0].replace("QUEUE", "'EU'") + READING)
    # A recorded program has the address and the token of the API, where the traces of runs are.
    again = await playhead("record", "--run", "flow-read", "--", "python", "again.py")
    assert again.out.splitlines()[:2] == ["True EU True", "True"], again.error
    assert "now in `route` makes the difference" in again.out


async def test_a_run_waits_for_a_person_and_goes_on_from_rewritten_code(
    data: Path, database_url: str, programs: Path
) -> None:
    shell = prepare_directory(data)
    program = data / "agent.py"
    servers = shell.background_command([sys.executable, "-m", "proxy.demo.servers"], "servers.log")

    async def playhead(*words: str, code: int = 0) -> ShellResult:
        command = await shell.run(["playhead", *words])
        assert command.code == code, command.error
        return command

    async def execute(*words: str, code: int = 0) -> ShellResult:
        return await playhead(*words, "--", "sh", "-c", f"{programs}/python agent.py </dev/null", code=code)

    async with servers as line, keeping(data / "data", database_url):
        (data / "playhead.toml").write_text('project = "team"\n' + CONFIG.format(**json.loads(line)))
        await require_stored_workflow(playhead, program)
        program.write_text(AGENT + FIRST)
        asked = await execute("record", "--run", "first", code=75)
        assert "playhead answer first --value TEXT" in asked.error
        waiting = (await playhead("waiting")).out
        assert "Refund 120 EUR?" in waiting
        assert "agent.py:15" in waiting
        # Nobody has answered, or has after it stopped: a replay of what happened waits as well.
        await execute("replay", "first", code=75)
        assert "yes  (ann)" in (await playhead("answer", "first", "--value", "yes", "--by", "ann")).out
        assert "first answer is valid" in (await playhead("answer", "first", "--value", "no", code=125)).error
        await execute("replay", "first", code=75)

        program.write_text(AGENT + REWRITTEN)
        resumed = await execute("resume", "first", "--run", "second")
        assert resumed.out.startswith("yes {")
        assert "1 call answered free of charge, 1 live" in resumed.error
        assert (await playhead("waiting")).out == ""
        # What it received is part of the new run, in the store and as a file.
        await playhead("export", "second", "-o", "second.jsonl")
        for recording in ("second", "second.jsonl"):
            assert (await execute("replay", recording)).out == resumed.out

        # A question that was not asked is none that was answered.
        program.write_text(AGENT + REWRITTEN.replace("120 EUR", "7 EUR"))
        missed = await execute("replay", "second", code=1)
        assert "agent.py:21 asks 'Refund 7 EUR?', which the recording has not: it has 'Refund 120 EUR?'" in missed.error
        await execute("resume", "second", "--run", "third", code=75)
        assert "Refund 7 EUR?" in (await playhead("waiting", "third")).out
