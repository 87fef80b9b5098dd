"""CrewAI: one agent, one task, one tool."""

import json

import httpx
from crewai import LLM, Agent, AgentGroup, Task
from crewai.tools import tool


@tool("weather")
def weather(city: str) -> str:
    """The weather in a city."""
    return httpx.get("https://weather.example/v1/now", params={"city": city}).text


agent = Agent(
    role="forecaster", goal="Know the weather.", backstory="None.", tools=[weather], llm=LLM(model="openai/gpt-4o-mini")
)
task = Task(description='[[weather {"city": "Oslo"}]] -> It is fine.', expected_output="A sentence.", agent=agent)
print(json.dumps({"said": str(AgentGroup(agents=[agent], tasks=[task]).kickoff())}))
