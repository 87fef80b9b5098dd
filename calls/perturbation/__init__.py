"""Vary what an agent received, by a seed, so that it stays what its tools could have answered.

draws        random draws that are the same for the same seed, everywhere
shape        the JSON shape of a tool's answers, learned from them
schema       the shape that a JSON Schema declares
edits        one change of an answer, and what it does to the documents of a run
texts        texts and ids to put in place of others
proposals    the edits that a run allows
variations   choose the edits of each variation
entries      variations as overrides (docs/forks.md)
reduction    find the smallest part of a variation that still breaks
"""
