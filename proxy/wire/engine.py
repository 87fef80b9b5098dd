"""The interface of a wire engine, and of the answerer that replaces upstreams in replay.

An engine stands between clients and upstreams. It reports what passes to a recorder (`recording_guard.RecorderInterface`), or
gets the responses from an answerer. `tests/proxy/engines` is the suite that every engine must pass.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from calls.model import Request
from proxy.wire.config import EngineConfig
from proxy.wire.recording_guard import RecorderInterface
from replay.answer import Answer, Duplex


class Answerer(Protocol):
    """Answers requests in place of the upstream."""

    async def answer(self, request: Request, *, run: str | None, owner: str, actor: str | None = None) -> Answer | None:
        """The answer to a complete request, not redacted, without Playhead's own headers. None: ask the upstream (auto only)."""

    async def open_duplex(
        self, request: Request, *, run: str | None, owner: str, actor: str | None = None
    ) -> Duplex | None:
        """What may answer a request of unknown length before it ends. None: `answer` does, when it is complete.

        Of the request, only the head has come.
        """

    def expect_run(self, run: str) -> None:
        """Prepare for a request of this run. It returns at once.

        An engine calls it when a client opens a tunnel for the run, and whenever the head of a request that names it has come:
        `answer` uses what was found out since.
        """

    def note_passed_request(self, *, run: str | None) -> None:
        """Note a request that went to its upstream because its host has a mode of its own."""

    def note_unseen_request(self, *, run: str | None, large: bool = False) -> None:
        """Note a request that never came in full: its client closed the connection, or it is too `large` to look up."""

    def note_refused_connection(self, destination: str, reason: str, *, run: str | None) -> None:
        """Note a captured connection that was refused."""

    def recorded_protocols(self, authority: str) -> tuple[str, ...] | None:
        """The protocols (`h2`, `http/1.1`; best first) to offer clients of this host, so that they use the recorded one.

        None where the host was not recorded.
        """

    def loaded_authorities(self) -> Iterable[str]:
        """The authorities of the recordings that are in memory."""

    async def recorded_authorities(self, run: str) -> Iterable[str]:
        """The authorities of the requests that a replay of this run answers. Loads its recording; empty if it has none."""

    def rehearsal(self) -> "tuple[Request, Answerer] | None":
        """A recorded request to serve before the first real one, and what answers it without leaving a trace; None without one."""


class Engine(Protocol):
    """Serves the proxy port of one worker."""

    async def __call__(
        self,
        config: EngineConfig,
        recorder: RecorderInterface | None,
        answerer: Answerer | None,
        ready: Callable[[int], None],
        /,
    ) -> None:
        """Serve until `config.stop` is set, then let requests in flight end within the grace time.

        `ready` gets the port once it is open. Mode `record` needs a recorder; `replay` and `auto` need an answerer.
        Raises Failure where the configuration cannot be used: a port that is taken, a CA file that cannot be read.
        """
