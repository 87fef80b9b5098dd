"""One capture: the sockets of a captured command, its names, and what becomes of its connections."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol

from proxy.capture.connections import timing
from proxy.capture.connections.connection import CapturedConnection, Enter, EnterProxy
from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.connections.original_destination import Address, Source, plain_address
from proxy.capture.connections.passed_notes import PassedNotes
from proxy.capture.connections.relay import PassedConnection, RelayServer
from proxy.capture.control import CaptureRequest
from proxy.capture.dns import datagrams
from proxy.capture.dns.resolver import Resolver
from proxy.capture.dns.synthetic_addresses import NameTable
from proxy.capture.dns.tcp_stream import NameStream
from proxy.capture.report import ConnectionReport, Entry, Kind, Outcome, Transport
from proxy.wire.config import Origin
from proxy.wire.destinations import is_of_this_machine
from proxy.wire.engine_state import EngineState
from proxy.wire.listener import Listener

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 4096
"""Connections of one capture of which it is not yet known what they speak, or that pass as they are."""

MAX_QUERIES: Final = 256
"""DNS queries of one capture that are being answered at a time."""


class UndecidedConnection(Protocol):
    """A connection of which it is not known yet what it speaks."""

    def abort(self) -> None:
        """Close it at once."""


class CaptureContext(Protocol):
    """What the captures of one proxy worker share."""

    engine: EngineState
    enter: Enter
    enter_proxy: EnterProxy
    relays: set[PassedConnection]

    def open_connections(self) -> int:
        """Count what counts against the worker's limit of open files."""

    def undecided(self, capture: "Capture", source: Source) -> asyncio.Protocol:
        """Make what takes the next connection of this capture, from such a socket."""

    def ended(self, capture: "Capture") -> None:
        """Forget a capture that has ended."""


class Capture:
    """The sockets, names and connections of one captured command."""

    def __init__(self, intake: CaptureContext, request: CaptureRequest, *, is_local: bool = True) -> None:
        self.intake = intake
        self.engine = intake.engine
        self.is_local = is_local
        """Whether the connections are those of the user's own command; else the rules for other clients are theirs too."""

        self.open: set[UndecidedConnection] = set()
        self._request = request
        self._given = (request.run, request.token) if is_local else None
        self._names = NameTable()
        self._resolver = Resolver(
            self._names,
            asks_host=not self.engine.contacts_nobody,
            every_name=self.engine.answerer is not None,
            is_configured=self._is_configured,
        )
        self._report = ConnectionReport()
        self._notes = PassedNotes(self._report, self._note_passed)
        self._relays = 0
        self._listeners: list[Listener] = []
        self._endpoints: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def may_pass(self) -> bool:
        """Whether what is neither TLS nor HTTP passes as it is, now: for a test suite it changes with each test."""
        return self._request.passes_other_tcp and not self.engine.contacts_nobody

    def _is_configured(self, name: str) -> bool:
        """Whether a name counts, whatever the host knows of it: its upstream is another, or reached by the proxy above us."""
        return self.engine.proxy is not None or self.engine.has_upstream(name)

    async def start(self) -> None:
        """Accept on every socket."""
        loop = asyncio.get_running_loop()
        for one in self._request.sockets:
            one.endpoint.setblocking(False)
            if one.kind == "tcp":
                accepted = partial(self.intake.undecided, self, "redirected" if one.is_redirected else "local")
                listener = Listener(self.intake.open_connections, accepted)
                listener.accept_on(one.endpoint)
                self._listeners.append(listener)
                continue
            self._endpoints.append(one.endpoint)
            datagrams.ask_for_destinations(one.endpoint)
            if one.kind == "dns":
                loop.add_reader(one.endpoint.fileno(), self._queried, one.endpoint)

    async def end(self) -> None:
        """Stop accepting; connections that were taken over go on until one side leaves."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.close()
        for endpoint in self._endpoints:
            loop.remove_reader(endpoint.fileno())
            endpoint.close()
        for task in list(self._tasks):
            task.cancel()
        for arrival in list(self.open):
            arrival.abort()
        self._resolver.close()
        self._notes.end()
        self.intake.ended(self)

    def report(self) -> Mapping[str, Any]:
        """What passed or was refused so far."""
        return {"connections": self._report.as_json()}

    # DNS

    def _queried(self, endpoint: socket.socket) -> None:
        for _ in range(64):
            try:
                datagram = datagrams.receive(endpoint)
            except BlockingIOError:
                return
            except OSError:
                continue
            if len(self._tasks) < MAX_QUERIES:
                self.spawn(self._answer(endpoint, datagram))

    async def _answer(self, endpoint: socket.socket, datagram: datagrams.Datagram) -> None:
        self._resolver.asks_host = not self.engine.contacts_nobody
        reply = await self._resolver.answer(datagram.data)
        if reply is not None:
            with contextlib.suppress(OSError):
                datagrams.answer(endpoint, datagram, reply)

    def answer_names(self, transport: asyncio.Transport) -> None:
        """Serve DNS on a connection."""
        NameStream(self._resolver, self.spawn).begin(transport)

    # What an arrival asks

    def is_loop(self, transport: asyncio.Transport, address: Address, port: int) -> bool:
        """Whether this is a connection of the worker itself, redirected back to it. Known only once it was made whole."""
        peer = transport.get_extra_info("peername")
        return not self.is_local and self.engine.destinations.recent.has(peer[:2], (str(address), port))

    async def find_owner(self, transport: asyncio.Transport, address: Address, port: int) -> None:
        """Find the process behind a redirected connection, for the run of its calls."""
        peer = transport.get_extra_info("peername")
        is_near = is_of_this_machine(plain_address(peer[0]))
        if is_near and self.engine.owners.can_find(peer, (peer[0], port)):
            await self.engine.owners.find(peer[:2], (str(address), port))

    def bar(self) -> str | None:
        """Why no more connections are served."""
        if len(self.open) + self._relays >= MAX_CONNECTIONS:
            return f"more than {MAX_CONNECTIONS} connections of the command are open"
        return None

    def is_own(self, address: Address, port: int) -> bool:
        """Whether this is the proxy worker's own address."""
        host, own = self.engine.destinations.own[-1]
        return port == own and self.engine.destinations.is_own(address, port) and bool(host)

    def is_allowed(self, address: Address, port: int) -> bool:
        """Whether --allow-local names it."""
        hosts = {str(address), self._host(address)} | ({"localhost"} if address.is_loopback else set())
        return any((host, port) in self._request.allow_local for host in hosts) or self._is_let_pass(address, port)

    def _is_let_pass(self, address: Address, port: int) -> bool:
        """Whether the configuration lets it pass in every mode."""
        lets = self.engine.config.lets_pass(self._host(address), is_local=is_of_this_machine(address))
        return lets and not self.is_own(address, port) and not self.is_overridden(address, port)

    def is_overridden(self, address: Address, port: int) -> bool:
        """Whether another origin stands in for this one, so that it may not be there at all."""
        host = self._host(address)
        return any(self.engine.is_overridden(Origin(scheme, host, port)) for scheme in ("https", "http"))

    def patience(self, address: Address, port: int) -> float:
        """Seconds that a client may be silent whose server may not be asked."""
        host, head = self._host(address), self.engine.config.limits.head
        answerer = self.engine.answerer
        is_recorded = answerer is not None and answerer.recorded_protocols(Origin("https", host, port).authority) is not None
        return head if is_recorded or self.is_overridden(address, port) else timing.refuse_after(port, head)

    def pinned(self, address: Address, name: str | None) -> str | None:
        """The host where it is on the tunnel list. What a handshake names counts only where the client resolved no name."""
        host = self._names.name(address) or name or str(address)
        return host if self.engine.is_tunnelled(host) else None

    async def connect(self, server: RelayServer, address: Address, port: int) -> None:
        """Connect to the destination. Raises Problem."""
        loop, destinations = asyncio.get_running_loop(), self.engine.destinations

        async def opened(text: str) -> None:
            transport, _ = await loop.create_connection(lambda: server, text, port)
            destinations.recent.note(transport)

        host = self._host(address)
        if not self.is_local and (problem := destinations.by_name(host, port)) is not None:
            raise problem
        await destinations.reach(host, port, opened, local=self.is_local)

    # What becomes of a connection

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done while the capture lasts."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hand_to_engine(self, transport: asyncio.Transport, address: Address, port: int, data: bytes) -> None:
        """Let the wire engine have a connection, from these bytes on."""
        name = self._names.name(address)
        captured = CapturedDestination(
            host=name or str(address),
            port=port,
            is_named=name is not None,
            is_local=self.is_local,
            report_failure=partial(self._report_failure, address, port),
            pass_undecoded=partial(self._pass_undecoded, address, port),
        )
        owner = self.engine.owners.known(transport.get_extra_info("peername"))
        self.intake.enter(
            CapturedConnection(transport=transport, captured=captured, owner=owner, given=self._given, data=data)
        )

    def relay(
        self, client: asyncio.Transport, server: asyncio.Transport, address: Address, port: int, reason: str
    ) -> PassedConnection:
        """Let a connection pass as it is."""
        kind = self._kind(address, port, "tcp", "passed", reason)
        relay = PassedConnection(client, server, self._report.entry(kind), self._relayed)
        self._relays += 1
        self.intake.relays.add(relay)
        self.engine.config.counts["connections/tunnel"] += 1
        self._notes.began(kind)
        return relay

    def _relayed(self, relay: PassedConnection) -> None:
        self._relays -= 1
        self.intake.relays.discard(relay)
        self._notes.ended()

    def refuse(self, address: Address, port: int, why: str, protocol: Transport = "tcp") -> None:
        """Count a connection that is refused, and say so where it is looked for: a replay with one is not right."""
        kind = self._kind(address, port, protocol, "refused", why)
        self.engine.config.counts["connections/refused"] += 1
        if self.engine.answerer is not None:
            self._report.entry(kind)
            self.engine.answerer.note_refused_connection(kind.destination, why, run=self._request.run or None)
        else:
            self._count_and_note(kind)

    def _pass_undecoded(self, address: Address, port: int, reason: str) -> Entry | None:
        """Count a connection whose TLS the engine has taken off, and that speaks something else than HTTP within."""
        if not self.may_pass:
            self.refuse(address, port, reason)
            return None
        kind = self._kind(address, port, "tcp", "passed", reason)
        entry = self._report.entry(kind)
        self._notes.began(kind)
        return entry

    def _report_failure(self, address: Address, port: int, why: str) -> None:
        """Name a TLS handshake that the client gave up. In a replay the call that it was for is left over."""
        self._count_and_note(self._kind(address, port, "tcp", "refused", why))

    def _count_and_note(self, kind: Kind) -> None:
        if self._report.is_new(kind):
            logger.warning("%s was refused: %s", kind.described(), kind.reason)
            self._note(f"{kind.described()} was refused: {kind.reason}")
        self._report.entry(kind)

    def _note_passed(self, reason: str) -> None:
        if self.engine.config.notes_passed_connections:
            self._note(reason)

    def _note(self, reason: str) -> None:
        if self.engine.recorder is not None:
            self.engine.recorder.gap(self._request.run or self.engine.config.owner, reason)

    def _host(self, address: Address) -> str:
        return self._names.name(address) or str(address)

    def _kind(self, address: Address, port: int, protocol: Transport, outcome: Outcome, reason: str) -> Kind:
        return Kind(_shown(self._host(address), port), _shown(str(address), port), protocol, outcome, reason)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
