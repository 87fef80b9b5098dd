"""Install the hooks by which each request names the current run, and threads and programs inherit it."""

from __future__ import annotations

import sys
import threading
import warnings
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_lock = threading.RLock()
_is_installed = False


def is_installed() -> bool:
    """Whether this process has the hooks."""
    return _is_installed


def install_hooks() -> None:
    """Install the hooks once per process. Libraries that are imported later are hooked then."""
    global _is_installed
    if is_installed():
        return
    with _lock:
        if is_installed():
            return
        # Imported here because they need `binding`, which needs this module.
        from playhead import http_hooks, process_hooks, thread_hooks

        thread_hooks.install()
        process_hooks.install()
        _hook_modules(http_hooks.HOOKS)
        _is_installed = True


def _hook_modules(hooks: dict[str, Callable[[ModuleType], None]]) -> None:
    waiting = {}
    for name, hook in hooks.items():
        if name in sys.modules:
            _hook(sys.modules[name], hook)
        else:
            waiting[name] = hook
    sys.meta_path.insert(0, _Finder(waiting))


def _hook(module: ModuleType, hook: Callable[[ModuleType], None]) -> None:
    try:
        hook(module)
    except AttributeError as error:
        warnings.warn(
            f"playhead cannot bind requests of {module.__name__} to a run: {error}. This version of the library is unknown,"
            " so its requests belong to the run of the process. Update pytest-playhead, or give each run its own proxy URL:"
            " playhead.proxy().",
            RuntimeWarning,
            stacklevel=2,
        )


class _Finder(MetaPathFinder):
    """Find modules as usual, and hook some of them after import."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        hook = self._waiting.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            if finder is self or (find := getattr(finder, "find_spec", None)) is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, hook)
                return spec
        return None


class _Loader(Loader):
    """Load a module with its own loader, then hook it."""

    def __init__(self, loader: Any, hook: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # Resources, source lines and reloads ask the module for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _hook(module, self._hook)
