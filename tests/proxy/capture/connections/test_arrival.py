"""Connections that are neither TLS nor HTTP pass and are noted, or are reset and reported."""

import asyncio
import contextlib
import ssl
import time
from typing import Any

import pytest

from proxy.capture.capture import Capture
from proxy.capture.connections import passed_notes, timing
from proxy.capture.connections.relay import RelayServer
from tests.proxy.capture.conftest import Capturing
from tests.support.h2wire import Peer, StreamBroken
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, serving, upstream_ca, upstream_tls

PASS = {"other_tcp": "pass"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(b"<" + data + b">")
        await writer.drain()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 ready\r\n")
    await _echo(reader, writer)


async def test_another_protocol_passes_and_is_noted_with_its_bytes(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        serving(_echo) as server,
        capturing(recorder, port=server.port, hosts={"db.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("db.test")
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(10) == b"<" + SSL_REQUEST + b">"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        [entry] = await capture.report()
        assert entry["destination"] == f"db.test:{server.port}"
        assert entry["address"] == f"127.18.0.1:{server.port}"
        assert (entry["outcome"], entry["sent"], entry["received"], entry["count"]) == ("passed", 8, 10, 1)
        capture.launcher.close()
        await recorder.until(lambda: bool(recorder.gaps))
        [(run, reason, _)] = recorder.gaps
        assert run == "run-1"
        assert f"db.test:{server.port}" in reason
        assert "8 bytes sent and 10 received" in reason


async def test_a_server_that_speaks_first_is_heard_after_a_moment(capturing: Capturing) -> None:
    async with (
        serving(_greet) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"mail.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        began = time.monotonic()
        reader, writer = await capture.connect("mail.test")
        assert await reader.readline() == b"220 ready\r\n"
        assert time.monotonic() - began < timing.SILENT_FOR + 20
        writer.write(b"EHLO me\r\n")
        assert await reader.readline() == b"<EHLO me\r\n"
        writer.close()


async def test_a_server_that_speaks_before_its_connection_is_known_to_be_made_is_heard(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Capture.connect

    async def known_late(capture: Capture, server: RelayServer, *destination: Any) -> None:
        await connect(capture, server, *destination)
        while not server.first_bytes:  # noqa: ASYNC110 - the loop's own order is what is tested
            await asyncio.sleep(0)

    monkeypatch.setattr(Capture, "connect", known_late)
    async with (
        serving(_greet) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"mail.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("mail.test")
        assert await reader.readline() == b"220 ready\r\n"
        writer.write(b"EHLO me\r\n")
        assert await reader.readline() == b"<EHLO me\r\n"
        writer.close()


async def test_a_client_of_http_that_takes_its_time_is_recorded_all_the_same(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK) as upstream,
        capturing(recorder, port=upstream.port, hosts={"slow.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("slow.test")
        # The server is connected to, and does not speak first.
        await upstream.connected.wait()
        writer.write(b"GET / HTTP/1.1\r\nHost: slow.test\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert recorder.only.begun["url"] == f"http://slow.test:{upstream.port}/"
        assert await capture.report() == []


async def test_a_client_of_http2_whose_server_does_not_wait_for_it_is_recorded_all_the_same(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = MemoryRecorder()
    server_has_spoken = asyncio.Event()
    receive = RelayServer.data_received

    def note(server: RelayServer, data: bytes) -> None:
        receive(server, data)
        server_has_spoken.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Peer(reader, writer, client=False)
        with contextlib.suppress(StreamBroken):
            stream, _ = await server.request()
            server.respond(stream, [(":status", "200")], [b"ok"])
            await server.request()

    monkeypatch.setattr(RelayServer, "data_received", note)
    async with (
        serving(answer) as upstream,
        capturing(recorder, port=upstream.port, hosts={"slow.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("slow.test")
        await server_has_spoken.wait()
        client = Peer(reader, writer, client=True)
        received = await client.answer(client.ask(f"slow.test:{upstream.port}", "/"))
        assert received.body == b"ok"
        writer.close()
        assert recorder.only.begun["url"] == f"http://slow.test:{upstream.port}/"
        assert await capture.report() == []


async def test_a_client_that_only_closes_its_side_is_passed_on(capturing: Capturing) -> None:
    async def daytime(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(b"noon")

    async with (
        serving(daytime) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"time.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("time.test")
        writer.write_eof()
        assert await reader.read() == b"noon"
        writer.close()


async def test_much_passes_whole_in_both_directions(capturing: Capturing) -> None:
    much = bytes(range(256)) * 16384

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async with (
        serving(mirror) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"db.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("db.test")

        async def send() -> None:
            writer.write(much)
            await writer.drain()
            writer.write_eof()

        assert (await asyncio.gather(reader.read(-1), send()))[0] == much
        writer.close()
        [entry] = await capture.report()
        assert entry["sent"] == entry["received"] == len(much)


async def test_a_destination_that_does_not_answer_fails_at_once_and_is_named(capturing: Capturing) -> None:
    async with capturing(MemoryRecorder(), hosts={"down.test": "127.0.0.1"}, message=PASS) as capture:
        reader, writer = await capture.connect("down.test")
        writer.write(SSL_REQUEST)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        [entry] = await capture.report()
        assert entry["outcome"] == "refused"
        assert "refused the connection" in entry["reason"]


async def test_a_replay_resets_a_silent_client_and_contacts_nobody(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "REFUSED_AFTER", 0.05)
    async with (
        serving(_greet) as server,
        capturing(
            None, ScriptedAnswerer(), port=server.port, hosts={"mail.test": "127.0.0.1"}, message=PASS
        ) as capture,
    ):
        reader, writer = await capture.connect("mail.test")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        [entry] = await capture.report()
        assert entry["outcome"] == "refused"
        assert server.connections == 0


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_an_unused_connection_to_a_recorded_host_is_no_refusal(
    capturing: Capturing, *, is_recorded: bool
) -> None:
    answerer = ScriptedAnswerer(alpn=("h2", "http/1.1") if is_recorded else None)
    async with capturing(None, answerer, hosts={"api.test": "127.0.0.1"}, message=PASS) as capture:
        reader, writer = await capture.connect("api.test")
        writer.write_eof()
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            assert not is_recorded
        writer.close()
        assert [entry["reason"] for entry in await capture.report()] == ([] if is_recorded else ["it said nothing"])


async def test_an_unused_connection_to_localhost_is_no_refusal_if_its_requests_are_recorded(
    capturing: Capturing,
) -> None:
    """A request names `localhost`, which is not resolved by a DNS server, and its connection only an address."""
    answerer = ScriptedAnswerer(alpn=("http/1.1",))
    async with capturing(None, answerer, message=PASS) as capture:
        answerer.recorded = f"localhost:{capture.port}"
        reader, writer = await asyncio.open_connection("127.18.0.1", capture.port)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert await capture.report() == []


async def test_a_connection_on_which_nothing_is_said_is_no_gap(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node's `fetch` opens one in place of a connection that it aborted; browsers open them in advance."""
    monkeypatch.setattr(passed_notes, "NOTE_DELAY", 0.0)
    recorder = MemoryRecorder()
    async with (
        serving(_echo) as server,
        capturing(
            recorder, port=server.port, hosts={"api.test": "127.0.0.1", "db.test": "127.0.0.1"}, message=PASS
        ) as capture,
    ):
        await capture.address("api.test")
        reader, writer = await capture.connect("api.test")
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        reader, writer = await capture.connect("db.test")
        writer.write(SSL_REQUEST)
        writer.write_eof()
        assert len(await reader.read()) == 10
        writer.close()
        await recorder.until(lambda: bool(recorder.gaps))
        capture.launcher.close()
    assert ["db.test" in reason for _, reason, _ in recorder.gaps] == [True]


async def test_bytes_after_a_long_silence_are_noted_while_the_connection_is_open(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_notes, "OPEN_NOTE_DELAY", 0.01)
    looked, noted = asyncio.Event(), asyncio.Event()
    note_new = passed_notes.PassedNotes._note_new

    def watched_note_new(self: passed_notes.PassedNotes) -> None:
        note_new(self)
        looked.set()

    async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        await looked.wait()
        writer.write(b"late")
        await noted.wait()

    monkeypatch.setattr(passed_notes.PassedNotes, "_note_new", watched_note_new)
    recorder = MemoryRecorder()
    async with (
        serving(answer_late) as server,
        capturing(recorder, port=server.port, hosts={"db.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("db.test")
        writer.write_eof()
        assert await reader.readexactly(4) == b"late"
        await recorder.until(lambda: bool(recorder.gaps))
        noted.set()
        assert await reader.read() == b""
        writer.close()
    assert ["0 bytes sent and 4 received" in reason for _, reason, _ in recorder.gaps] == [True]


async def test_what_allow_local_names_passes_in_a_replay(capturing: Capturing) -> None:
    async with serving(_echo) as server:
        message = {"allow_local": [["db.test", server.port]]}
        async with capturing(
            None, ScriptedAnswerer(), port=server.port, hosts={"db.test": "127.0.0.1"}, message=message
        ) as capture:
            reader, writer = await capture.connect("db.test")
            writer.write(SSL_REQUEST)
            assert await reader.readexactly(10) == b"<" + SSL_REQUEST + b">"
            writer.close()
            [entry] = await capture.report()
            assert entry["outcome"] == "passed"


async def test_a_host_on_the_tunnel_list_passes_undecrypted(capturing: Capturing) -> None:
    hello = b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03" + bytes(32) + b"\0\0\x02\x13\x01\x01\0"
    async with (
        serving(_echo) as server,
        capturing(
            MemoryRecorder(),
            port=server.port,
            hosts={"pinned.test": "127.0.0.1"},
            tunnel=("pinned.test",),
            message=PASS,
        ) as capture,
    ):
        reader, writer = await capture.connect("pinned.test")
        writer.write(hello)
        assert await reader.readexactly(len(hello) + 2) == b"<" + hello + b">"
        writer.close()
        [entry] = await capture.report()
        assert entry["reason"] == "pinned.test is on the tunnel list"


async def test_a_client_that_does_not_trust_us_is_named(capturing: Capturing) -> None:
    recorder = MemoryRecorder()
    async with capturing(recorder, hosts={"pinning.test": "127.0.0.1"}, message=PASS) as capture:
        _, writer = await capture.connect("pinning.test")
        with pytest.raises(ssl.SSLCertVerificationError):
            await writer.start_tls(ssl.create_default_context(), server_hostname="pinning.test")
        await recorder.until(lambda: bool(recorder.gaps))
        [entry] = await capture.report()
        assert entry["destination"] == f"pinning.test:{capture.port}"
        assert "does not trust" in entry["reason"]


async def test_a_slow_destination_is_connected_to_once(capturing: Capturing, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, attempts = Capture.connect, 0

    async def connect_late(capture: Capture, server: RelayServer, *destination: Any) -> None:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(2 * timing.SILENT_FOR)  # as long as a client's silence would have led to a connection
        await connect(capture, server, *destination)

    monkeypatch.setattr(Capture, "connect", connect_late)
    async with (
        serving(_echo) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"db.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("db.test")
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(10) == b"<" + SSL_REQUEST + b">"
        writer.close()
    assert attempts == 1


@pytest.mark.parametrize("speaks", ["by ALPN", "at an odd port"])
async def test_what_is_not_http_within_tls_passes(capturing: Capturing, speaks: str) -> None:
    tls = upstream_tls("db.test", alpn=("postgresql",) if speaks == "by ALPN" else ())
    async with (
        serving(_echo, tls=tls) as server,
        capturing(MemoryRecorder(), port=server.port, hosts={"db.test": "127.0.0.1"}, message=PASS) as capture,
    ):
        reader, writer = await capture.connect("db.test")
        if speaks == "by ALPN":
            trust = ssl.create_default_context()
            upstream_ca().configure_trust(trust)
            trust.set_alpn_protocols(["postgresql"])
        else:
            trust = capture.worker.tls
        await writer.start_tls(trust, server_hostname="db.test")
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(10) == b"<" + SSL_REQUEST + b">"
        writer.close()
        [entry] = await capture.report()
        assert (entry["outcome"], entry["reason"]) == ("passed", "the protocol within TLS is not HTTP")
        assert entry["sent"] >= 8
        assert entry["received"] >= 10


async def test_a_replay_refuses_what_is_not_http_within_tls(capturing: Capturing) -> None:
    async with capturing(None, ScriptedAnswerer(), message=PASS) as capture:
        reader, writer = await capture.connect("db.test")
        await writer.start_tls(capture.worker.tls, server_hostname="db.test")
        writer.write(SSL_REQUEST)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert await reader.read() == b""
        [entry] = await capture.report()
        assert (entry["outcome"], entry["reason"]) == ("refused", "the protocol within TLS is not HTTP")
