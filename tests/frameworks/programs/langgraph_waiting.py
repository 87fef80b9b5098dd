"""LangGraph with a checkpointer on disk: the first process stops for a person, the second goes on from there."""

import sys
from typing import Annotated, TypedDict

import httpx
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt


class State(TypedDict):
    messages: Annotated[list, add_messages]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return httpx.get("https://weather.example/v1/now", params={"city": city}).text


model = ChatOpenAI(model="gpt-4o-mini", temperature=0).bind_tools([weather])


def ask(state):
    return {"messages": [model.invoke(state["messages"])]}


def approve(state):
    calls = state["messages"][-1].tool_calls
    assert interrupt({"may we": [call["name"] for call in calls]}) == "yes"
    return {"messages": [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]}


graph = StateGraph(State)
graph.add_node("ask", ask)
graph.add_node("approve", approve)
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", lambda state: "approve" if state["messages"][-1].tool_calls else END)
graph.add_edge("approve", "ask")

with SqliteSaver.from_conn_string(sys.argv[1]) as checkpointer:
    app = graph.compile(checkpointer=checkpointer)
    config = {"configurable": {"thread_id": "t-1"}}
    if app.get_state(config).next:
        state = app.invoke(Command(resume="yes"), config)
    else:
        script = '[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.'
        state = app.invoke({"messages": [("user", script)]}, config)
    print(state["messages"][-1].content or "waits for a person")
