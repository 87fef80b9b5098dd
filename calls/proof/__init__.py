"""What a proof is made of: commitments, chains of records, the tree over them, signed checkpoints. docs/proof.md explains it.

records       the records of a chain, and the links between them
tree          Merkle trees and their proofs (RFC 6962, RFC 9162)
checkpoint    signed checkpoints (C2SP signed-note, tlog-checkpoint, tlog-cosignature)
"""
