"""One capture: the sockets of a captured command, its names, and the handling of its connections."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from proxy.capture.connections import timing
from proxy.capture.connections.connection import CapturedConnection, Enter, EnterProxy
from proxy.capture.connections.destination import CapturedDestination
from proxy.capture.connections.original_destination import Address, Source, plain_address
from proxy.capture.connections.passed_notes import PassedNotes
from proxy.capture.connections.relay import PassedConnection, RelayServer
from proxy.capture.control import CaptureRequest
from proxy.capture.control_path import LOAD_TIMEOUT
from proxy.capture.dns import datagrams
from proxy.capture.dns.resolver import Resolver
from proxy.capture.dns.synthetic_addresses import NameTable
from proxy.capture.dns.tcp_stream import NameStream
from proxy.capture.report import ConnectionKind, ConnectionReport, Entry, Outcome, Transport
from proxy.errors import Failure
from proxy.wire.config import Origin
from proxy.wire.destinations import is_own_machine
from proxy.wire.engine_state import EngineState
from proxy.wire.listener import Listener

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 4096
"""Connections of one capture whose protocol is not yet known, or that pass undecoded."""

MAX_QUERIES: Final = 256
"""DNS queries of one capture that are being answered at a time."""


class UndecidedConnection(Protocol):
    """A connection whose protocol is not yet known."""

    def abort(self) -> None:
        """Close it at once."""


class CaptureContext(Protocol):
    """What the captures of one proxy worker share (implemented by `Intake`)."""

    engine: EngineState
    enter: Enter
    enter_proxy: EnterProxy
    relays: set[PassedConnection]

    def open_connections(self) -> int:
        """Count the connections that count against the worker's limit of open files."""

    def make_arrival(self, capture: "Capture", source: Source) -> asyncio.Protocol:
        """Create the protocol for the next connection of this capture, from such a socket."""

    def forget_capture(self, capture: "Capture") -> None:
        """Forget a capture that has ended."""


class Capture:
    """The sockets, names and connections of one captured command."""

    def __init__(self, intake: CaptureContext, request: CaptureRequest, *, is_local: bool = True) -> None:
        self.intake = intake
        self.engine = intake.engine
        self.is_local = is_local
        """Whether the connections are those of the user's own command. Otherwise the rules for other clients apply."""

        self.open: set[UndecidedConnection] = set()
        self._request = request
        self._credentials = (request.run, request.token) if is_local else None
        self._names = NameTable()
        self._resolver = Resolver(
            self._names,
            asks_host=not self.engine.is_offline,
            every_name=self.engine.answerer is not None,
            is_configured=self._is_configured,
            unresolved_in_recording=request.unresolved_names,
        )
        self._report = ConnectionReport()
        self._notes = PassedNotes(self._report, self._note_passed)
        self._relays = 0
        self._listeners: list[Listener] = []
        self._endpoints: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def may_pass(self) -> bool:
        """Whether other protocols than TLS and HTTP pass at the moment. For a test suite this changes with each test."""
        return self._request.passes_other_tcp and not self.engine.is_offline

    def _is_configured(self, name: str) -> bool:
        """Whether a name needs no address from the host: it has another upstream, or an upstream proxy resolves it."""
        return self.engine.proxy is not None or self.engine.has_upstream(name)

    async def start(self) -> None:
        """Accept on every socket."""
        loop = asyncio.get_running_loop()
        for one in self._request.sockets:
            one.endpoint.setblocking(False)
            if one.kind == "tcp":
                accepted = partial(self.intake.make_arrival, self, "redirected" if one.is_redirected else "local")
                listener = Listener(self.intake.open_connections, accepted)
                listener.accept_on(one.endpoint)
                self._listeners.append(listener)
                continue
            self._endpoints.append(one.endpoint)
            datagrams.ask_for_destinations(one.endpoint)
            if one.kind == "dns":
                loop.add_reader(one.endpoint.fileno(), self._receive_queries, one.endpoint)

    async def end(self) -> None:
        """Stop accepting. Connections that were handed over continue until one side closes them."""
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
        self.intake.forget_capture(self)

    def report(self) -> Mapping[str, Any]:
        """Return the connections that passed or were refused so far, and the names that did not resolve."""
        return {"connections": self._report.as_json(), "unresolved_names": self._resolver.unresolved_names()}

    async def recorded_ports(self) -> Sequence[int]:
        """Return the ports of this machine to which the recording of a replayed run has requests.

        Nothing has to listen there in the replay. Empty if the recording cannot be loaded in time: the command runs all the same.
        """
        answerer = self.engine.answerer
        if answerer is None or self.may_pass:
            return ()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT):
                authorities = await answerer.recorded_authorities(self._full_run_name())
        except (Failure, TimeoutError):
            return ()  # the answer to the first request says why
        return sorted({port for authority in authorities for port in _own_ports(authority)})

    # DNS

    def _receive_queries(self, endpoint: socket.socket) -> None:
        for _ in range(64):
            try:
                datagram = datagrams.receive_datagram(endpoint)
            except BlockingIOError:
                return
            except OSError:
                continue
            if len(self._tasks) < MAX_QUERIES:
                self.spawn(self._answer_query(endpoint, datagram))

    async def _answer_query(self, endpoint: socket.socket, datagram: datagrams.Datagram) -> None:
        self._resolver.asks_host = not self.engine.is_offline
        reply = await self._resolver.answer(datagram.data)
        if reply is not None:
            with contextlib.suppress(OSError):
                datagrams.send_answer(endpoint, datagram, reply)

    def answer_names(self, transport: asyncio.Transport) -> None:
        """Serve DNS on a connection."""
        NameStream(self._resolver, self.spawn).begin(transport)

    # Used by arrivals

    def is_loop(self, transport: asyncio.Transport, address: Address, port: int) -> bool:
        """Whether this is a connection of the worker itself, redirected back to it. Known only when it is established."""
        peer = transport.get_extra_info("peername")
        return not self.is_local and self.engine.destinations.recent_connections.is_recent(
            peer[:2], (str(address), port)
        )

    async def find_owner(self, transport: asyncio.Transport, address: Address, port: int) -> None:
        """Find the process behind a redirected connection, to attribute its calls to a run."""
        peer = transport.get_extra_info("peername")
        is_near = is_own_machine(plain_address(peer[0]))
        if is_near and self.engine.owners.can_find(peer, (peer[0], port)):
            await self.engine.owners.find(peer[:2], (str(address), port))

    def refusal_reason(self) -> str | None:
        """Explain why no more connections are served; None if they are."""
        if len(self.open) + self._relays >= MAX_CONNECTIONS:
            return f"more than {MAX_CONNECTIONS} connections of the command are open"
        return None

    def is_own(self, address: Address, port: int) -> bool:
        """Whether this is the proxy worker's own address."""
        host, own = self.engine.destinations.own_addresses[-1]
        return port == own and self.engine.destinations.is_own(address, port) and bool(host)

    def is_allowed(self, address: Address, port: int) -> bool:
        """Whether --allow-local or the configuration allows connections to this address."""
        hosts = self._host_names(address)
        return any((host, port) in self._request.allow_local for host in hosts) or self._is_let_pass(address, port)

    def _is_let_pass(self, address: Address, port: int) -> bool:
        """Whether the configuration lets this address pass in every mode."""
        lets = self.engine.config.can_bypass(self._host_name(address), is_local=is_own_machine(address))
        return lets and not self.is_own(address, port) and not self.is_overridden(address, port)

    def is_overridden(self, address: Address, port: int) -> bool:
        """Whether the configuration replaces this origin by another, so that it may not exist."""
        host = self._host_name(address)
        return any(self.engine.is_overridden(Origin(scheme, host, port)) for scheme in ("https", "http"))

    def is_recorded(self, address: Address, port: int) -> bool:
        """Whether the recording that answers has requests to this origin."""
        answerer = self.engine.answerer
        if answerer is None:
            return False
        origins = (Origin(scheme, host, port) for host in self._host_names(address) for scheme in ("https", "http"))
        return any(answerer.recorded_protocols(origin.authority) is not None for origin in origins)

    def silence_limit(self, address: Address, port: int) -> float:
        """Return the seconds that a client may be silent if its server may not be contacted."""
        head = self.engine.config.limits.head
        is_known = self.is_recorded(address, port) or self.is_overridden(address, port)
        return head if is_known else timing.silence_before_refusing(port, head)

    def tunnel_host(self, address: Address, name: str | None) -> str | None:
        """Return the host if it is on the tunnel list. The name in a handshake counts only if the client resolved none."""
        host = self._names.name_of_address(address) or name or str(address)
        return host if self.engine.is_tunnelled(host) else None

    async def connect(self, server: RelayServer, address: Address, port: int) -> None:
        """Connect to the destination. Raises Problem."""
        loop, destinations = asyncio.get_running_loop(), self.engine.destinations

        async def open_connection(text: str) -> None:
            transport, _ = await loop.create_connection(lambda: server, text, port)
            destinations.recent_connections.remember(transport)

        host = self._host_name(address)
        if not self.is_local and (problem := destinations.name_refusal(host, port)) is not None:
            raise problem
        await destinations.connect_with(host, port, open_connection, is_local=self.is_local)

    # Handling of a connection

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task until the capture ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hand_to_engine(self, transport: asyncio.Transport, address: Address, port: int, data: bytes) -> None:
        """Hand a connection over to the wire engine, with the bytes that were already read."""
        name = self._names.name_of_address(address)
        captured = CapturedDestination(
            host=name or str(address),
            port=port,
            is_named=name is not None,
            is_local=self.is_local,
            report_failure=partial(self._report_failure, address, port),
            pass_undecoded=partial(self._pass_undecoded, address, port),
        )
        owner = self.engine.owners.known_owner(transport.get_extra_info("peername"))
        self.intake.enter(
            CapturedConnection(
                transport=transport, captured=captured, owner=owner, credentials=self._credentials, data=data
            )
        )

    def relay(
        self, client: asyncio.Transport, server: asyncio.Transport, address: Address, port: int, reason: str
    ) -> PassedConnection:
        """Let a connection pass undecoded."""
        kind = self._report_kind(address, port, "tcp", "passed", reason)
        relay = PassedConnection(client, server, self._report.add_connection(kind), self._end_relay)
        self._relays += 1
        self.intake.relays.add(relay)
        self.engine.config.counts["connections/tunnel"] += 1
        self._notes.add_connection(kind)
        return relay

    def _end_relay(self, relay: PassedConnection) -> None:
        self._relays -= 1
        self.intake.relays.discard(relay)
        self._notes.end_connection()

    def refuse(self, address: Address, port: int, why: str, protocol: Transport = "tcp") -> None:
        """Count a refused connection, and tell the replay, whose verdict it changes, or note it in the run."""
        kind = self._report_kind(address, port, protocol, "refused", why)
        self.engine.config.counts["connections/refused"] += 1
        if self.engine.answerer is not None:
            self._report.add_connection(kind)
            self.engine.answerer.note_refused_connection(
                kind.destination, why, run=self._full_run_name() if self._request.run else None
            )
        else:
            self._count_and_note(kind)

    def _pass_undecoded(self, address: Address, port: int, reason: str) -> Entry | None:
        """Count a connection whose TLS the engine has decrypted, and that is not HTTP within."""
        if not self.may_pass:
            self.refuse(address, port, reason)
            return None
        kind = self._report_kind(address, port, "tcp", "passed", reason)
        entry = self._report.add_connection(kind)
        self._notes.add_connection(kind)
        return entry

    def _report_failure(self, address: Address, port: int, why: str) -> None:
        """Report a TLS handshake that the client gave up."""
        self._count_and_note(self._report_kind(address, port, "tcp", "refused", why))

    def _count_and_note(self, kind: ConnectionKind) -> None:
        if self._report.is_new(kind):
            logger.warning("%s was refused: %s", kind.describe(), kind.reason)
            self._note(f"{kind.describe()} was refused: {kind.reason}")
        self._report.add_connection(kind)

    def _note_passed(self, reason: str) -> None:
        if self.engine.config.has_bypass_gaps:
            self._note(reason)

    def _note(self, reason: str) -> None:
        if self.engine.recorder is not None:
            self.engine.recorder.record_gap(self._full_run_name(), reason)

    def _full_run_name(self) -> str:
        """Return the full name of the capture's run: the one that the launcher named, else that of the worker's own clients."""
        request, config = self._request, self.engine.config
        return config.access.full_run_name(request.run or config.owner, (request.run, request.token))

    def _host_names(self, address: Address) -> set[str]:
        """Return the names under which a request to this address may be known."""
        return {str(address), self._host_name(address)} | ({"localhost"} if address.is_loopback else set())

    def _host_name(self, address: Address) -> str:
        return self._names.name_of_address(address) or str(address)

    def _report_kind(
        self, address: Address, port: int, protocol: Transport, outcome: Outcome, reason: str
    ) -> ConnectionKind:
        return ConnectionKind(
            _endpoint_text(self._host_name(address), port),
            _endpoint_text(str(address), port),
            protocol,
            outcome,
            reason,
        )


def _endpoint_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_ports(authority: str) -> Sequence[int]:
    """Return the ports of this machine that an authority names. Without a port it may be either scheme's default."""
    parts = urlsplit(f"//{authority}")
    try:
        host = parts.hostname or ""
        is_own = host == "localhost" or is_own_machine(ip_address(host))
    except ValueError:
        return ()  # a name, which has an address of its own in the command's network
    return () if not is_own else (80, 443) if parts.port is None else (parts.port,)
