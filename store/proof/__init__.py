"""Prove that the record was not altered after it was stored (docs/proof.md).

commitments   the salts of commitments, and how one is forgotten
evidence      make the records of what is stored
signing_keys  the keys that sign checkpoints
chain         append records to the chains of runs
"""
