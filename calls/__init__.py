"""The pure core: what was sent and answered, and what it meant. It uses no clock, socket, file, database or randomness.

The terms, in the order to learn them:

- event: one thing that happened on the wire, with its time, after redaction.
- exchange: one HTTP request and its response, built from its events. It is the evidence.
- framing, dialect, provider: how a body is divided into messages, their JSON shape, and who answered.
- profile, key: the rules that decide which fields of a request count, and the digest of these fields.
- call: the request and answer in the API's own terms, derived from an exchange. It can be derived again.

model                 the types: exchanges, calls, gaps
events                what a wire engine reports, one event for each thing that happened
exchange_builder      build an exchange from its events
derive                derive the call of an exchange
route                 find the provider, dialect and operation of a request
side_effects          classify what a request may change in the outside world
retry_grouping        group exchanges that are retries or polls of one call
request_identifiers   identifiers of runs and sessions in the body of a request
project_runs          names of runs across projects
websocket_messages    the messages of a WebSocket as values
mcp_late_answers      match MCP answers that arrived on another exchange with their requests
answer_form           whether an answer is whole or streamed, and how it is divided
telemetry             services that receive traces, metrics and errors
own_fields            the names of Playhead's own response fields
placeholder           the replacement for a secret
uuid7                 identifiers that sort by their creation time
effects               what a program got from elsewhere than the network
codec                 read and write JSON, compressed bodies, forms
framing               divide a body into messages
dialects              one module for each API
keys                  profiles and the keys of requests
comparison            compare requests and answers of two runs
overrides             override files
checking              check what a run did against rules
judgement             have a model judge what a run did
canary                notice that a model answers otherwise than before
perturbation          vary what an agent received
proof                 chains, trees and checkpoints that prove the record
redaction             find and replace secrets
profiles              the built-in profiles, one TOML file for each dialect
"""
