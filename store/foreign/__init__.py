"""Recordings that other programs made, and files for other programs: VCR cassettes, HAR, llm-fixture-replay.

A reader turns a file into interactions (`found`), one by one; `adopt` takes them through redaction and into a bundle, as
if they had been recorded here. Nothing in a file is believed or executed, and one bad interaction costs only itself.
"""
