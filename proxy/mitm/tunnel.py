"""Pass bytes as they are, for hosts on the tunnel list and unknown protocols, and note each connection in its run."""

from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tcp

from calls.model import Outcome
from proxy.capture.report import Entry
from proxy.mitm.connection import MitmConnection
from proxy.recording.run_identity import identify


class OpaqueTunnel(tcp.TCPLayer):
    """A relay that keeps nothing. In replay there is nothing to relay to: the connection is closed."""

    def __init__(self, context: Context, visit: MitmConnection, reason: str) -> None:
        super().__init__(context, ignore=True)
        self._visit = visit
        self._reason = reason
        self._entry: Entry | None = None
        """Where the bytes of a captured connection are counted."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """Nothing is open here."""

    def start(self, event: events.Event) -> CommandGenerator[None]:
        """Note it, then connect."""
        engine, captured = self._visit.engine, self._visit.captured
        if captured is not None:
            self._entry = captured.pass_undecoded(self._reason)
        if engine.contacts_nobody or (captured is not None and self._entry is None):
            yield commands.CloseConnection(self.context.client)
            self._handle_event = self.done  # type: ignore[method-assign]
            return
        if engine.recorder is not None and captured is None:
            engine.recorder.gap(identify((), self._visit.given, self._visit.owner).run, self._reason)
        engine.config.counts["connections/tunnel"] += 1
        self._visit.begin(self)
        yield from super().start(event)

    _handle_event = start

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        """Count what passes."""
        if self._entry is not None and isinstance(event, events.DataReceived):
            if event.connection == self.context.client:
                self._entry.sent += len(event.data)
            else:
                self._entry.received += len(event.data)
        yield from super().relay_messages(event)
