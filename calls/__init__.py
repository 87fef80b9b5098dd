"""What a call is: the pure core. Bytes in, values out; no clock, socket, file, database or randomness.

The nouns, in the order to learn them:

- event: one thing that happened on the wire (`events`), with its time, after redaction.
- exchange: one HTTP request and its response, folded from its events (`fold`, `model`): the evidence.
- framing, dialect, provider: how a body is cut into messages, which wire shape they have, who answered.
- profile, key: the rules that say which request fields are load-bearing, and the digest they lead to.
- call: what was asked and answered, derived from an exchange (`derive`); it can be derived again.
"""
