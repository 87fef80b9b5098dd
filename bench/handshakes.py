"""Measure what TLS costs a worker for a new connection, part by part: `python -m bench.handshakes`.

Prints the microseconds of CPU of one thread, as medians of the rounds: creating the certificate and the context of a
new host, and a handshake with a known host, both sides of it, by the number of session tickets that the server sends.
mitmproxy is compared with its own certificate store and with the context that it uses for every client. nginx creates
no certificates; it is compared by `python -m bench.engines --workloads connect-known`.
"""

import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509
from mitmproxy import certs
from mitmproxy.net import tls as net_tls
from OpenSSL import SSL

from bench.figures import Spread
from proxy.lane.tls import LeafContexts
from proxy.trust.ca import ensure_ca

ROUNDS: Final = 7
TIMES: Final = 100
HOST: Final = "known.example"


def measure(act: Callable[[int], object], first: int) -> Spread:
    """Return the microseconds of CPU of each call of `act`, which gets numbers from `first` on."""
    rounds = []
    for number in range(ROUNDS):
        used = time.thread_time()
        for each in range(TIMES):
            act(first + number * TIMES + each)
        rounds.append((time.thread_time() - used) / TIMES * 1e6)
    return Spread.of(rounds)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Do a whole handshake in memory."""
    to_client, from_client, to_server, from_server = (ssl.MemoryBIO() for _ in range(4))
    sides = (
        client.wrap_bio(to_client, from_client, server_hostname=HOST),
        server.wrap_bio(to_server, from_server, server_side=True),
    )
    for _ in range(3):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            to_server.write(from_client.read())
            to_client.write(from_server.read())


def shake_hands_with_mitmproxy(client: ssl.SSLContext, context: SSL.Context, entry: certs.CertStoreEntry) -> None:
    """Do a whole handshake in memory, with mitmproxy's server side."""
    to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = client.wrap_bio(to_client, from_client, server_hostname=HOST)
    server = SSL.Connection(context)
    server.use_certificate(entry.cert.to_cryptography())
    server.use_privatekey(entry.privatekey)
    server.set_accept_state()
    for _ in range(3):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        if data := from_client.read():
            server.bio_write(data)
        for act in (server.do_handshake, lambda: to_client.write(server.bio_read(1 << 16))):
            try:
                act()
            except SSL.WantReadError:
                pass


def measure_mitmproxy(directory: Path) -> None:
    """Print the same figures for mitmproxy."""
    store = certs.CertStore.from_store(directory, "mitmproxy", 2048)

    def certificate(host: str) -> certs.CertStoreEntry:
        return store.get_cert(host, [x509.DNSName(host)])

    print(f"| mitmproxy: certificate of a new host | {measure(lambda n: certificate(f'a{n}.example'), 0):.0f} |")
    print(f"| mitmproxy: certificate of a known host | {measure(lambda _: certificate(HOST), 0):.0f} |")
    context = net_tls.create_client_proxy_context(
        method=net_tls.Method.TLS_SERVER_METHOD,
        min_version=net_tls.DEFAULT_MIN_VERSION,
        max_version=net_tls.DEFAULT_MAX_VERSION,
        cipher_list=None,
        ecdh_curve=None,
        chain_file=None,
        alpn_select_callback=None,
        request_client_cert=False,
        extra_chain_certs=(),
        dhparams=store.dhparams,
    )
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(directory / "mitmproxy-ca-cert.pem")
    entry = certificate(HOST)
    cost = measure(lambda _: shake_hands_with_mitmproxy(client, context, entry), 0)
    print(f"| mitmproxy: handshake, both sides | {cost:.0f} |")


def main() -> None:
    """Print the table."""
    print("| µs of CPU | |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        authority = ensure_ca(Path(directory))
        print(f"| certificate of a new host | {measure(lambda n: authority.leaf(f'a{n}.example'), 0):.0f} |")
        contexts = LeafContexts(authority)
        new = measure(lambda n: contexts.context(f"a{n}.example", alpn="http/1.1"), 0)
        print(f"| its context, with the certificate loaded | {new:.0f} |")
        known = measure(lambda _: contexts.context(HOST, alpn="http/1.1"), 0)
        print(f"| context of a known host | {known:.0f} |")
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(authority.certificate)
        server = contexts.context(HOST, alpn="http/1.1")
        for count in (0, 1, 2):
            server.num_tickets = count
            print(
                f"| handshake, both sides, {count} tickets | {measure(lambda _: shake_hands(client, server), 0):.0f} |"
            )
        measure_mitmproxy(Path(directory))


if __name__ == "__main__":
    main()
