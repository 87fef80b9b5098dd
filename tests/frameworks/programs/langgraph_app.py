"""LangGraph: tools, a checkpointer, an interrupt that waits for a person, and the resumption; streamed."""

import json
from typing import Annotated, TypedDict

import httpx
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt


class State(TypedDict):
    messages: Annotated[list, add_messages]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return httpx.get("https://weather.example/v1/now", params={"city": city}).text


model = ChatOpenAI(model="gpt-4o-mini", temperature=0, stream_usage=True).bind_tools([weather])


def ask(state):
    return {"messages": [model.invoke(state["messages"])]}


def approve(state):
    calls = state["messages"][-1].tool_calls
    answer = interrupt({"may we": [call["name"] for call in calls]})
    assert answer == "yes"
    return {"messages": [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]}


graph = StateGraph(State)
graph.add_node("ask", ask)
graph.add_node("approve", approve)
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", lambda state: "approve" if state["messages"][-1].tool_calls else END)
graph.add_edge("approve", "ask")
app = graph.compile(checkpointer=InMemorySaver())

config = {"configurable": {"thread_id": "t-1"}}
script = '[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.'
stopped = app.invoke({"messages": [("user", script)]}, config)
assert stopped["__interrupt__"]
pieces = [piece.content for piece, _ in app.stream(Command(resume="yes"), config, stream_mode="messages")]
state = app.get_state(config)
print(json.dumps({"pieces": pieces, "said": [message.content for message in state.values["messages"]]}, indent=1))
