"""Dialects: the JSON shapes in which models and tools are asked and answer.

Each dialect is a module that declares one `DIALECT` (see `dialect`), with which all that differs from API to API is found here:
how requests are recognised and read, the hosts of its services, how answers are read, streamed, edited and made to fail.
The modules in the folders of vendors are found by `table`. CONTRIBUTING.md says how to add one.

Dialects do not import one another, except a carrier, which reads what it carries (`aws.bedrock_invoke`). They ignore what
they do not know: the bytes are kept and can be read again by a later version.

dialect      what a dialect declares
table        all dialects, in the order in which they are asked
generic      any other HTTP API
openai       OpenAI, and services that copy its API
anthropic    Anthropic
google       Google
aws          AWS
protocols    MCP, A2A, JSON-RPC, GraphQL
services     other services
parts        what several dialects use
"""
