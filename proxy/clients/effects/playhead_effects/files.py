"""Files that the program reads. What is of the interpreter or of packages is left alone."""

import builtins
import io
import os
import sys

from playhead_effects.callers import INSIDE_FILES, PROGRAM, is_of_interpreter, outside, without_places
from playhead_effects.recording import MOST_CONTENT
from playhead_effects.values import Unwritable, decode

_getframe = sys._getframe


def install(effects):
    """Replace opening files for reading."""
    real_open = io.open

    def open_observed(
        file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None
    ):
        options = (buffering, encoding, errors, newline, closefd, opener)
        if mode not in ("r", "rb", "rt") or opener is not None or isinstance(file, int):
            return real_open(file, mode, *options)
        frame, found = outside(_getframe(1), INSIDE_FILES)
        try:
            path = os.fsdecode(file)
        except TypeError:
            return real_open(file, mode, *options)
        if found != PROGRAM or is_of_interpreter(path):
            return real_open(file, mode, *options)
        opened = _observed_open(effects, frame, path)
        return real_open(path, mode, *options) if opened is None else _as_file(real_open, opened, path, mode, options)

    def _observed_open(effects, frame, path):
        if effects.is_replay and not effects.state.is_fork:
            return _recorded_content(effects, frame, path)
        if effects.is_replay:
            return _content_of_fork(effects, frame, path, real_open)
        _record_content(effects.state, frame, path, real_open)
        return None

    builtins.open = io.open = open_observed


def _record_content(record, frame, path, real_open):
    """Record what a file has, or why it cannot be read; opening it then shows the same to the program."""

    def read():
        if not os.path.isfile(path):
            with real_open(path, "rb"):
                raise Unwritable
        with real_open(path, "rb") as file:
            return file.read(MOST_CONTENT + 1)

    def note(data):
        number = record.content(data)
        return "too large" if number is None else number

    try:
        record.value("open", frame, read, {"path": without_places(path)}, to_json=note)
    except (OSError, Unwritable):
        pass


def _content_of_fork(effects, frame, path, real_open):
    """Return the recorded content, if there is one, and record what the program gets."""
    record = effects.state.recording
    try:
        data = _recorded_content(effects, frame, path)
    except OSError as error:
        record.note_error("open", frame, {"path": without_places(path)}, error)
        raise
    if data is None:
        _record_content(record, frame, path, real_open)
    else:
        record.value("open", frame, lambda: data, {"path": without_places(path)}, to_json=record.content)
    return data


def _recorded_content(effects, frame, path):
    """Return the recorded content; None if there is none, and the file itself has to be opened."""
    number = effects.value("open", frame, lambda: None, {"path": without_places(path)}, from_json=lambda number: number)
    content = effects.state.contents.get(number) if isinstance(number, int) else None
    if content is None:
        return None
    if content.get("redactions") and os.path.isfile(path):
        return None
    value = decode(content["results"][0])
    return value if isinstance(value, bytes) else value.encode()


def _as_file(real_open, data, path, mode, options):
    """Return a file object with this content, under the name of the file."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("playhead")
    else:
        import tempfile

        handle, name = tempfile.mkstemp()
        os.unlink(name)
    with real_open(handle, "wb", closefd=False) as target:
        target.write(data)
    os.lseek(handle, 0, os.SEEK_SET)
    buffering, encoding, errors, newline, _, _ = options
    found = real_open(handle, mode, buffering, encoding, errors, newline)
    raw = getattr(getattr(found, "buffer", found), "raw", found)
    raw.name = path
    return found
