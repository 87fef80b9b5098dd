"""System calls that fail on command, for files below a directory."""

import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CALLS: Final = {
    "open": (os, "open"),
    "file": (io, "open"),
    "pread": (os, "pread"),
    "fstat": (os, "fstat"),
    "stat": (os, "stat"),
    "listdir": (os, "listdir"),
    "scandir": (os, "scandir"),
    "flock": (fcntl, "flock"),
    "fsync": (os, "fsync"),
    "writev": (os, "writev"),
    "truncate": (os, "truncate"),
    "close": (os, "close"),
    "mkdir": (os, "mkdir"),
    "rename": (os, "rename"),
    "unlink": (os, "unlink"),
    "rmdir": (os, "rmdir"),
}
"""What is called, by a short name. `write` is not among them: what `io.open` gives writes by itself."""


class Refusing:
    """A file of `io.open` whose writes fail."""

    def __init__(self, file: Any, error: OSError) -> None:
        self._file = file
        self._error = error

    def write(self, _data: bytes) -> int:
        raise self._error

    def __enter__(self) -> "Refusing":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FailingCalls:
    """Fails one kind of call, from one call of it on, for as many times as is said."""

    def __init__(self, call: str, error: int, directory: Path, *, first: int, times: int) -> None:
        self.call = call
        self.injected = 0
        self.calls = 0
        self._error = OSError(error, os.strerror(error))
        self._directory = os.fspath(directory)
        self._failing = range(first, first + times)

    @contextmanager
    def injected_into(self, monkeypatch: pytest.MonkeyPatch) -> Iterator["FailingCalls"]:
        with monkeypatch.context() as patch:
            module, name = CALLS["file" if self.call == "write" else self.call]
            real = getattr(module, name)
            patch.setattr(module, name, self._opening(real) if self.call == "write" else self._failing_call(real))
            yield self

    def _failing_call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._is_due(args, named):
                if self.call == "close":
                    real(*args, **named)  # the handle is gone all the same (close(2))
                raise OSError(self._error.errno, self._error.strerror)
            return real(*args, **named)

        return call

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            opened = real(file, mode, *args, **named)
            is_written = "w" in mode or "a" in mode
            return Refusing(opened, self._error) if is_written and self._is_due((file,), {}) else opened

        return call

    def _is_due(self, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if not self._place(args[0] if args else "", named.get("dir_fd")).startswith(self._directory):
            return False
        self.calls += 1
        if self.calls not in self._failing:
            return False
        self.injected += 1
        return True

    def _place(self, what: Any, directory: int | None) -> str:
        if isinstance(what, int):
            return _path_of_handle(what)
        name = os.fsdecode(what)
        return name if directory is None else f"{_path_of_handle(directory)}/{name}"


def _path_of_handle(handle: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""
