"""Report clients that end the TLS handshake in a tunnel. Most do not trust Playhead's CA, and none of their calls is recorded."""

import logging
from collections.abc import Callable, Hashable
from typing import Final

from proxy.capture.connections.destination import CapturedDestination, HandshakeRejection, handshake_rejection
from proxy.recording.run_identity import identify
from proxy.wire.access import Credentials
from proxy.wire.config import EngineConfig
from proxy.wire.recording_guard import RecorderInterface

logger: Final = logging.getLogger(__name__)

REMEMBERED: Final = 1024
"""Hosts, and pairs of a run and a host, that are not reported again. A client that tries again all day makes one line."""


class FailedHandshakes:
    """The failed handshakes of a worker's clients."""

    def __init__(self, config: EngineConfig, recorder: RecorderInterface | None) -> None:
        self._config = config
        self._recorder = recorder
        self._reported: dict[Hashable, None] = {}

    def report(
        self,
        error: object,
        host: str,
        credentials: Credentials,
        find_owner: Callable[[], str],
        captured: CapturedDestination | None,
    ) -> None:
        """Count a failed handshake for this host, and report it in the log and as a gap of the run, if it may be due to the CA.

        `find_owner` returns the owner of the connection, which names the run if the credentials do not.
        """
        rejection = handshake_rejection(error)
        if rejection is None:
            return
        self._config.counts[f"errors/{rejection.code}"] += 1
        if captured is not None:
            captured.report_failure(rejection.reason)
            return
        if self._is_new(host):
            logger.warning("a connection to %s was refused by its client: %s", host, rejection.reason)
        # A client that leaves may have been stopped: then nothing is missing in its run.
        if self._recorder is not None and rejection.code == "ca_not_trusted":
            self._record_gap(self._recorder, rejection, host, credentials, find_owner())

    def _record_gap(
        self,
        recorder: RecorderInterface,
        rejection: HandshakeRejection,
        host: str,
        credentials: Credentials,
        owner: str,
    ) -> None:
        project = self._config.access.project_of(credentials)
        run = identify((), credentials, owner, project=project).run
        if self._is_new((run, host)):
            recorder.record_gap(run, f"a connection to {host} was refused by its client: {rejection.reason}")

    def _is_new(self, subject: Hashable) -> bool:
        is_new = subject not in self._reported
        self._reported.pop(subject, None)
        self._reported[subject] = None
        if len(self._reported) > REMEMBERED:
            del self._reported[next(iter(self._reported))]
        return is_new
