"""Prove that the record was not altered after it was stored (docs/proof.md).

commitments    the salts of commitments
evidence       make the records of what is stored
chain          append records to the chains of runs
signing_keys   the keys that sign checkpoints
tiles          the tree over the heads of chains
sealing        append chains to the tree and sign checkpoints
run_check      compare what a run has with its records
tree_check     check the signed trees, once for all runs that are verified together
verification   check a run in the database
verdict        what checking a run has shown, and its form as JSON
seal_marks     say how far runs are sealed, and how their last verification ended
bundle_proof   the proof in a bundle: make it, and check it offline
"""
