"""Which fields of a request count, and the key that they make.

profile             a profile: the rules for the requests of one dialect
profile_toml        read profiles from TOML
rules               compile the rules of a profile into a tree
places              places in a JSON document
jsonpath            RFC 9535 paths in general
key_selection       select and normalize the key fields of a body
normalize           one spelling for values that an API reads in several
graphql             one spelling for GraphQL documents
key                 the key of a request
strict_key          the digest of a whole request
websocket_key       the keys of messages over a WebSocket
request_document    a request as one JSON document
divergence          where two JSON values differ
explain             explain how a key was made
"""
