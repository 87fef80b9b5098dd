"""Answer effects from a recording, and record what the program got: the effects of a fork."""

from playhead_effects.recording import Recording
from playhead_effects.replaying import Replaying
from playhead_effects.values import encode

_RECORDED_LATER = ("open", "asyncio.wait", "asyncio.as_completed", "futures.wait", "futures.as_completed")
"""Kinds that are recorded where it is known what the program got."""


class Forking(Replaying):
    """Answers the effects of this process as long as the recording has them, and records all of them again."""

    is_fork = True

    def __init__(self, channel, batches, processes, rules, pinned, now_ns):
        super().__init__(channel, batches, processes, rules)
        self.recording = Recording(channel, pinned, now_ns)

    def clock(self, kind, frame, ns, by=""):
        """Return the recorded reading of a clock, and record it."""
        return self.recording.clock(kind, frame, super().clock(kind, frame, ns, by), by)

    def value(self, kind, frame, live, args=None, by="", to_json=encode, from_json=None):
        """Return or raise what was recorded, or what `live` does, and record it."""
        more = {} if from_json is None else {"from_json": from_json}

        def get():
            return Replaying.value(self, kind, frame, live, args, by, to_json, **more)

        return get() if kind in _RECORDED_LATER else self.recording.value(kind, frame, get, args, by, to_json)

    def content(self, data):
        """Record a content, and return its number."""
        return self.recording.content(data)

    def note_output(self, text):
        """Note what the program writes to its standard output."""
        super().note_output(text)
        self.recording.note_output(text)

    def leave(self):
        """Stop in a forked child: the connection is the parent's."""
        self.recording.leave()
        super().leave()

    def finish_test(self):
        """Send what is left of a test, and say how it ended."""
        self.recording.send_last_of_test()
        super().finish_test()

    def finish(self):
        """Send what is left, and say how it ended."""
        self.recording.send_last()
        super().finish()
