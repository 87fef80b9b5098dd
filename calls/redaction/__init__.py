"""Finding and replacing secrets that no single message holds.

* `json_leaves`: the strings and numbers of a JSON text, with where they stand in its bytes
* `channels`: texts that a stream carries in pieces, each searched as one
* `message_shapes`: messages that differ only in what they carry, recognised by one expression
* `message_texts`: which members of a message carry text, and to which channel it belongs
* `cutting`: where messages begin and end in the bytes of a stream
* `streamed_text`: the search over all of a stream's messages
* `streamed_body`: a body, or the messages of a WebSocket, held back until the search has decided
"""
