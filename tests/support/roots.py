"""One root in place of all that the system and certifi trust, where a test makes many CAs.

To write a hundred and fifty of them beside each new CA takes a tenth of a second of CPU, and each TLS context of a client that
reads them a third of that. `tests/proxy/trust` and interpreters that are started in earnest have all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("root.pem")
"""A real one: ISRG Root X2, valid until 2040."""


_real: list[Callable[[], Iterator[Path]]] = []
"""The real functions, once for each block that is entered: tests enter and leave several in any order."""


def use_one_root() -> None:
    """Create all TLS contexts of this process and its forks with one root."""
    _names()["_root_files"] = lambda: iter((FILE,))


@contextmanager
def one_root() -> Iterator[None]:
    """Create TLS contexts with one root inside the block."""
    _real.append(_real[0] if _real else _names()["_root_files"])
    use_one_root()
    try:
        yield
    finally:
        found = _real.pop()
        if not _real:
            _names()["_root_files"] = found


def _names() -> dict[str, Any]:
    return vars(import_module("proxy.trust.ca"))
