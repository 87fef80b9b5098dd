"""Find secrets that no single message of a stream holds.

streamed_body        redact a body that is a stream
streamed_messages    redact one side of a WebSocket
streamed_text        search the texts of all messages of a stream
channels             one text that is streamed in pieces
message_texts        which members of a message carry text
message_shapes       recognise messages that differ only in their text
message_bounds       where messages begin and end
json_leaves          the strings and numbers of a JSON text, with their positions
"""
