"""Bytes that pass as they are: hosts on the tunnel list, and what we cannot read. Each is noted in its run."""

from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tcp

from calls.model import Outcome
from proxy.identity import identify
from proxy.mitm.visit import Visit


class Opaque(tcp.TCPLayer):
    """A relay that keeps nothing. In replay there is nothing to relay to: the connection is closed."""

    def __init__(self, context: Context, visit: Visit, reason: str) -> None:
        super().__init__(context, ignore=True)
        self._visit = visit
        self._reason = reason

    def abandon(self, outcome: Outcome, why: str) -> None:
        """Nothing is open here."""

    def start(self, event: events.Event) -> CommandGenerator[None]:
        """Note it, then connect."""
        engine = self._visit.engine
        if engine.contacts_nobody:
            yield commands.CloseConnection(self.context.client)
            self._handle_event = self.done  # type: ignore[method-assign]
            return
        if engine.recorder is not None:
            engine.recorder.gap(identify((), self._visit.given, self._visit.owner).run, self._reason)
        engine.config.counts["connections/tunnel"] += 1
        self._visit.begin(self)
        yield from super().start(event)

    _handle_event = start
