"""Variables, and what a person types, asked for by the program itself."""

import builtins
import io
import os
import sys

from playhead_effects.callers import IGNORED, PROGRAM, class_of, is_of_hook, is_program, outside
from playhead_effects.values import encode

_getframe = sys._getframe
_INSIDE = frozenset(("os", "_collections_abc", "collections.abc", "collections"))


def install(effects, patch_late, *, has_streams=True):
    """Replace reads of variables and of the terminal; `has_streams`: whether the standard streams are the program's own."""
    own = frozenset(os.environ.get("PLAYHEAD_EFFECTS_OWN", "").split(","))
    _replace_variables(effects, own)
    real_input = builtins.input

    def ask(prompt="", /):
        frame = _getframe(1)
        if not is_program(frame):
            return real_input(prompt)
        if effects.is_replay and prompt:
            sys.stdout.write(str(prompt))
            sys.stdout.flush()
            return effects.value("input", frame, real_input, {"prompt": str(prompt)})
        return effects.value("input", frame, lambda: real_input(prompt), {"prompt": str(prompt)} if prompt else None)

    builtins.input = ask
    patch_late("getpass", lambda module: _replace_password(module, effects))
    if has_streams:
        _replace_stdin(effects)
        _watch_output(effects)


def _replace_variables(effects, own):
    kind = type(os.environ)
    real = kind.__getitem__

    def get(self, key):
        frame, found = outside(_getframe(1), _INSIDE)
        if (
            found != PROGRAM
            or self is not os.environ
            or not isinstance(key, str)
            or key in own
            or key.startswith(("PLAYHEAD_", "PYTEST_"))
        ):
            return real(self, key)

        def read():
            try:
                return real(self, key)
            except KeyError:
                return None

        found = effects.value("os.environ", frame, read, {"name": key})
        if found is None:
            raise KeyError(key)
        return found

    kind.__getitem__ = get


def _replace_password(module, effects):
    real = module.getpass

    def ask(prompt="Password: ", stream=None, **options):
        frame = _getframe(1)
        if not is_program(frame):
            return real(prompt, stream, **options)
        # Never recorded: in a replay it is asked for again only if something needs it.
        return effects.value(
            "getpass", frame, lambda: real(prompt, stream, **options), {"prompt": str(prompt)}, "", _hide
        )

    module.getpass = ask


def _hide(_secret):
    return encode("PLAYHEAD_TYPED_SECRET")


def _replace_stdin(effects):
    stream = sys.stdin
    if stream is None or not isinstance(stream, io.TextIOWrapper):
        return
    wrapper_arguments = (stream.buffer, stream.encoding, stream.errors, None, stream.line_buffering)

    class Input(io.TextIOWrapper):
        """The standard input, whose iteration can be replaced: that of a built-in type cannot."""

        name, mode = "<stdin>", "r"

        def readline(self, *args):
            return _observed_read("sys.stdin.readline", _getframe(1), super().readline, args, effects)

        def read(self, *args):
            return _observed_read("sys.stdin.read", _getframe(1), super().read, args, effects)

        def __next__(self):
            line = _observed_read("sys.stdin.readline", _getframe(1), super().readline, (), effects)
            if not line:
                raise StopIteration
            return line

        def readlines(self, hint=-1):
            frame, read = _getframe(1), super().readline
            lines, size = [], 0
            while (hint is None or hint <= 0 or size < hint) and (
                line := _observed_read("sys.stdin.readline", frame, read, (), effects)
            ):
                lines.append(line)
                size += len(line)
            return lines

    # The old one would close the file when it is deleted: `sys.__stdin__` is it, too.
    sys.stdin = Input(*wrapper_arguments)


def _observed_read(kind, frame, real, args, effects):
    asking = _reading_frame(frame)
    if asking is None:
        return real(*args)
    return effects.value(kind, asking, lambda: real(*args), {"args": [encode(one) for one in args]} if args else None)


def _reading_frame(frame):
    """Return the frame of the program for which a module of the standard library reads, such as `json`; None if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        found = class_of(file)
        if found != IGNORED:
            return frame if found == PROGRAM else None
        if is_of_hook(file):
            return None  # `input`, which is an effect itself
        frame = frame.f_back
    return None


def _watch_output(effects):
    """Digest what is written to the standard output, so that a replay which writes something else says so."""
    stream = sys.stdout
    if stream is None:
        return
    real = stream.write

    def write(text, /):
        if isinstance(text, str):
            effects.note_output(text)
        return real(text)

    stream.write = write
