"""Mounts in a process's own mount namespace. Standard library only (`proxy/capture/namespace/inside.py`)."""

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def keep_mounts_private() -> None:
    """Keep mounts of this namespace from the host. Later mounts of the host still appear here. Raises OSError."""
    _mount("none", "/", _MS_REC | _MS_SLAVE)


def bind_all(binds: "Iterable[tuple[str, str]]") -> None:
    """Bind each source file or directory over its target. Raises OSError with the target's name."""
    for source, target in binds:
        _mount(source, target, _MS_BIND | _MS_REC)


def _mount(source: str, target: str, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
