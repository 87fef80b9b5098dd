"""An agent that sends requests through a worker and records, byte by byte, what it receives and how it ends."""

import asyncio
import base64
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self

import h11

from tests.drills.ledger import NAME, Ledger, SeenRequest
from tests.drills.up_processes import until
from tests.drills.upstream import HOST, expected_body


class AgentGroup:
    """Agents that write to one ledger. At the end of the block their connections are closed."""

    def __init__(self, port: int, *, ca: Path | None = None) -> None:
        self.ledger = Ledger()
        self._port = port
        self._trust = ssl.create_default_context(cafile=str(ca)) if ca else None
        self._agents: list[Agent] = []

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the runs of all agents."""
        return tuple(dict.fromkeys(agent.run for agent in self._agents))

    def agent(self, name: str, run: str | None = None) -> "Agent":
        """Add an agent. Its run has the agent's name unless `run` is given."""
        agent = Agent(self.ledger, self._port, name, run or name, self._trust)
        self._agents.append(agent)
        return agent

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.leave()
        # A transport that was closed lets go of its socket in the loop's next turn.
        await asyncio.sleep(0)


class Agent:
    """One agent of one run. It sends one request after another, over one connection while that lasts."""

    def __init__(self, ledger: Ledger, port: int, name: str, run: str, trust: ssl.SSLContext | None) -> None:
        self.name = name
        self.run = run
        self.port = port
        self._ledger = ledger
        self._trust = trust
        self._serial = 0
        self._h11 = h11.Connection(h11.CLIENT)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, target: str, *, body: bytes = b"", enough: Callable[[SeenRequest], bool] | None = None
    ) -> SeenRequest:
        """Send a request for `target` and read the response, to its end or until `enough` is true; then close the
        connection.

        Raises ConnectionRefusedError if nothing listens; the ledger does not contain such a request.
        """
        seen = SeenRequest(name=f"{self.name}.{self._serial}", run=self.run, expected=b"")
        self._serial += 1
        seen.expected = expected_body(target, seen.name)
        reader, writer = self._streams or await self._connect()
        try:
            writer.write(self._request(target, seen.name, body))
            await self._read(reader, seen, enough)
        except (OSError, asyncio.IncompleteReadError, h11.RemoteProtocolError):
            seen.end = "cut"
        finally:
            self._ledger.seen.append(seen)
            if seen.end != "whole" or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                self.leave()
            else:
                self._h11.start_next_cycle()
        return seen

    def leave(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams:
            self._streams[1].close()
        self._streams = None
        self._h11 = h11.Connection(h11.CLIENT)

    async def ask_until_reachable(self, target: str) -> SeenRequest:
        """Repeat a request until something listens."""

        async def ask_if_reachable() -> SeenRequest | None:
            try:
                return await self.ask(target)
            except ConnectionRefusedError:
                return None

        return await until(ask_if_reachable)

    async def ask_repeatedly(self, stop: asyncio.Event, *targets: str, pause: float = 0) -> None:
        """Send requests for these targets in a cycle until `stop` is set, with a pause after each."""
        for target in itertools.cycle(targets):
            if stop.is_set():
                return
            await self.ask(target)
            await asyncio.sleep(pause)

    async def ask_until_cut(self, *targets: str) -> None:
        """Send requests for these targets in a cycle until a response breaks off."""
        for target in itertools.cycle(targets):
            if (await self.ask_until_reachable(target)).end != "whole":
                return

    async def ask_until_refused(self, *targets: str) -> None:
        """Send requests for these targets in a cycle until nothing listens."""
        try:
            await self.ask_repeatedly(asyncio.Event(), *targets)
        except ConnectionRefusedError:
            return

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        if self._trust:
            head = f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n{self._credentials}\r\n"
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
            await writer.start_tls(self._trust, server_hostname=HOST)
        return reader, writer

    @property
    def _credentials(self) -> str:
        return f"Proxy-Authorization: Basic {base64.b64encode(f'{self.run}:x'.encode()).decode()}\r\n"

    def _request(self, target: str, name: str, body: bytes) -> bytes:
        headers = [("Host", HOST), (NAME, name)]
        if not self._trust:
            target = f"http://{HOST}{target}"
            headers.append(("Proxy-Authorization", self._credentials.partition(": ")[2].strip()))
        if body:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        asked = h11.Request(method="POST" if body else "GET", target=target, headers=headers)
        events = (asked, *([h11.Data(data=body)] if body else []), h11.EndOfMessage())
        return b"".join(self._h11.send(event) or b"" for event in events)

    async def _read(
        self, reader: asyncio.StreamReader, seen: SeenRequest, enough: Callable[[SeenRequest], bool] | None
    ) -> None:
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._h11.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Response):
                seen.status = event.status_code
                seen.headers = tuple((name.decode(), value.decode("latin-1")) for name, value in event.headers)
                seen.refused = ("content-type", "application/problem+json") in seen.headers
            elif isinstance(event, h11.Data):
                seen.body += event.data
            elif isinstance(event, h11.EndOfMessage):
                seen.end = "whole"
                return
            elif isinstance(event, h11.ConnectionClosed):
                return
            if enough is not None and enough(seen):
                seen.end = "left"
                return
