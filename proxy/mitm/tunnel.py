"""Forward bytes unchanged, for hosts on the tunnel list and unknown protocols, and record each connection as a gap."""

from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tcp

from calls.model import Outcome
from proxy.capture.report import Entry
from proxy.mitm.connection import MitmConnection
from proxy.recording.run_identity import identify


class OpaqueTunnel(tcp.TCPLayer):
    """A relay that records no data. In replay it closes the connection, because no upstream may be contacted."""

    def __init__(self, context: Context, connection: MitmConnection, reason: str) -> None:
        super().__init__(context, ignore=True)
        self._connection = connection
        self._reason = reason
        self._entry: Entry | None = None
        """The report entry that counts the bytes of a captured connection."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """Do nothing: no recording is open."""

    def start(self, event: events.Event) -> CommandGenerator[None]:
        """Record the gap, then connect."""
        engine, captured = self._connection.engine, self._connection.captured
        if captured is not None:
            self._entry = captured.pass_undecoded(self._reason)
        if engine.is_offline or (captured is not None and self._entry is None):
            yield commands.CloseConnection(self.context.client)
            self._handle_event = self.done  # type: ignore[method-assign]
            return
        if engine.recorder is not None and captured is None:
            credentials = self._connection.credentials
            project = engine.config.access.project_of(credentials)
            run = identify((), credentials, self._connection.owner, project=project).run
            engine.recorder.record_gap(run, self._reason)
        engine.config.counts["connections/tunnel"] += 1
        self._connection.begin_activity(self)
        yield from super().start(event)

    _handle_event = start

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        """Count and forward data."""
        if self._entry is not None and isinstance(event, events.DataReceived):
            if event.connection == self.context.client:
                self._entry.sent += len(event.data)
            else:
                self._entry.received += len(event.data)
        yield from super().relay_messages(event)
