"""What TLS costs a worker for a new connection, part by part: `python -m bench.handshakes`.

Microseconds of CPU of one thread, the median of the rounds: the leaf and the context of a host that is new, and a handshake with a
host that is known, both sides of it, by the number of session tickets that the server sends.
"""

import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.figures import Spread
from proxy.lane.tls import LeafContexts
from proxy.trust.ca import ensure_ca

ROUNDS: Final = 7
TIMES: Final = 100
HOST: Final = "known.example"


def measure(act: Callable[[int], object], first: int) -> Spread:
    """Microseconds of CPU for each call of `act`, which is given numbers from `first` on."""
    rounds = []
    for number in range(ROUNDS):
        used = time.thread_time()
        for each in range(TIMES):
            act(first + number * TIMES + each)
        rounds.append((time.thread_time() - used) / TIMES * 1e6)
    return Spread.of(rounds)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Make a whole handshake in memory."""
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


if __name__ == "__main__":
    main()
