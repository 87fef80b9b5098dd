"""Bridges: what a framework calls a node, an agent or a span is recorded in the run, beside the calls that it makes.

    from playhead.bridges import langgraph
    langgraph.install()

langgraph              LangGraph and LangChain
langgraph_checkpoints  what LangGraph's checkpointers save and load, which `langgraph` records as well
langgraph_interrupts   have a person answer the interrupts of LangGraph
llama_index            LlamaIndex and its workflows
openai_agents          OpenAI's Agents SDK
opentelemetry          spans of OpenTelemetry, such as those of pydantic-ai and OpenInference
steps                  what all of them report

Each imports its framework when it is installed, and nothing else does. Outside of a recorded run they do nothing.
"""
