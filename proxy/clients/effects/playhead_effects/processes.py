"""Programs that the program runs to their end: what they answered.

A program that itself had this hook ran with effects of its own, and may have made calls; it runs again in a replay.
"""

import os
import sys

from playhead_effects.callers import PROGRAM, outside, without_places
from playhead_effects.values import Unwritable, decode, encode

_getframe = sys._getframe
_INSIDE = frozenset(("subprocess", __name__))


def install(effects, patch_late):
    """Replace `subprocess.run`, with all that is built on it, `os.system`, and how `multiprocessing` starts programs."""
    patch_late("subprocess", lambda module: _replace_run(module, effects))
    patch_late("multiprocessing.util", lambda module: _replace_spawn(module, effects))
    real_system = os.system

    def system(command):
        frame, found = outside(_getframe(1), _INSIDE)
        if found != PROGRAM:
            return real_system(command)
        label = effects.next_child()
        with _Label(label):
            return _answer(
                effects,
                "os.system",
                frame,
                lambda: real_system(command),
                {"command": without_places(os.fsdecode(command))},
                label,
            )

    os.system = system


class _Label:
    """Gives processes that start meanwhile a label."""

    def __init__(self, label):
        self._label = label

    def __enter__(self):
        self._before = os.environ.get("PLAYHEAD_EFFECTS_PROCESS")
        os.environ["PLAYHEAD_EFFECTS_PROCESS"] = self._label

    def __exit__(self, *_):
        os.environ["PLAYHEAD_EFFECTS_PROCESS"] = self._before or ""


def _answer(effects, kind, frame, live, args, label, to_json=encode, from_json=decode):
    """Answer from the recording, unless the process had effects of its own: then it runs again."""
    if effects.is_replay and effects.state.answers_process(label):
        effects.value(kind, frame, lambda: None, args, "", lambda value: value, lambda value: value)
        return live()
    return effects.value(kind, frame, live, args, "", to_json, from_json)


def _replace_run(module, effects):
    real_run = module.run
    start = module.Popen.__init__

    def start_labelled(self, *args, **options):
        # Given by name everywhere but in code of the eighties: `env` is the eleventh parameter.
        environment = options.get("env")
        if environment is not None and len(args) < 11:
            options["env"] = {
                **{name: os.environ[name] for name in _HOOK if name in os.environ},
                **environment,
                "PLAYHEAD_EFFECTS_PROCESS": _waiting_label(effects),
            }
            start(self, *args, **options)
        else:
            with _Label(_waiting_label(effects)):
                start(self, *args, **options)

    def run(*popenargs, **options):
        frame, found = outside(_getframe(1), _INSIDE)
        if found != PROGRAM:
            return real_run(*popenargs, **options)
        label = effects.waiting_label = effects.next_child()
        command = popenargs[0] if popenargs else options.get("args")
        check = options.pop("check", False)

        def live():
            return real_run(*popenargs, **options)

        def as_json(done):
            return [done.returncode, encode(done.stdout), encode(done.stderr)]

        def as_result(value):
            return module.CompletedProcess(command, *decode(value))

        try:
            args = {"command": _description(command)}
            done = _answer(effects, "subprocess.run", frame, live, args, label, as_json, as_result)
        finally:
            effects.waiting_label = None
        if check:
            done.check_returncode()
        return done

    def call(*popenargs, timeout=None, **options):
        return run(*popenargs, timeout=timeout, **options).returncode

    def check_call(*popenargs, **options):
        run(*popenargs, check=True, **options)
        return 0

    def check_output(*popenargs, timeout=None, **options):
        if "input" in options and options["input"] is None:
            options["input"] = (
                "" if any(options.get(name) for name in ("text", "universal_newlines", "encoding", "errors")) else b""
            )
        return run(*popenargs, stdout=module.PIPE, timeout=timeout, check=True, **options).stdout

    module.Popen.__init__ = start_labelled
    module.run, module.call, module.check_call, module.check_output = run, call, check_call, check_output


def _replace_spawn(module, effects):
    """Give each process of the start methods `spawn` and `forkserver`, and what watches over them, a label of its own."""
    spawn = module.spawnv_passfds

    def spawn_labelled(path, args, passfds):
        with _Label(effects.next_child()):
            return spawn(path, args, passfds)

    module.spawnv_passfds = spawn_labelled


_HOOK = (
    "PYTHONPATH",
    "PLAYHEAD_EFFECTS",
    "PLAYHEAD_EFFECTS_RUN",
    "PLAYHEAD_EFFECTS_TOKEN",
    "PLAYHEAD_EFFECTS_PACKAGES",
    "PLAYHEAD_EFFECTS_PLACES",
    "PLAYHEAD_EFFECTS_APART",
)


def _waiting_label(effects):
    """Return the label of the process that `run` is about to start, or of another one."""
    label, effects.waiting_label = effects.waiting_label, None
    return label or effects.next_child()


def _description(command):
    try:
        if isinstance(command, (list, tuple)):
            return [without_places(os.fsdecode(one)) for one in command]
        return without_places(os.fsdecode(command))
    except TypeError:
        raise Unwritable from None
