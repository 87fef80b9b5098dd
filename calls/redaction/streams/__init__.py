"""Find secrets that no single message of a stream holds.

streamed_body        redact a body that is a stream of messages
streamed_messages    redact one side of a WebSocket
streamed_text        search the texts of all messages of a stream
message_search       search the texts that messages carry in pieces
channels             one text that is streamed in pieces
message_texts        find the members of a message that carry text
message_shapes       recognise messages that differ only in their text
message_bounds       find where messages begin and end
json_leaves          list the strings and numbers of a JSON text with their positions
"""
