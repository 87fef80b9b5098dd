"""Connect to the worker, and install the hooks for as long as the process lives."""

import atexit
import json
import os
import sys
import time

from playhead_effects import channel as channels
from playhead_effects import (
    clocks,
    environment,
    files,
    listings,
    order_of_tasks,
    order_of_threads,
    processes,
    randomness,
    tasks,
)
from playhead_effects.forking import Forking
from playhead_effects.late import patch_late
from playhead_effects.recording import Recording
from playhead_effects.replaying import Replaying

PINNED = (
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LC_NUMERIC",
    "LC_TIME",
    "LC_COLLATE",
    "LC_MONETARY",
    "PYTHONHASHSEED",
)
"""Variables that decide about time zone, locale and hashing: recorded at the start, and set again for a replay."""

_REAL_TIME_NS = time.time_ns


class Effects:
    """The effects of this process."""

    def __init__(self, label):
        self.label = label
        self._children = 0
        self.waiting_label = None
        self.state = state = connect(label)
        if state is not None:
            self.is_replay = state.is_replay
            self.clock, self.value, self.note_output = state.clock, state.value, state.note_output

    def begin_child(self):
        """Have a connection of its own in a forked child, which goes on with a copy of this."""
        self.state.leave()
        self.label, self._children = self._forked, 0
        try:
            again = connect(self.label)
        except (OSError, ValueError):
            again = None
        if again is not None and again.is_replay == self.is_replay:
            self.state.__dict__.update(again.__dict__)

    def finish_before_exit(self):
        """Send what is left of a process that ends without `atexit`."""
        self.state.finish()

    def prepare_child(self):
        """Choose the label of a child that is about to be forked."""
        self._forked = self.next_child()

    def next_child(self):
        """Return the label of the next process that this one starts."""
        self._children += 1
        return f"{self.label}.{self._children - 1}"


def connect(label):
    """Return what observes or answers the effects of this process; None if the worker takes none."""
    path = os.environ["PLAYHEAD_EFFECTS"]
    hello = {
        "run": os.environ.get("PLAYHEAD_EFFECTS_RUN", ""),
        "token": os.environ.get("PLAYHEAD_EFFECTS_TOKEN", ""),
        "process": label,
    }
    channel = channels.Channel(path, hello)
    mode = channel.answer.get("mode")
    pinned = {name: os.environ[name] for name in PINNED if name in os.environ}
    batches = [json.loads(channel.receive()) for _ in range(channel.answer.get("frames", 0))]
    channel.end_start()
    if mode == "record":
        return Recording(channel, pinned, _REAL_TIME_NS())
    if mode in ("replay", "fork"):
        parts = channel, batches, channel.answer["processes"], channel.answer.get("rules", ())
        return Replaying(*parts) if mode == "replay" else Forking(*parts, pinned, _REAL_TIME_NS())
    channel.close()
    if why := channel.answer.get("why"):
        sys.stderr.write(f"playhead: effects are not recorded: {why}\n")
    return None


def start():
    """Start the hook of this process."""
    label = os.environ.get("PLAYHEAD_EFFECTS_PROCESS", "0")
    effects = Effects(label)
    if effects.state is None:
        return
    # What a program starts without this hook knowing of it has a name of its own.
    os.environ["PLAYHEAD_EFFECTS_PROCESS"] = label + ".x"
    # First, so that it runs last.
    atexit.register(lambda: effects.state.finish())
    install_hooks(effects)


def install_hooks(effects, *, has_streams=True):
    """Replace what gives a program its effects; `has_streams`: whether the standard streams are the program's own."""
    os.register_at_fork(before=effects.prepare_child, after_in_child=effects.begin_child)
    _replace_exit(effects)
    tasks.install(patch_late)
    order_of_threads.install(effects, patch_late)
    order_of_tasks.install(effects, patch_late)
    clocks.install(effects)
    randomness.install(effects, patch_late)
    environment.install(effects, patch_late, has_streams=has_streams)
    files.install(effects)
    listings.install(effects, patch_late)
    processes.install(effects, patch_late)


def _replace_exit(effects):
    """Replace `os._exit`, with which forked children end, those of `multiprocessing` too: `atexit` is not for them."""
    real_exit = os._exit

    def exit_at_once(status):
        effects.finish_before_exit()
        real_exit(status)

    os._exit = exit_at_once
