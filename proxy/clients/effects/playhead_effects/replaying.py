"""Answer effects from a recording, by task, kind and arguments, in the order in which they were recorded."""

import hashlib
import time
from collections import deque
from threading import RLock

from playhead_effects import tasks
from playhead_effects.callers import place
from playhead_effects.overriding import Overrides
from playhead_effects.values import decode, decode_error, encode, key_of

MOST_MISSES = 20
SAY_AFTER = 200_000_000
"""Nanoseconds after which the worker is told how it goes."""

NOT_SERVED = frozenset(("process.start", "process.exit", "content", "stdout"))

_monotonic_ns, _time_ns, _perf_counter_ns = time.monotonic_ns, time.time_ns, time.perf_counter_ns


class Replaying:
    """Answers the effects of this process."""

    is_replay = True
    is_fork = False

    def __init__(self, channel, batches, processes, rules=()):
        self._channel = channel
        self._lock = RLock()
        self.processes = frozenset(processes)
        self._clocks = {}
        self._values = {}
        self._left = {}
        """How many effects of each key were not asked for yet, and where the first of them was."""
        began = {"time.time": _time_ns(), "time.monotonic": _monotonic_ns(), "time.perf_counter": _perf_counter_ns()}
        began["datetime.now"] = began["time.time"]
        self._overrides = Overrides(rules, began) if rules else None
        self.contents = dict(self._overrides.contents) if rules else {}
        self._recorded_output = None
        self._output = hashlib.sha256()
        self._said = 0
        self._report = {
            "served": 0,
            "missed": 0,
            "unused": 0,
            "library": 0,
            "misses": [],
            "output": "",
            "ended": False,
            "overridden": {},
        }
        for items in batches:
            for item in items:
                self._add(item)
        self._total = sum(count for count, _ in self._left.values())
        self._say()

    def _add(self, item):
        kind = item["kind"]
        if kind == "content":
            self.contents[item["content"]] = item
        elif kind == "stdout":
            self._recorded_output = item["digest"]
        if kind in NOT_SERVED:
            return
        key = (kind, item.get("task", ""), key_of(item.get("args")))
        if "first" in item:
            count = 1 + len(item.get("ns", ()))
            self._clocks.setdefault(key, deque()).append(item)
        else:
            counts = item.get("counts") or [1] * len(item.get("results", ())) or [1]
            count = sum(counts)
            queue = self._values.setdefault(key, deque())
            if "error" in item:
                queue.append([item["error"], 1, True, item])
            for value, times in zip(item.get("results", ()), counts, strict=False):
                queue.append([value, times, False, item])
        remaining, at = self._left.get(key, (0, item.get("at", "")))
        self._left[key] = (remaining + count, at)

    def clock(self, kind, frame, ns, by=""):
        """Return the recorded reading of a clock."""
        key = (kind, tasks.current(), "")
        with self._lock:
            queue = self._clocks.get(key)
            if not queue:
                moved = self._move_clock(kind, None, ns, by)
                if moved is None:
                    self._miss(key, frame, by)
                return ns if moved is None else moved
            item = queue[0]
            place_in_item = item.get("_place", 0)
            now = item["_now"] + item["ns"][place_in_item - 1] if place_in_item else int(item["first"])
            item["_place"], item["_now"] = place_in_item + 1, now
            if place_in_item >= len(item.get("ns", ())):
                queue.popleft()
            self._report["served"] += 1
            moved = self._move_clock(kind, now, ns, by)
        return now if moved is None else moved

    def _move_clock(self, kind, recorded_ns, now_ns, by):
        return None if by or self._overrides is None else self._overrides.move_clock(kind, recorded_ns, now_ns)

    def value(self, kind, frame, live, args=None, by="", to_json=encode, from_json=decode):  # noqa: ARG002 - as in a recording
        """Return or raise what was recorded; what `live` returns, if nothing was."""
        key = (kind, tasks.current(), key_of(args))
        with self._lock:
            rule = self._overrides.find(kind, args) if self._overrides is not None else None
            queue = self._values.get(key)
            if not queue:
                if rule is None:
                    self._miss(key, frame, by)
                found = None
            else:
                found = queue[0]
                found[1] -= 1
                if not found[1]:
                    queue.popleft()
                self._report["served"] += 1
            if rule is not None:
                return from_json(self._overrides.result(rule, kind, args, found[0] if found and not found[2] else None))
        if found is None:
            return live()
        value, _, is_error, item = found
        if is_error:
            raise decode_error(value)
        if item.get("redactions"):
            # What was secret is not in the record: the present value is taken, if there is one.
            try:
                now = live()
            except Exception:  # noqa: BLE001 - whatever it is, the placeholder was recorded
                now = None
            if now is not None:
                return now
        return from_json(value)

    def next_of(self, kind, task):
        """Return the result without arguments that a task gets next, without giving it; None if there is none."""
        with self._lock:
            queue = self._values.get((kind, task, ""))
            return queue[0][0] if queue else None

    def refuse(self, kind, frame, args, why):
        """Count what was answered last as missed, because the program cannot get it."""
        with self._lock:
            self._report["served"] -= 1
            self._miss((kind, tasks.current(), key_of(args)), frame, "", why)

    def _miss(self, key, frame, by, why=""):
        if by:
            self._report["library"] += 1
            return
        self._report["missed"] += 1
        if len(self._report["misses"]) < MOST_MISSES:
            kind, task, args = key
            about = {
                "kind": kind + (" " + args if args else ""),
                "at": place(frame.f_code, frame.f_lineno),
                "task": task,
            }
            self._report["misses"].append({**about, "nearest": why or self._nearest(key)})
            self._say()

    def _nearest(self, key):
        kind, task, args = key
        best = None
        for other, (count, at) in self._left.items():
            queue = self._values.get(other) or self._clocks.get(other)
            likeness = (other[0] == kind) + 2 * (other[1] == task and other[0] == kind) + 4 * (other == key)
            likeness += bool(queue) and other[0] == kind
            if other[0] == kind and (best is None or likeness > best[0]):
                best = (likeness, other, count, at, bool(queue))
        if best is None:
            return f"the recording has no {kind}"
        _, (_, other_task, other_args), count, at, is_left = best
        where = "{} in {}{}".format(at, other_task, ", " + other_args if other_args != args else "")
        if (other_task, other_args) == (task, args):
            return f"the recording has {count} here, all of them were given: nearest at {where}"
        return "the nearest recorded one is at {}{}".format(where, "" if is_left else ", and was given already")

    def answers_process(self, label):
        """Whether a process that the program starts was recorded, so that it has to run again."""
        return label in self.processes

    def note_output(self, text):
        """Note what the program writes to its standard output."""
        with self._lock:
            self._output.update(text.encode("utf-8", "surrogatepass"))
        if _monotonic_ns() - self._said > SAY_AFTER:
            self._say()

    def _say(self):
        with self._lock:
            self._said = _monotonic_ns()
            if self._overrides is not None:
                self._report["overridden"] = self._overrides.answered
            self._report["unused"] = self._total - self._report["served"]
            self._channel.send(self._report)

    def leave(self):
        """Stop in a forked child: the connection is the parent's."""
        self._lock = RLock()
        self._channel.drop()

    def finish_test(self):
        """Say how it ended."""
        self._report["ended"] = True
        self._say()
        self._channel.close()

    def finish(self):
        """Say how it ended."""
        if self._recorded_output is not None:
            is_same = "sha256:" + self._output.hexdigest() == self._recorded_output
            self._report["output"] = "same" if is_same else "differs"
        self._report["ended"] = True
        self._say()
        self._channel.close()
