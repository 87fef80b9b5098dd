"""Record what goes live in auto sessions as their candidates."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy.recording.recorder import Recorder

if TYPE_CHECKING:
    from proxy.worker.auto_sessions import AutoSessions


class AutoRecorder(Recorder):
    """A recorder that records what goes live in auto sessions as their candidates."""

    auto_sessions: "AutoSessions | None" = None

    only_run: str | None = None
    """The fork or replay that a command's own worker serves: everything is recorded in it, whatever run clients name."""

    def recording_run(self, run: str, url: str | None) -> str:
        """Return the run in which an exchange or a gap of this run is recorded."""
        if self.only_run is not None:
            return self.only_run
        return (
            run if self.auto_sessions is None else self.auto_sessions.recording_run(run, url and urlsplit(url).hostname)
        )
