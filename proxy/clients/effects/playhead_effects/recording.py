"""Observe effects, and send them to the worker in batches."""

import hashlib
import time
from threading import RLock

from playhead_effects import tasks
from playhead_effects.callers import place
from playhead_effects.values import Unwritable, encode, encode_error, key_of

FLUSH_AFTER = 100_000_000
"""Nanoseconds after which an effect is sent together with those before."""

ITEM_GAP_NS = 1_000_000
"""Nanoseconds after which an effect begins an item of its own: a call may have been made meanwhile."""

MOST_WAITING = 4000
"""Items that wait at most."""

MOST_TIMES = 50_000
"""Readings of a clock in one item at most."""

MOST_CONTENT = 1 << 20
"""Bytes of a content that is recorded."""

MOST_BYTES = 4 << 20
"""Bytes of the results in a batch, roughly."""

_monotonic_ns = time.monotonic_ns


class Recording:
    """Records the effects of this process."""

    is_replay = is_fork = False

    def __init__(self, channel, pinned, now_ns):
        self._channel = channel
        self._lock = RLock()
        self._items = []
        self._size = 0
        self._order = 0
        self._last_key = None
        self._last = None
        self._contents = {}
        self._output = hashlib.sha256()
        self._written = 0
        self._at = 0
        """When the last result was added."""

        self._began = self._flushed = _monotonic_ns()
        self._add({"kind": "process.start", "first": str(now_ns), "args": pinned})

    def clock(self, kind, frame, ns, by=""):
        """Record a reading of a clock, and return it."""
        key = (kind, frame.f_code, frame.f_lasti, tasks.name.get())
        with self._lock:
            self._order += 1
            last = self._last
            if key == self._last_key and ns - last["now"] < ITEM_GAP_NS and len(last["ns"]) < MOST_TIMES:
                last["ns"].append(ns - last["now"])
                last["now"] = ns
                self._size += 8
                if self._size > MOST_BYTES:
                    self._flush()
                return ns
            self._add(
                {
                    "kind": kind,
                    "task": tasks.current(),
                    "at": place(frame.f_code, frame.f_lineno),
                    "order": self._order,
                    "first": str(ns),
                    "ns": [],
                    "now": ns,
                }
                | ({"by": by} if by else {})
            )
            self._last_key, self._last = key, self._items[-1] if self._items else None
            if self._last is None:
                self._last_key = None
        return ns

    def value(self, kind, frame, live, args=None, by="", to_json=encode, from_json=None):  # noqa: ARG002 - as in a replay
        """Call `live`, record what it returns or raises, and return or raise that."""
        try:
            result = live()
        except Exception as error:
            self.note_error(kind, frame, args, error, by)
            raise
        try:
            encoded_result = to_json(result)
        except Unwritable:
            return result
        self._add_result(kind, frame, args, by, {"results": [encoded_result]})
        return result

    def note_error(self, kind, frame, args, error, by=""):
        """Record what was raised."""
        self._add_result(kind, frame, args, by, {"error": encode_error(error)})

    def _add_result(self, kind, frame, args, by, result):
        key = (kind, frame.f_code, frame.f_lasti, tasks.name.get(), key_of(args), by)
        with self._lock:
            self._order += 1
            now, before = _monotonic_ns(), self._at
            self._at = now
            if key == self._last_key and now - before < ITEM_GAP_NS and "results" in result and "results" in self._last:
                last = self._last
                value = result["results"][0]
                self._size += len(value) if isinstance(value, str) else 16
                counts = last["counts"]
                # A result as before is counted; text is compared by identity, too, so this is quick.
                if last["results"][-1] == value:
                    counts[-1] += 1
                elif len(counts) < MOST_WAITING:
                    last["results"].append(value)
                    counts.append(1)
                else:
                    self._last_key = None
                    self._add_result(kind, frame, args, by, result)
                    return
                if self._size > MOST_BYTES:
                    self._flush()
                return
            item = {
                "kind": kind,
                "task": tasks.current(),
                "at": place(frame.f_code, frame.f_lineno),
                "order": self._order,
                **result,
            }
            if args:
                item["args"] = args
            if by:
                item["by"] = by
            if "results" in item:
                item["counts"] = [1]
                value = item["results"][0]
                self._size += len(value) if isinstance(value, str) else 64
            self._add(item)
            self._last_key, self._last = (key, item) if self._items else (None, None)

    def content(self, data):
        """Record a content, once, and return its number; None for one that is too large."""
        if len(data) > MOST_CONTENT:
            return None
        digest = hashlib.sha256(data).digest()
        with self._lock:
            if digest in self._contents:
                return self._contents[digest]
            number = self._contents[digest] = len(self._contents)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = encode(bytes(data))
            self._size += len(data)
            self._add({"kind": "content", "content": number, "results": [text]})
        return number

    def _add(self, item):
        now = _monotonic_ns()
        item["happened"] = now - self._began
        self._items.append(item)
        self._last_key = None
        self._size += 100
        if now - self._flushed > FLUSH_AFTER or len(self._items) > MOST_WAITING or self._size > MOST_BYTES:
            self._flush(now)

    def _flush(self, now=None):
        with self._lock:
            items, self._items, self._last_key, self._size = self._items, [], None, 0
            self._flushed = now or _monotonic_ns()
            for item in items:
                item.pop("now", None)
                if item.get("counts") and not any(count > 1 for count in item["counts"]):
                    del item["counts"]
                if "ns" in item and not item["ns"]:
                    del item["ns"]
            if items:
                self._channel.send(items)

    def note_output(self, text):
        """Note what the program writes to its standard output."""
        data = text.encode("utf-8", "surrogatepass")
        with self._lock:
            self._output.update(data)
            self._written += len(data)

    def leave(self):
        """Stop in a forked child: what waits here is the parent's."""
        self._lock = RLock()
        self._items = []
        self._channel.drop()

    def finish(self):
        """Send what is left, and wait until the worker has it."""
        self.send_last()
        self._channel.close()

    def finish_test(self):
        """Send what is left of a test, whose output is not looked at, and wait until the worker has it."""
        self.send_last_of_test()
        self._channel.close()

    def send_last_of_test(self):
        """Send what is left of a test."""
        self._flush()

    def send_last(self):
        """Send what is left."""
        digest = "sha256:" + self._output.hexdigest()
        self._add({"kind": "stdout", "digest": digest, "size": self._written})
        self._flush()
