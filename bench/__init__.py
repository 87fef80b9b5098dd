"""What Playhead costs, beside what others cost: `python -m bench.engines`, `.rivals`, `.ingest`, `.replay`, `.keys`, `.search`, `.events`, `.starts`, `.suite`.

All of it runs side by side in one run, in turns; ratios are the result, times of a single run are not.
"""
