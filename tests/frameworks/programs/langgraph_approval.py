"""LangGraph: two branches are interrupted at once, to ask a person each, and the graph goes on with both answers."""

import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt


class State(TypedDict):
    said: Annotated[list, operator.add]


def approve(state):
    return {"said": [interrupt({"refund": 120, "currency": "EUR"})]}


def explain(state):
    return {"said": [interrupt("What do we tell the customer?")]}


graph = StateGraph(State)
for node in (approve, explain):
    graph.add_node(node.__name__, node)
    graph.add_edge(START, node.__name__)
app = graph.compile(checkpointer=InMemorySaver())
print(app.invoke({"said": []}, {"configurable": {"thread_id": "1"}})["said"])
