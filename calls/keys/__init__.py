"""Select the fields of a request that count, and make its key from them.

profile             a profile: the rules for the requests of one dialect
profile_toml        read profiles from TOML
rules               compile the rules of a profile into a tree
places              places in a JSON document
jsonpath            RFC 9535 paths in general
key_selection       select and normalize the key fields of a body
normalize           normalize values that an API accepts in several spellings
graphql             normalize GraphQL documents
element_memory      what was selected of elements that conversations repeat
key                 the key of a request
strict_key          the digest of a whole request
websocket_key       the keys of messages over a WebSocket
request_document    a request as one JSON document
divergence          list where two JSON values differ
explain             explain how a key was made
"""
