"""DNS for a captured command."""

import asyncio
import ipaddress
from pathlib import Path

import pytest

from proxy.capture.dns import message as dns
from proxy.capture.dns import resolver
from proxy.capture.dns.resolver import Resolution, Resolver
from proxy.capture.dns.synthetic_addresses import NameTable
from tests.proxy.capture.conftest import Capturing
from tests.support.wire import MemoryRecorder, ScriptedAnswerer


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"\x12\x34\x01\x00\0\1\0\0\0\0\0\0" + labels + b"\0" + kind.to_bytes(2) + b"\0\1"


def knowing(monkeypatch: pytest.MonkeyPatch, found: Resolution) -> Resolver:
    monkeypatch.setattr(resolver, "host_resolution", lambda _: found)
    return Resolver(NameTable(), asks_host=True, every_name=False)


def outcome(reply: bytes | None) -> tuple[int, int]:
    """Return the response code and the number of records."""
    assert reply is not None
    return reply[3] & 15, int.from_bytes(reply[6:8])


def addresses(*texts: str) -> Resolution:
    return Resolution(dns.NO_ERROR, tuple(ipaddress.ip_address(text) for text in texts))


@pytest.mark.parametrize(
    ("found", "a", "aaaa"),
    [
        (addresses("192.0.2.1"), (0, 1), (0, 0)),
        (addresses("2001:db8::1"), (0, 0), (0, 1)),
        (addresses("192.0.2.1", "2001:db8::1"), (0, 1), (0, 1)),
        (addresses(), (0, 0), (0, 0)),
        (Resolution(dns.NO_SUCH_NAME, None), (3, 0), (3, 0)),
        (Resolution(dns.SERVER_FAILURE, None), (2, 0), (2, 0)),
    ],
)
async def test_a_recording_answers_as_the_host_does(
    monkeypatch: pytest.MonkeyPatch, found: Resolution, a: tuple[int, int], aaaa: tuple[int, int]
) -> None:
    asked = knowing(monkeypatch, found)
    assert outcome(await asked.answer(query("some.test", dns.A))) == a
    assert outcome(await asked.answer(query("some.test", dns.AAAA))) == aaaa


async def test_a_name_of_loopback_keeps_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reaches what it listens on itself."""
    asked = knowing(monkeypatch, addresses("127.0.1.1"))
    reply = await asked.answer(query("this-host", dns.A))
    assert reply is not None
    assert reply.endswith(bytes([127, 0, 1, 1]))
    assert (await asked.answer(query("localhost", dns.A)) or b"").endswith(bytes([127, 0, 0, 1]))


async def test_what_leads_past_us_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = knowing(monkeypatch, addresses("192.0.2.1"))
    monkeypatch.setattr(resolver, "name_servers", lambda: pytest.fail("it was asked of a name server"))
    for kind in (dns.HTTPS, dns.SVCB):
        assert outcome(await asked.answer(query("some.test", kind))) == (0, 0)


async def test_an_address_of_ours_gives_its_name_back(monkeypatch: pytest.MonkeyPatch) -> None:
    names = NameTable()
    asked = Resolver(names, asks_host=False, every_name=True)
    address = names.ipv4("some.test")
    reply = await asked.answer(query(address.reverse_pointer, dns.PTR))
    assert b"\4some\4test\0" in (reply or b"")


async def test_a_replay_asks_nobody_and_every_name_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "host_resolution", lambda _: pytest.fail("the host was asked"))
    monkeypatch.setattr(resolver, "name_servers", lambda: pytest.fail("a name server was asked"))
    asked = Resolver(NameTable(), asks_host=False, every_name=True)
    assert outcome(await asked.answer(query("gone.test", dns.A))) == (0, 1)
    assert outcome(await asked.answer(query("gone.test", dns.AAAA))) == (0, 1)
    assert outcome(await asked.answer(query("gone.test", 16))) == (0, 0)  # TXT


async def test_a_name_that_did_not_resolve_in_the_recording_does_not_resolve_in_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = knowing(monkeypatch, Resolution(dns.NO_SUCH_NAME, None))
    for name in ("Gone.test", "late.test", "empty.test"):
        await recorded.answer(query(name, dns.A))
    monkeypatch.setattr(resolver, "CACHE_SECONDS", 0)
    monkeypatch.setattr(resolver, "host_resolution", lambda _: addresses("192.0.2.1"))
    await recorded.answer(query("late.test", dns.A))
    monkeypatch.setattr(resolver, "host_resolution", lambda _: addresses())
    await recorded.answer(query("late.test", dns.A))
    names = recorded.unresolved_names()
    assert names == ["gone.test", "empty.test"]
    monkeypatch.setattr(resolver, "host_resolution", lambda _: Resolution(dns.NO_SUCH_NAME, None))
    for asks_host in (False, True):
        replayed = Resolver(NameTable(), asks_host=asks_host, every_name=True, unresolved_in_recording=names)
        assert outcome(await replayed.answer(query("gone.TEST", dns.A))) == (3, 0)
        assert outcome(await replayed.answer(query("late.test", dns.A))) == (0, 1)


async def test_other_records_are_asked_of_the_host_s_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = knowing(monkeypatch, addresses("192.0.2.1"))
    monkeypatch.setattr(resolver, "name_servers", lambda: ["192.0.2.53"])

    async def by_datagram(server: str, data: bytes) -> bytes:
        return server.encode() + data[:2]

    monkeypatch.setattr(resolver, "_query_by_datagram", by_datagram)
    assert await asked.answer(query("some.test", 16)) == b"192.0.2.53\x12\x34"


@pytest.mark.parametrize("data", [b"", b"\0" * 11, query("a.test", 1)[:-1], b"\x12\x34\x81" + bytes(20)])
async def test_what_is_no_query_breaks_nothing(data: bytes) -> None:
    reply = await Resolver(NameTable(), asks_host=False, every_name=True).answer(data)
    assert reply is None or reply[3] & 15 == dns.NOT_IMPLEMENTED


def test_name_servers_are_read_from_resolv_conf(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text("# nameserver 192.0.2.9\nsearch a.test\nnameserver 192.0.2.1\n nameserver fe80::1%eth0\n")
    assert resolver.name_servers(path) == ["192.0.2.1", "fe80::1%eth0"]
    assert resolver.name_servers(tmp_path / "none") == []


async def test_names_are_answered_from_the_address_that_was_asked(capturing: Capturing) -> None:
    """The client's socket is connected to 127.0.0.53, so it ignores answers from other addresses."""
    async with capturing(MemoryRecorder(), hosts={"known.test": "127.0.0.1"}) as capture:
        assert (await capture.address("known.test")).startswith("127.18.")
        assert outcome(await capture.query("unknown.test", dns.A)) == (3, 0)


async def test_names_are_answered_over_tcp_as_well(capturing: Capturing, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxy.capture.connections import arrival

    async with capturing(None, ScriptedAnswerer()) as capture:
        monkeypatch.setattr(arrival, "NAMES_PORT", capture.port)
        reader, writer = await asyncio.open_connection(await capture.address("some.test"), capture.port)
        message = query("other.test", dns.A)
        writer.write((len(message).to_bytes(2) + message) * 2)
        for _ in range(2):
            reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            assert outcome(reply) == (0, 1)
        writer.close()
