"""Variables, and what a person types, asked for by the program itself."""

import builtins
import os
import sys

from playhead_effects.callers import PROGRAM, is_program, outside
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
    if stream is None:
        return
    for name in ("readline", "read"):
        real = getattr(stream, name)
        setattr(stream, name, _observed_read("sys.stdin." + name, real, effects))


def _observed_read(kind, real, effects):
    def read(*args):
        frame = _getframe(1)
        if not is_program(frame):
            return real(*args)
        return effects.value(
            kind, frame, lambda: real(*args), {"args": [encode(one) for one in args]} if args else None
        )

    return read


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
