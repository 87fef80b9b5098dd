"""What one pytest process knows: its options, the process beside it, the guard, and the test that runs."""

from __future__ import annotations

import os
import ssl
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_playhead.beside import Beside, BesideFailed
from pytest_playhead.guard import Guard
from pytest_playhead.places import recording, shown, typed

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RECORD_MODES = ("none", "once", "new_episodes", "all", "rewrite")
COMMAND = "playhead"

OUTSIDE = (
    "it was asked while no test was under way that could record it: by a fixture of a wider scope, or after the test;"
    " give that fixture the scope of a function, or let the host pass with --allowed-hosts"
)
BLOCKED = "--block-network is set, and no recording answers this test"
CUT = "with --record-mode=none nothing that a marked test asks may leave this machine"


@dataclass(frozen=True)
class Mark:
    """What a test's `@pytest.mark.playhead` says."""

    file: str | None = None
    allow_unused: bool = False
    allow_failed: bool = False
    allowed_hosts: Sequence[str] = ()


class WrongMark(Exception):
    """A test's mark says what it cannot say."""


@dataclass
class Test:
    """A marked test under way."""

    __test__ = False

    node: str
    typed: str
    """The same, as it is typed where pytest was started."""

    path: Path
    shown: str
    mark: Mark
    begun: bool = False
    ended: bool = False
    passed: bool = False
    words: str = ""
    """What is to be told about it, where it fails."""

    note: str = ""
    """What is to be told at the end of all."""


@dataclass
class Suite:
    """One pytest process."""

    mode: str
    block: bool
    allowed: tuple[str, ...]
    command: str
    root: Path
    here: Path
    off: bool = False
    """--disable-recording: as if there were no marks."""

    early: bool = False
    """The proxy was set before anything of the suite was imported."""

    isolation: str = "auto"
    not_captive: str | None = None
    """Why this process is not captive, where that was wished for."""

    is_captive: bool = False
    """Every connection of this process and of its children arrives at the process beside us."""

    beside: Beside | None = None
    guard: Guard = field(default_factory=Guard)
    notes: list[str] = field(default_factory=list)
    _before: dict[str, str | None] = field(default_factory=dict)
    _barred: tuple[str | None, Sequence[str]] | None = None

    @property
    def cut(self) -> bool:
        """Whether marked tests may not ask anybody."""
        return self.mode == "none"

    def start(self) -> Beside:
        """The process beside us, started at the first call, and the environment turned to it. Raises BesideFailed."""
        if self.beside is None:
            self.beside = Beside(self.command, self.root)
            self._before = {name: os.environ.get(name) for name in self.beside.environment}
            os.environ.update(self.beside.environment)
            _trust(self.beside.environment)
            self._barred = None
        return self.beside

    def use(self, connection: socket.socket) -> None:
        """Speak to the process that has started us captive. Raises BesideFailed."""
        self.is_captive = True
        self.beside = Beside(self.command, self.root, connection)

    def refused(self) -> list[str]:
        """What was refused in a test that is not marked. Raises BesideFailed."""
        if not self.is_captive or self.beside is None:
            return self.guard.blocked
        return list(filter(None, [str(self.beside.ask(check={})["words"])]))

    def stop(self) -> None:
        """Leave everything as it was."""
        self.guard.remove()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before.clear()
        if self.beside is not None:
            self.beside.close()
            self.beside = None

    def test(self, item: pytest.Item) -> Test | None:
        """A marked test; None for any other. Raises WrongMark."""
        marker = item.get_closest_marker("playhead")
        if marker is None or self.off or _skipped_by_unittest(item):
            return None
        try:
            mark = Mark(*marker.args, **marker.kwargs)
        except TypeError as error:
            wrong = str(error).partition("() ")[2]
            raise WrongMark(
                f"its mark {wrong}; it is playhead(file, allow_unused, allow_failed, allowed_hosts)"
            ) from None
        node = item.nodeid.partition("::")[2] or item.name
        path = recording(item.path, node, mark.file)
        return Test(
            node=item.nodeid,
            typed=typed(item.nodeid, self.root, self.here),
            path=path,
            shown=shown(path, self.here),
            mark=mark,
        )

    def enter(self, test: Test | None) -> None:
        """The fixtures of a test are about to be made: of wider scopes first. Raises BesideFailed."""
        if test is not None:
            self.start()
        allowed = (*self.allowed, *(test.mark.allowed_hosts if test else ()))
        if self.is_captive:
            # What the test before was refused is not this one's.
            self._barred = None
        if test is not None:
            self._between(OUTSIDE, allowed)
        else:
            self._between(BLOCKED if self.block else None, allowed)
        if not self.is_captive and (self.block if test is None else self.cut):
            self.guard.arm(CUT if test is not None else BLOCKED, allowed, early=self.early)
        else:
            self.guard.disarm()

    def leave(self) -> None:
        """The test and its fixtures are gone."""
        self.guard.disarm()

    def begin(self, test: Test) -> None:
        """From here on it is this test that asks. Raises BesideFailed."""
        self.start().ask(
            begin={
                "name": test.node,
                "typed": test.typed,
                "file": str(test.path),
                "shown": test.shown,
                "mode": self.mode,
                "allow_unused": test.mark.allow_unused,
                "allow_failed": test.mark.allow_failed,
                "allowed_hosts": [*self.allowed, *test.mark.allowed_hosts],
            }
        )
        test.begun = True
        self._barred = None

    def standing(self, test: Test) -> bool:
        """Whether the replay is right so far, leaving out what is left over: that may still be asked for. Raises BesideFailed."""
        if test.ended:
            return True
        told = self.start().ask(check={})
        if told.get("only_left_over"):
            told = {"right": True}
        return self._taken(test, told)

    def calls(self) -> list[dict[str, Any]]:
        """What the test has asked so far. Raises BesideFailed."""
        told: list[dict[str, Any]] = self.start().ask(calls={})["calls"]
        return told

    def end(self, test: Test, *, passed: bool) -> bool:
        """Whether all is right now that the test has ended; what was recorded is kept, if it is."""
        if not test.begun or test.ended:
            return True
        test.ended = True
        told = self.start().ask(end={"passed": passed})
        right = self._taken(test, told)
        if right and told.get("words"):
            test.note = told["words"]
        # What comes after is asked outside of any test, until the next begins.
        self._between(OUTSIDE, (*self.allowed, *test.mark.allowed_hosts))
        return right

    def _taken(self, test: Test, told: dict[str, Any]) -> bool:
        blocked = self.guard.blocked
        test.words = "\n\n".join(filter(None, [str(told.get("words", "")), *blocked]))
        return bool(told["right"]) and not blocked

    def _between(self, barred: str | None, allowed: Sequence[str]) -> None:
        if self.beside is not None and self._barred != (barred, allowed):
            self.beside.ask(between={"barred": barred, "allowed_hosts": list(allowed)})
            self._barred = barred, allowed


def _trust(environment: Mapping[str, str]) -> None:
    """Let aiohttp trust our CA where it was imported before us: it reads the variables then, and the proxy only when it asks."""
    context = getattr(sys.modules.get("aiohttp.connector"), "_SSL_CONTEXT_VERIFIED", None)
    file, directory = environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR")
    if isinstance(context, ssl.SSLContext) and (file or directory):
        context.load_verify_locations(cafile=file, capath=directory)


def _skipped_by_unittest(item: pytest.Item) -> bool:
    """It says so only when it is run, and pytest's own marks before."""
    places = (getattr(item, name, None) for name in ("obj", "cls"))
    return any(getattr(place, "__unittest_skip__", False) for place in places)


__all__ = ["BesideFailed", "Mark", "Suite", "Test", "WrongMark"]
