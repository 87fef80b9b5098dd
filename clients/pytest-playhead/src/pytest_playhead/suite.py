"""Hold the state of one pytest process: its options, the `playhead fixtures` process, the guard, and the marked tests."""

from __future__ import annotations

import os
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_playhead.effects import TestEffects
from pytest_playhead.fixtures_process import FixturesError, FixturesProcess
from pytest_playhead.guard import NetworkGuard
from pytest_playhead.recording_path import recording_path, relative_node_id, relative_path
from pytest_playhead.shared_process import SharedProcess

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RECORD_MODES = ("none", "once", "new_episodes", "all", "rewrite")
COMMAND = "playhead"

OUTSIDE_TEST = (
    "it was sent while no test was running that could record it: by a fixture of a wider scope, or after the test;"
    " give that fixture function scope, or allow the host with --allowed-hosts"
)
NETWORK_BLOCKED = "--block-network is set, and this test has no recording"
REPLAY_ONLY = "with --record-mode=none no request of a marked test may leave this machine"


@dataclass(frozen=True)
class Mark:
    """The arguments of `@pytest.mark.playhead`."""

    file: str | None = None
    allow_unused: bool = False
    allow_failed: bool = False
    allowed_hosts: Sequence[str] = ()
    recording: bool = True
    """False: the test has no recording, and gives its answers with `playhead.answer`."""

    effects: bool | None = None
    """Whether the time, random numbers and the like are recorded and answered, too. None: as in the ini file."""


class InvalidMark(Exception):
    """The mark of a test has invalid arguments."""


@dataclass
class MarkedTest:
    """A running test with the mark."""

    __test__ = False

    node: str
    relative_id: str
    """The node id relative to the directory in which pytest was started."""

    path: Path
    relative_path: str
    mark: Mark
    has_begun: bool = False
    has_ended: bool = False
    has_passed: bool = False
    explanation: str = ""
    """The text to show if the test fails."""

    note: str = ""
    """The text to show in the terminal summary."""


@dataclass
class Suite:
    """The state of one pytest process."""

    mode: str
    blocks_network: bool
    allowed_hosts: tuple[str, ...]
    command: str
    root: Path
    directory: Path
    is_disabled: bool = False
    """True with --disable-recording, which ignores the marks."""

    is_early: bool = False
    """True if the proxy was set before the suite was imported."""

    has_effects: bool = False
    """Whether marked tests have effects unless their mark says otherwise."""

    isolation: str = "auto"
    not_captive_reason: str | None = None
    """The reason why this process is not captive although that was requested."""

    is_captive: bool = False
    """True if every connection of this process and of its children arrives at the fixtures process."""

    process: FixturesProcess | None = None
    shared_process: SharedProcess | None = None
    """In an xdist controller: the process that its workers share."""

    effects: TestEffects = field(default_factory=TestEffects)
    guard: NetworkGuard = field(default_factory=NetworkGuard)
    notes: list[str] = field(default_factory=list)
    _previous_environment: dict[str, str | None] = field(default_factory=dict)
    _barred: tuple[str | None, Sequence[str]] | None = None

    @property
    def is_replay_only(self) -> bool:
        """Whether marked tests are answered from recordings only."""
        return self.mode == "none"

    def start(self) -> FixturesProcess:
        """Start the fixtures process at the first call, and set the environment for it. Raises FixturesError."""
        if self.process is None:
            self.process = FixturesProcess(self.command, self.root, is_replay_only=self.is_replay_only)
            self._previous_environment = {name: os.environ.get(name) for name in self.process.environment}
            os.environ.update(self.process.environment)
            _trust_authority(self.process.environment)
            self._barred = None
        return self.process

    def share_process(self) -> None:
        """Have the xdist workers of this controller share one process, which the first of them starts."""
        options = ["--replay-only"] if self.is_replay_only else []
        with suppress(OSError):
            # Without a socket each worker starts its own.
            self.shared_process = SharedProcess(self.command, self.root, options)

    def use_connection(self, connection: socket.socket) -> None:
        """Use the connection to the process that started this one captive. Raises FixturesError."""
        self.is_captive = True
        self.process = FixturesProcess(self.command, self.root, connection)

    def unmarked_refusals(self) -> list[str]:
        """The connections refused in a test without the mark. Raises FixturesError."""
        if not self.is_captive or self.process is None:
            return self.guard.refusals
        return list(filter(None, [str(self.process.request(check={})["words"])]))

    def stop(self) -> None:
        """Stop the process, and restore the environment and `socket`."""
        self.guard.remove()
        for name, value in self._previous_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._previous_environment.clear()
        if self.process is not None:
            self.process.close()
            self.process = None
        if self.shared_process is not None:
            self.shared_process.close()
            self.shared_process = None

    def marked_test(self, item: pytest.Item) -> MarkedTest | None:
        """The marked test of an item; None if it has no mark. Raises InvalidMark."""
        marker = item.get_closest_marker("playhead")
        if marker is None or self.is_disabled or _skipped_by_unittest(item):
            return None
        try:
            mark = Mark(*marker.args, **marker.kwargs)
        except TypeError as error:
            problem = str(error).partition("() ")[2]
            raise InvalidMark(
                f"its mark {problem}; it is playhead(file, allow_unused, allow_failed, allowed_hosts, recording, effects)"
            ) from None
        if mark.file is not None and not mark.recording:
            raise InvalidMark("its mark has a file and recording=False; leave one of them out")
        if mark.effects and not mark.recording:
            raise InvalidMark("its mark has effects=True and recording=False; effects are answered from a recording")
        node = item.nodeid.partition("::")[2] or item.name
        path = recording_path(item.path, node, mark.file)
        return MarkedTest(
            node=item.nodeid,
            relative_id=relative_node_id(item.nodeid, self.root, self.directory),
            path=path,
            relative_path=relative_path(path, self.directory),
            mark=mark,
        )

    def enter(self, test: MarkedTest | None) -> None:
        """Prepare for the fixtures of a test, those of wider scopes first. Raises FixturesError."""
        if test is not None:
            self.start()
        allowed = (*self.allowed_hosts, *(test.mark.allowed_hosts if test else ()))
        if self.is_captive:
            # Forget the refusals of the previous test.
            self._barred = None
        if test is not None:
            self._set_between_tests(OUTSIDE_TEST, allowed)
        else:
            self._set_between_tests(NETWORK_BLOCKED if self.blocks_network else None, allowed)
        is_closed = self.blocks_network if test is None else self.is_replay_only or not test.mark.recording
        if not self.is_captive and is_closed:
            self.guard.arm(REPLAY_ONLY if test is not None else NETWORK_BLOCKED, allowed, is_early=self.is_early)
        else:
            self.guard.disarm()

    def leave(self) -> None:
        """Disarm the guard after a test and its fixtures."""
        self.effects.end()
        self.guard.disarm()

    def begin(self, test: MarkedTest, request: pytest.FixtureRequest) -> None:
        """Open the recording of a test. Raises FixturesError."""
        has_effects = test.mark.recording and (self.has_effects if test.mark.effects is None else test.mark.effects)
        reply = self.start().request(
            begin={
                "name": test.node,
                "typed": test.relative_id,
                "file": str(test.path),
                "shown": test.relative_path,
                "mode": self.mode,
                "allow_unused": test.mark.allow_unused,
                "allow_failed": test.mark.allow_failed,
                "stand_ins": not test.mark.recording,
                "allowed_hosts": [*self.allowed_hosts, *test.mark.allowed_hosts],
                "effects": has_effects,
            }
        )
        test.has_begun = True
        if has_effects:
            self.effects.begin(reply["effects"], request, self.start().environment)
        self._barred = None

    def is_right_so_far(self, test: MarkedTest) -> bool:
        """Whether the replay is right so far; unused calls may still be requested. Raises FixturesError."""
        if test.has_ended:
            return True
        result = self.start().request(check={})
        if result.get("only_unused"):
            result = {"right": True}
        return self._note_result(test, result)

    def calls(self) -> list[dict[str, Any]]:
        """The calls of the running test so far. Raises FixturesError."""
        calls: list[dict[str, Any]] = self.start().request(calls={})["calls"]
        return calls

    def add_answer(self, answer: Mapping[str, Any]) -> None:
        """Add an answer to those of the running test. Raises FixturesError."""
        self.start().request(answer=answer)

    def check(self, spec: str | os.PathLike[str]) -> dict[str, Any]:
        """Check the calls of the running test so far against a spec. Raises FixturesError."""
        result: dict[str, Any] = self.start().request(check_rules={"spec": os.path.abspath(spec)})
        result["spec"] = os.fspath(spec)
        return result

    def end(self, test: MarkedTest, *, has_passed: bool) -> bool:
        """End a test: return whether its replay was right, and if so keep what was recorded."""
        if not test.has_begun or test.has_ended:
            return True
        test.has_ended = True
        self.effects.end()
        result = self.start().request(end={"passed": has_passed})
        right = self._note_result(test, result)
        if right and result.get("words"):
            test.note = result["words"]
        # Requests after this belong to no test, until the next one begins.
        self._set_between_tests(OUTSIDE_TEST, (*self.allowed_hosts, *test.mark.allowed_hosts))
        return right

    def _note_result(self, test: MarkedTest, result: dict[str, Any]) -> bool:
        refusals = self.guard.refusals
        test.explanation = "\n\n".join(filter(None, [str(result.get("words", "")), *refusals]))
        return bool(result["right"]) and not refusals

    def _set_between_tests(self, barred: str | None, allowed: Sequence[str]) -> None:
        if self.process is not None and self._barred != (barred, allowed):
            self.process.request(between={"barred": barred, "allowed_hosts": list(allowed)})
            self._barred = barred, allowed


def _trust_authority(environment: Mapping[str, str]) -> None:
    """Let aiohttp trust Playhead's CA if it was imported earlier, because it reads the CA variables at import."""
    context = getattr(sys.modules.get("aiohttp.connector"), "_SSL_CONTEXT_VERIFIED", None)
    file, directory = environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR")
    if isinstance(context, ssl.SSLContext) and (file or directory):
        context.load_verify_locations(cafile=file, capath=directory)


def _skipped_by_unittest(item: pytest.Item) -> bool:
    """Whether unittest will skip the item. Unlike for pytest's own marks, it is skipped only when it runs."""
    places = (getattr(item, name, None) for name in ("obj", "cls"))
    return any(getattr(place, "__unittest_skip__", False) for place in places)


__all__ = ["FixturesError", "InvalidMark", "Mark", "MarkedTest", "Suite"]
