"""Send one request by one of Python's ways, `ask.py WAY URL`, and print the answer. No way reads a proxy variable."""

import asyncio
import http.client
import os
import secrets
import socket
import ssl
import struct
import sys
from urllib.parse import urlsplit


def by_requests(url: str) -> str:
    import requests

    with requests.Session() as session:
        session.trust_env = False
        return session.get(url, timeout=60).text


def by_httpx_transport(url: str) -> str:
    import httpx

    with httpx.Client(transport=httpx.HTTPTransport(), trust_env=False) as client:
        return client.get(url).text


def by_urllib3(url: str) -> str:
    import urllib3

    return urllib3.PoolManager().request("GET", url, timeout=60).data.decode()


def by_http_client(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", parts.path)
    return connection.getresponse().read().decode()


def by_aiohttp(url: str) -> str:
    import aiohttp

    async def ask() -> str:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()

    return asyncio.run(ask())


def by_ssl_socket(url: str) -> str:
    parts = urlsplit(url)
    return over(socket.create_connection((parts.hostname, 443), 20), url)


def over(raw: socket.socket, url: str) -> str:
    parts = urlsplit(url)
    with raw, ssl.create_default_context().wrap_socket(raw, server_hostname=parts.hostname) as tls:
        tls.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.hostname}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: tls.recv(65536), b"")).partition(b"\r\n\r\n")[2].decode()


def by_double_fork(url: str) -> str:
    """Send the request from a grandchild in its own session, whose parent has ended."""
    reader, writer = os.pipe()
    if child := os.fork():
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            return answer.read()
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writer, by_ssl_socket(url).encode())
    os._exit(0)


def by_own_resolver(url: str) -> str:
    """Resolve the name by UDP at a name server that is not the system's."""
    name = urlsplit(url).hostname or ""
    number = secrets.token_bytes(2)
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = number + struct.pack("!5H", 0x100, 1, 0, 0, 0) + labels + struct.pack("!xHH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(10)
        asking.connect(("9.9.9.9", 53))
        asking.send(query)
        answer = asking.recv(512)
    assert answer[:2] == number
    return over(socket.create_connection((socket.inet_ntoa(answer[-4:]), 443), 20), url)


def by_plain_socket(url: str) -> str:
    """Connect to an address without a name and without TLS."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 80), 20) as raw:
        raw.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: raw.recv(65536), b"")).partition(b"\r\n\r\n")[2].decode()


def by_listening(url: str) -> str:
    """Listen, connect to itself by every address, and then call the API."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
            with socket.create_connection((host, port), 5) as client, server.accept()[0] as accepted:
                accepted.sendall(host.encode())
                assert client.recv(100) == host.encode()
    try:
        socket.create_connection(("127.0.0.1", port), 5)
    except ConnectionRefusedError:
        return by_ssl_socket(url)
    raise AssertionError("nobody listens there any more")


def by_botocore(url: str) -> str:
    import botocore.session

    session = botocore.session.get_session()
    session.set_credentials("AKIAIOSFODNN7EXAMPLE", "x" * 40)
    client = session.create_client("s3", region_name="us-east-1", endpoint_url=url.rpartition("/")[0])
    return str(client.get_object(Bucket="bucket", Key="botocore")["Body"].read(), "utf-8")


def by_grpc(url: str) -> str:
    """Make a unary call with gRPC's own HTTP/2, TLS and roots, and return its trailing metadata."""
    import grpc

    parts = urlsplit(url)
    with grpc.secure_channel(f"{parts.hostname}:443", grpc.ssl_channel_credentials()) as channel:
        answer, call = channel.unary_unary(parts.path).with_call(b"ticket 904", timeout=60)
        return f"{answer!r} {call.code()} {call.trailing_metadata()}"


if __name__ == "__main__":
    sys.stdout.write(globals()[f"by_{sys.argv[1]}"](sys.argv[2]))
