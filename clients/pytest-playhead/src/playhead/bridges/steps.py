"""Report what a framework does, and name it in the requests that it sends.

A step is reported when it ends: its kind, its name and those of the steps around it, its input and its output. They become effects of the
run (docs/effects.md). A request that is sent within a step names it in `X-Playhead-Actor`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from playhead.binding import current_run
from playhead.hooks import install_hooks
from playhead.http_hooks import MOST_NAME, Namer, name_steps
from playhead.rest import Unreachable, post_json

if TYPE_CHECKING:
    from collections.abc import Hashable

MOST_TEXT = 4000
"""Characters of an input or output that are reported."""

MOST_OPEN = 10_000
"""Steps that are under way; of further ones nothing is known."""

BATCH = 100
"""Steps that are sent together at most."""

SEND_INTERVAL = 0.5
"""Seconds after which steps are sent."""


@dataclass
class Step:
    """A step under way."""

    kind: str
    name: str
    path: str
    input: str
    began: int
    owner: str | None
    """The name that its requests have: its own, or that of the step around it."""


class StepReporter:
    """Reports the steps of one framework."""

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._open: dict[Hashable, Step] = {}
        self._reports: dict[str, _Report] = {}
        self._lock = threading.Lock()

    def start(
        self,
        key: Hashable,
        parent: Hashable | None,
        kind: str,
        name: str = "",
        input: Any = None,  # noqa: A002
    ) -> None:
        """Note that a step begins, within its parent if that is known. Requests of one without a name have that of its parent."""
        own_name = _cut(name, MOST_NAME)
        name = own_name or kind
        with self._lock:
            around = self._open.get(parent) if parent is not None else None
            path = f"{around.path}/{name}" if around else name
            if len(self._open) < MOST_OPEN:
                owner = own_name or (around.owner if around else None)
                self._open[key] = Step(kind, name, path[-MOST_NAME * 4 :], describe(input), time.time_ns(), owner)

    def end(
        self,
        key: Hashable,
        output: Any = None,
        error: BaseException | str | None = None,
        *,
        input: Any = None,  # noqa: A002
    ) -> None:
        """Report a step that ends; `input`, where it was not known before."""
        run = recorded_run()
        with self._lock:
            step = self._open.pop(key, None)
            if step is None or run is None:
                return
            if input is not None:
                step.input = describe(input)
            report = self._reports.get(run)
            if report is None:
                report = self._reports[run] = _Report(run, self._framework, step.began)
        report.add(step, output, error)

    def forget(self, key: Hashable) -> None:
        """Report nothing of a step that is under way."""
        with self._lock:
            self._open.pop(key, None)

    def add_document(self, kind: str, name: str, facts: dict[str, str], text: str, most: int) -> None:
        """Report a document of a step, whole, in words that are shown, and a content that is not."""
        run = recorded_run()
        if run is None:
            return
        with self._lock:
            report = self._reports.get(run)
            if report is None:
                report = self._reports[run] = _Report(run, self._framework, time.time_ns())
        report.add_document(kind, name, facts, text, most)

    def name(self, key: Hashable) -> str | None:
        """Return the name that requests of a step have which is under way."""
        step = self._open.get(key)
        return step.owner if step else None


def name_requests(namer: Namer) -> None:
    """Have requests name the step that this function returns."""
    install_hooks()
    name_steps(namer)


def recorded_run() -> str | None:
    """Return the run to report to; None where nothing is recorded."""
    run = current_run() or os.environ.get("PLAYHEAD_RUN")
    return run if run and os.environ.get("PLAYHEAD_API") else None


def describe(value: Any) -> str:
    """Return a value as text: JSON where it is plain data."""
    if value is None or isinstance(value, str):
        return _cut(value or "", MOST_TEXT)
    try:
        return _cut(json.dumps(value, ensure_ascii=False, sort_keys=True, default=_plain), MOST_TEXT)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"


def _plain(value: Any) -> Any:
    """Return data for an object: its own if it offers any, and never its address in memory."""
    for method in ("model_dump", "to_dict", "dict"):
        dump = getattr(value, method, None)
        if callable(dump) and not isinstance(value, type):
            return dump()
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    fields = getattr(value, "__dict__", None)
    return (
        {name: each for name, each in fields.items() if not name.startswith("_")}
        if fields
        else f"<{type(value).__name__}>"
    )


def _cut(text: str, most: int) -> str:
    # A lone surrogate has no form in UTF-8.
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"


class _Report:
    """The steps of a run that are not sent yet."""

    def __init__(self, run: str, framework: str, began: int) -> None:
        self._run = run
        self._framework = framework
        self._began = began
        self._number = 0
        self._order = 0
        self._items: list[tuple[dict[str, Any], ...]] = []
        """Items that belong together are sent together."""

        self._documents = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._sender = threading.Thread(target=self._send_all, name="playhead-steps", daemon=True)
        self._sender.start()
        atexit.register(self.close)

    def add(self, step: Step, output: Any, error: BaseException | str | None) -> None:
        """Add a step. It is dropped if ten thousand wait to be sent, because the agent must not wait."""
        item: dict[str, Any] = {
            "kind": f"{self._framework}.{step.kind}",
            "task": step.path,
            "happened": max(step.began - self._began, 0),
            "args": {"name": step.name, "input": step.input},
        }
        if error is None:
            item["results"] = [describe(output)]
        else:
            item["error"] = {
                "type": type(error).__name__ if isinstance(error, BaseException) else "Error",
                "args": _cut(str(error), MOST_TEXT),
            }
        self._append(item)

    def add_document(self, kind: str, name: str, facts: dict[str, str], text: str, most: int) -> None:
        """Add a document: a content, and an item that refers to it."""
        if len(text) > most:
            self._complain(f"a {kind} has {len(text):,} characters, and may have {most:,}")
            return
        happened = max(time.time_ns() - self._began, 0)
        with self._changed:
            number, self._documents = self._documents, self._documents + 1
        content = {"kind": "content", "content": number, "results": [text]}
        about = {"kind": kind, "task": name, "happened": happened, "args": {"name": name, **facts}, "results": [number]}
        self._append(about, content)

    def _append(self, item: dict[str, Any], *before: dict[str, Any]) -> None:
        with self._changed:
            item["order"] = self._order
            self._order += 1
            if len(self._items) < MOST_OPEN:
                self._items.append((*before, item))
            else:
                self._dropped += 1
            if len(self._items) >= BATCH:
                self._changed.notify()

    def close(self) -> None:
        """Send what is left."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._sender.join(10)
        if self._dropped:
            self._complain(f"{self._dropped:,} of them came too fast")

    def _send_all(self) -> None:
        while True:
            with self._changed:
                if not self._is_over and len(self._items) < BATCH:
                    self._changed.wait(SEND_INTERVAL)
                groups, self._items = self._items[:BATCH], self._items[BATCH:]
                items = [item for group in groups for item in group]
                if not items and self._is_over:
                    return
            if items and not self._send(items):
                return

    def _send(self, items: list[dict[str, Any]]) -> bool:
        # Each batch says when this process began: others of the run may report to the same framework's steps.
        began = {"kind": "process.start", "first": str(self._began)}
        body = {"process": self._framework, "number": self._number, "items": [began, *items]}
        try:
            post_json(f"/v1/runs/{quote(self._run, safe='')}/effects", body)
        except Unreachable as error:
            self._complain(str(error))
            return False
        self._number += 1
        return True

    def _complain(self, why: str) -> None:
        """Say that something is missing. An agent does not fail for its record."""
        sys.stderr.write(f"playhead: not all steps of {self._framework} are recorded: {why}\n")
