"""The APIs of Anthropic.

messages    Messages, token counts and the older Complete, also on Vertex
sessions    managed agents (beta)
"""
