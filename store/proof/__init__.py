"""Prove that the record was not altered after it was stored (docs/proof.md).

commitments   the salts of commitments, and how one is forgotten
"""
