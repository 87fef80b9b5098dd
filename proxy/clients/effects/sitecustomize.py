"""Loaded by each Python interpreter of a command that runs with effects: start the hook, then the sitecustomize that this one hides."""

import importlib.machinery
import importlib.util
import os
import sys


def _load_hidden():
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("PLAYHEAD_EFFECTS"):
    try:
        from playhead_effects.start import start

        start()
    except Exception as error:  # noqa: BLE001 - the program has to run all the same
        sys.stderr.write(f"playhead: effects are neither recorded nor replayed in this process: {error!r}\n")
_load_hidden()
