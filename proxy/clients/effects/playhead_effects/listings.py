"""The names in a directory and their order: `os.listdir` and `os.scandir`, by which `pathlib`, `glob` and `os.walk` read directories."""

import io
import os
import sys

from playhead_effects.callers import INSIDE_FILES, PROGRAM, is_of_interpreter, outside, without_places

_getframe = sys._getframe


def install(effects, patch_late):
    """Replace listing directories."""
    real_listdir, real_scandir = os.listdir, os.scandir

    def is_left_alone(frame, found, path):
        return frame is None or found != PROGRAM or isinstance(path, int) or is_of_interpreter(os.fsdecode(path))

    def listdir(path="."):
        frame, found = outside(_getframe(1), INSIDE_FILES)
        if is_left_alone(frame, found, path or "."):
            return real_listdir(path)
        return effects.value("os.listdir", frame, lambda: real_listdir(path), _about(path))

    def scandir(path="."):
        frame, found = outside(_getframe(1), INSIDE_FILES)
        if is_left_alone(frame, found, path or "."):
            return real_scandir(path)
        entries = []

        def read():
            with real_scandir(path) as opened:
                entries.extend(opened)
            return [[one.name, _kinds(one)] for one in entries]

        recorded_entries = effects.value("os.scandir", frame, read, _about(path))
        return _Listing(entries or [_RecordedEntry(path or ".", one) for one in recorded_entries])

    os.listdir, os.scandir = listdir, scandir
    patch_late("glob", _replace_in_classes)
    patch_late("pathlib", _replace_in_classes)


def _about(path):
    return {"path": without_places(os.fsdecode(path or "."))}


def _replace_in_classes(module):
    """Replace what a class took when it was made. As the member of a class a function would be a method, which these are not."""
    functions = {"listdir": os.listdir, "scandir": os.scandir, "open": io.open}
    for name in ("_NormalAccessor", "_StringGlobber"):
        members = vars(getattr(module, name, object))
        for member, function in functions.items():
            if member in members and not (member == "open" and name != "_NormalAccessor"):
                setattr(getattr(module, name), member, staticmethod(function))


def _kinds(entry):
    """Return what an entry is: a directory, a file, a link, as letters."""
    kinds = (("d", entry.is_dir), ("f", entry.is_file), ("l", entry.is_symlink))
    return "".join(letter for letter, is_kind in kinds if _is_true(is_kind))


def _is_true(is_kind):
    try:
        return is_kind()
    except OSError:
        return False


class _Listing:
    """What `os.scandir` returns."""

    def __init__(self, entries):
        self._entries = iter(entries)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    def close(self):
        """Return no more entries."""
        self._entries = iter(())


class _RecordedEntry(os.PathLike):
    """An entry of a directory as it was recorded, or as a user gave it. What is not recorded of it is read when it is asked for."""

    def __init__(self, directory, entry):
        self.name, self._letters = (entry, None) if isinstance(entry, (str, bytes)) else entry
        self.path = os.path.join(directory, self.name)

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"<DirEntry {self.name!r}>"

    def _is(self, letter, read, follow_symlinks):
        if self._letters is None:
            return read(self.path)
        return letter in self._letters and (follow_symlinks or "l" not in self._letters)

    def is_dir(self, *, follow_symlinks=True):
        """Whether it is a directory."""
        return self._is("d", os.path.isdir, follow_symlinks)

    def is_file(self, *, follow_symlinks=True):
        """Whether it is a file. What was never recorded is one, unless it is something else now."""
        return self._is("f", lambda path: not os.path.isdir(path), follow_symlinks)

    def is_symlink(self):
        """Whether it is a symbolic link."""
        return self._is("l", os.path.islink, True)

    def is_junction(self):
        """Whether it is a junction, which only Windows has."""
        return False

    def stat(self, *, follow_symlinks=True):
        """Return its present status."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self):
        """Return its present number."""
        return os.lstat(self.path).st_ino
