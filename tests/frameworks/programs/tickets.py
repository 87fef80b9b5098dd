"""A service that works on refund tickets, several at once: `tickets.py FRAMEWORK TICKET…`. Nine calls each: three of a
model, six of tools, some of which carry nothing that the model said."""

import asyncio
import contextlib
import os
import ssl
import sys

import httpx

SHOP = "https://shop.example"
TRUSTED = ssl.create_default_context()
"""For all clients: each that makes its own reads all roots, which takes 50 ms."""
NAMES_RUN = os.environ.get("NAMES_RUN") == "yes"


def client(ticket):
    """Says in a header whose work it does, for whoever counts; that is no source of a run."""
    return httpx.AsyncClient(timeout=60, verify=TRUSTED, headers={"User-Agent": f"counted/{ticket}"})


async def read(ticket, path):
    async with client(ticket) as http:
        return (await http.get(SHOP + path)).json()


async def send(ticket, path, **body):
    async with client(ticket) as http:
        return (await http.post(SHOP + path, json=body)).json()


def tools(ticket):
    async def order(order: str) -> str:
        """An order and who made it."""
        found = await read(ticket, f"/orders/{order}")
        who = await read(ticket, f"/customers/{found['customer']}")
        return f"{order} of {who['customer']}"

    async def refund(order: str, amount: int) -> str:
        """Give the money back, and say so."""
        made = await send(ticket, "/refunds", order=order, amount=amount, currency="eur")
        await send(ticket, "/mails", about=made["refund"])
        return f"{made['refund']} was made"

    return order, refund


async def prompt_for(ticket):
    found = await read(ticket, f"/tickets/{ticket}")
    order = found["order"]
    steps = [f'[[order {{"order": "{order}"}}]]', f'[[refund {{"order": "{order}", "amount": 12}}]]', "It is done."]
    return f"Ticket {ticket}: " + " -> ".join(steps)


async def with_agents_sdk(ticket, prompt):
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent(name="refunds", instructions="Be brief.", tools=[function_tool(one) for one in tools(ticket)])
    return (await Runner.run(agent, prompt)).final_output


async def with_pydantic(ticket, prompt):
    from pydantic_ai import Agent

    agent = Agent("openai-chat:gpt-4o-mini", system_prompt="Be brief.", tools=list(tools(ticket)))
    return (await agent.run(prompt)).output


async def with_langgraph(ticket, prompt):
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph

    known = {one.name: one for one in (tool(each) for each in tools(ticket))}
    model = ChatOpenAI(model="gpt-4o-mini", temperature=0).bind_tools(list(known.values()))

    async def ask(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def act(state):
        calls = state["messages"][-1].tool_calls
        done = [(await known[call["name"]].ainvoke(call["args"]), call["id"]) for call in calls]
        return {"messages": [ToolMessage(said, tool_call_id=name) for said, name in done]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("act", act)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda state: "act" if state["messages"][-1].tool_calls else END)
    graph.add_edge("act", "ask")
    state = await graph.compile().ainvoke({"messages": [("user", prompt)]})
    return state["messages"][-1].content


FRAMEWORKS = {"agents_sdk": with_agents_sdk, "pydantic": with_pydantic, "langgraph": with_langgraph}


def run(name):
    if not NAMES_RUN:
        return contextlib.nullcontext()
    import playhead

    return playhead.run(name)


async def work_on(framework, ticket):
    with run(f"{framework}-{ticket}"):
        said = await FRAMEWORKS[framework](ticket, await prompt_for(ticket))
        assert said == "It is done.", said
        await send(ticket, f"/tickets/{ticket}/close")


async def main():
    framework, *tickets = sys.argv[1:]
    await asyncio.gather(*(work_on(framework, ticket) for ticket in tickets))


asyncio.run(main())
