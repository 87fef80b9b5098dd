"""Which datagrams an ICMP message says were refused."""

import socket
import struct

import pytest

from proxy.capture.namespace.refusals import refused_ipv4_destination, refused_ipv6_destination

UDP, UDPLITE, TCP = socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE, socket.IPPROTO_TCP


def ipv4_message(source_port: int, port: int, protocol: int = UDP, *, code: int = 3) -> bytes:
    """A packet with an ICMP message about a datagram to 192.0.2.7."""
    datagram = struct.pack(">HHHH", source_port, port, 8, 0)
    addresses = socket.inet_aton("10.9.9.9") + socket.inet_aton("192.0.2.7")
    refused = struct.pack(">BBHHHBBH", 0x45, 0, 28, 0, 0, 64, protocol, 0) + addresses + datagram
    return (
        struct.pack(">BBHHHBBH8x", 0x45, 0, 56, 0, 0, 64, socket.IPPROTO_ICMP, 0)
        + bytes([3, code])
        + bytes(6)
        + refused
    )


def ipv6_message(source_port: int, port: int, protocol: int = UDP, *, code: int = 4) -> bytes:
    """An ICMPv6 message about a datagram to 2001:db8::7."""
    addresses = socket.inet_pton(socket.AF_INET6, "2001:db8::9") + socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    refused = struct.pack(">IHBB", 6 << 28, 8, protocol, 64) + addresses + struct.pack(">HHHH", source_port, port, 8, 0)
    return bytes([1, code]) + bytes(6) + refused


@pytest.mark.parametrize("protocol", [UDP, UDPLITE])
def test_a_refused_datagram_is_named(protocol: int) -> None:
    assert refused_ipv4_destination(ipv4_message(40000, 123, protocol)) == ("192.0.2.7", 123)
    assert refused_ipv6_destination(ipv6_message(40000, 123, protocol)) == ("2001:db8::7", 123)


def test_the_answer_to_a_name_query_whose_client_is_gone_is_no_datagram_of_the_command() -> None:
    assert refused_ipv4_destination(ipv4_message(53, 40000)) is None
    assert refused_ipv6_destination(ipv6_message(53, 40000)) is None


def test_other_messages_name_none() -> None:
    assert refused_ipv4_destination(ipv4_message(40000, 123, TCP)) is None
    assert refused_ipv4_destination(ipv4_message(40000, 123, code=1)) is None
    assert refused_ipv6_destination(ipv6_message(40000, 123, TCP)) is None
    assert refused_ipv6_destination(ipv6_message(40000, 123, code=0)) is None
    for size in range(len(ipv4_message(1, 2)) - 5):
        assert refused_ipv4_destination(ipv4_message(1, 2)[:size]) is None
    for size in range(len(ipv6_message(1, 2)) - 5):
        assert refused_ipv6_destination(ipv6_message(1, 2)[:size]) is None
