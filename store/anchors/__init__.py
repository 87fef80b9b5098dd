"""Have others vouch for checkpoints: witnesses cosign them (C2SP tlog-witness), and an authority states when they existed (RFC 3161).

targets         whom to ask
failure         why somebody does not vouch
exchange        send one request, and read a bounded response
witness         ask a witness for its cosignature
timestamp       ask a timestamp authority, and check what it answered
rows            keep what they answered beside the checkpoints
anchorer        ask for each new checkpoint, apart from everything that records
anchor_check    check what vouches for a checkpoint
stored_anchors  check what the database has of it
"""
