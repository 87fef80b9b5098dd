"""Results that a user gives in place of recorded ones: another time, file, variable, or answer of a person."""

import os
import random

from playhead_effects import tasks
from playhead_effects.values import encode

_Random = random.Random


class Overrides:
    """The overrides of one replay in this process."""

    def __init__(self, rules, began_ns):
        self._began_ns = began_ns
        self._by_kind = {}
        self._asked = {}
        self._generators = {}
        self._clocks = {}
        self.answered = {}
        """How often each was used, by its number."""

        self.contents = {}
        """Contents of files, by numbers that no recorded content has."""

        for rule in rules:
            for kind in rule["kinds"]:
                self._by_kind.setdefault(kind, []).append(rule)
            if rule["action"] == "content":
                self.contents[-1 - rule["number"]] = {"results": [rule["value"]]}

    def find(self, kind, args):
        """Return the rule for what is asked for; None if it is not overridden."""
        found = None
        for rule in self._by_kind.get(kind, ()):
            if not _is_about(rule, args):
                continue
            number = rule["number"]
            self._asked[number] = self._asked.get(number, 0) + 1
            if rule["nth"] in (None, self._asked[number]):
                found = rule
        if found is not None:
            self.answered[str(found["number"])] = self.answered.get(str(found["number"]), 0) + 1
        return found

    def result(self, rule, kind, args, recorded):
        """Return the result as JSON. `recorded` is what the recording has here, if anything."""
        action, value = rule["action"], rule["value"]
        if action == "content":
            return -1 - rule["number"]
        if action == "line":
            return value if kind == "input" else value + "\n"
        if action == "process":
            return value[0] if kind == "os.system" else [value[0], *_outputs(value[1:], recorded)]
        if action == "bytes":
            data, size = bytes.fromhex(value), args["size"]
            return encode((data * (size // len(data) + 1))[:size])
        if action == "seed":
            return self._draw(value, kind, args)
        return value

    def _draw(self, seed, kind, args):
        """Draw from a generator of the running task, so that the order of tasks does not matter."""
        if kind.endswith(".seed"):
            return seed
        task = tasks.current()
        if task not in self._generators:
            self._generators[task] = _Random(f"{seed} {task}")
        generator = self._generators[task]
        return encode(
            generator.random() if kind == "random.random" else generator.getrandbits((args or {}).get("k", 64))
        )

    def move_clock(self, kind, recorded_ns, now_ns):
        """Return the time that a clock shows: moved by as much as its first reading, and going on from there."""
        rules = self._by_kind.get(kind)
        if not rules:
            return None
        rule = rules[-1]
        number = str(rule["number"])
        self.answered[number] = self.answered.get(number, 0) + 1
        if recorded_ns is not None and rule["moved_by"] is not None:
            time_ns = recorded_ns + int(rule["moved_by"])
        else:
            # Not recorded: the clock goes on from where it was.
            last, then = self._clocks.get(number, (int(rule["value"]), self._began_ns.get(kind, now_ns)))
            time_ns = last + now_ns - then
        self._clocks[number] = time_ns, now_ns
        return time_ns


def _is_about(rule, args):
    subject = rule["of"]
    if subject is None:
        return True
    value = (args or {}).get(rule["argument"])
    if isinstance(value, list):
        value = " ".join(value)
    if value is None:
        return False
    if rule["argument"] == "path":
        return os.path.abspath(value) == os.path.abspath(subject)
    return value.strip() == subject.strip()


def _outputs(texts, recorded):
    """Return what a program wrote, as text or bytes as it was recorded; what was not captured then is not now."""
    before = recorded[1:] if isinstance(recorded, list) else [{"$bytes": ""}, None]
    for text, old in zip(texts, before, strict=False):
        if old is None:
            yield None
        elif isinstance(old, dict):
            yield encode((text or "").encode())
        else:
            yield text or ""
