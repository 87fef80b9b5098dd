"""Patch modules when they are imported, without importing them earlier than the program does."""

import sys

_waiting = {}


def patch_late(module, patch):
    """Call `patch` with a module once it is imported; now, if it is."""
    if module in sys.modules:
        patch(sys.modules[module])
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(module, []).append(patch)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in _waiting:
            return None
        patches = _waiting.pop(name)
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
                run = spec.loader.exec_module

                def run_and_patch(module, run=run):
                    run(module)
                    for patch in patches:
                        patch(module)

                try:
                    spec.loader.exec_module = run_and_patch
                except AttributeError:
                    pass  # a loader that cannot be changed, such as that of a frozen module
                return spec
        return None
