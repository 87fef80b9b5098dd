"""What frameworks call their steps is recorded in the run, and the calls name the step that made them."""

import json
from pathlib import Path

import pytest

from tests.frameworks.environments import Interpreters
from tests.frameworks.scripted import serve_scripted
from tests.frameworks.test_frameworks import FRAMEWORKS, PROGRAMS, place, playhead, port, service, tools_port
from tests.support.service import Service

__all__ = ["place", "port", "service", "tools_port"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CLIENT = Path(__file__).parents[2] / "clients" / "pytest-playhead" / "src"

BRIDGES = {
    "agents_sdk": (
        "openai_agents",
        {("agents.agent", "triage"), ("agents.function", "weather")},
        {"triage", "checker", "forecaster", "weather"},
    ),
    "langgraph_app": (
        "langgraph",
        {
            ("langgraph.node", "ask"),
            ("langgraph.tool", "weather"),
            ("langgraph.checkpoint", "save"),
            ("langgraph.checkpoint", "load"),
        },
        {"ask", "approve"},
    ),
    "llamaindex_flow": (
        "llama_index",
        {("llama_index.step", "BaseWorkflowAgent.call_tool")},
        {"BaseWorkflowAgent.run_agent_step", "FunctionTool.acall"},
    ),
    "pydantic_agent": (
        "opentelemetry",
        {("otel.execute_tool", "execute_tool weather")},
        {"chat gpt-4o-mini", "execute_tool weather"},
    ),
}
"""For each program its bridge, some of its steps, and those that its calls name."""


@pytest.mark.parametrize("program", BRIDGES)
async def test_the_steps_of_a_framework_are_in_the_run(
    program: str, place: Path, port: int, service: Service, interpreters: Interpreters
) -> None:
    bridge, steps, actors = BRIDGES[program]
    interpreter = interpreters.forking(FRAMEWORKS[program])
    words = (str(PROGRAMS / "bridged.py"), str(CLIENT), bridge, str(PROGRAMS / f"{program}.py"))
    with serve_scripted(port):
        recorded = await playhead(place, "record", "--run", program, "--", interpreter, *words)
    assert recorded.code == 0, recorded.err
    assert "not all steps" not in recorded.err
    lines = (await playhead(place, "show", program, "--effects", "--json")).out.splitlines()
    reported = [json.loads(line) for line in lines]
    found = {(one["kind"], one["args"]["name"]) for one in reported}
    assert steps <= found, found
    assert any(one["text"] and one["args"]["input"] for one in reported if (one["kind"], one["args"]["name"]) in steps)
    run = json.loads((await playhead(place, "show", program, "--json")).out)
    # The SDK of OpenAI sends its own traces as well, outside of all steps.
    assert {call["actor"] for call in run["items"] if call["actor"]} == actors


async def test_an_interrupted_graph_waits_for_people_and_goes_on_with_their_answers(
    place: Path, service: Service, interpreters: Interpreters
) -> None:
    interpreter = interpreters.forking(FRAMEWORKS["langgraph_app"])
    program = str(PROGRAMS / "langgraph_approval.py")
    words = (interpreter, str(PROGRAMS / "bridged.py"), str(CLIENT), "langgraph_interrupts", program)
    recorded = await playhead(place, "record", "--run", "approval", "--", *words)
    assert (recorded.code, recorded.out) == (75, "")
    assert "2 questions wait for an answer" in recorded.err
    waiting = json.loads((await playhead(place, "waiting", "approval", "--json")).out)["items"]
    assert {one["prompt"] for one in waiting} == {'{"refund": 120, "currency": "EUR"}', "What do we tell the customer?"}
    for one in waiting:
        value = '{"ok": true}' if "refund" in one["prompt"] else "We are sorry."
        done = await playhead(place, "answer", "approval", "--question", one["question"], "--value", value)
        assert done.code == 0, done.err
    resumed = await playhead(place, "resume", "approval", "--run", "approval-2", "--", *words)
    assert resumed.out == "[{'ok': True}, 'We are sorry.']\n", resumed.err
