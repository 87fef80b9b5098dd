"""What Playhead costs, beside what its engine costs alone: `python -m bench.recording`, `.ingest`, `.replay`, `.memory`.

Peer and product run side by side in one run, in alternating pairs; ratios are the result, times of a single run are not.
"""
