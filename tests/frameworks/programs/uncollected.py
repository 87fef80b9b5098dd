"""Run another program of this folder without garbage collection, which would take a third of the time of its imports: `uncollected.py PROGRAM`."""

import gc
import runpy
import sys

gc.disable()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
