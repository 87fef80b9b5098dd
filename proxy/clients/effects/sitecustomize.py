"""Loaded by each Python interpreter of a command that runs with effects: start the hook, then the sitecustomize that this one hides."""

import os
import sys


def _load_hidden():
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# Any interpreter may get here: the oldest ones must be able to read this file.
if os.environ.get("PLAYHEAD_EFFECTS"):
    if sys.version_info < (3, 10):  # noqa: UP036 - see above
        sys.stderr.write("playhead: effects need Python 3.10 or later: those of this process are not recorded\n")
    else:
        try:
            from playhead_effects.start import start

            start()
        except Exception as error:  # noqa: BLE001 - the program has to run all the same
            sys.stderr.write("playhead: effects are neither recorded nor replayed in this process: %r\n" % (error,))  # noqa: UP031
if sys.version_info >= (3, 5):  # noqa: UP036
    _load_hidden()
