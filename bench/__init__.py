"""Benchmarks of Playhead, most of them beside other tools or another checkout.

Start with `python -m bench.engines`; docs/performance.md lists all scripts. What is compared is measured in one run and
in turns: compare ratios, since the times of a single run depend on the machine.
"""
