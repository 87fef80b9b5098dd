"""OpenAI Agents SDK: a guardrail, parallel tools, a hand-off; once whole, once streamed. Its tracing stays on."""

import asyncio
import json
import urllib.request

from agents import Agent, GuardrailFunctionOutput, InputGuardrail, RunConfig, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    with urllib.request.urlopen(f"https://weather.example/v1/now?city={city}") as answer:
        return answer.read().decode()


checker = Agent(name="checker", instructions="Say whether this is about the weather.")


async def guard(context, agent, given):
    asked = f"It is, for {given[:20]}" if isinstance(given, str) else "It is."
    checked = await Runner.run(checker, asked, context=context.context)
    return GuardrailFunctionOutput(output_info=checked.final_output, tripwire_triggered=False)


forecaster = Agent(name="forecaster", instructions="Know the weather.", tools=[weather])
triage = Agent(
    name="triage",
    instructions="Send people on.",
    handoffs=[forecaster],
    input_guardrails=[InputGuardrail(guardrail_function=guard)],
)
SCRIPT = '[[transfer_to_forecaster {}]] -> [[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.'


def result_summary(result):
    return {
        "agent": result.last_agent.name,
        "said": result.final_output,
        "items": [json.loads(json.dumps(item.to_input_item(), default=str)) for item in result.new_items],
    }


async def main():
    whole = await Runner.run(triage, SCRIPT, run_config=RunConfig(workflow_name="weather"))
    streamed = Runner.run_streamed(triage, SCRIPT + " Really.")
    kinds = [event.type async for event in streamed.stream_events()]
    print(
        json.dumps(
            {"whole": result_summary(whole), "streamed": result_summary(streamed), "events": len(kinds)}, indent=1
        )
    )


asyncio.run(main())
