"""The lane: a fast wire engine for the protocols that nearly all agents use.

It serves HTTP/1.1 in CONNECT tunnels, as a plain proxy and as a reverse proxy, and HTTP/2 in tunnels. It hands every other
connection to the mitmproxy engine in the same process, before a byte is forwarded, together with the bytes read so far.

lane                the engine: what all connections share
connection_base     the base of client connections of any protocol
client              one client's HTTP/1.1 connection
tunnel_handshake    detect the protocol in a tunnel, and terminate TLS
admission           decide whether the lane can serve a request
exchange            the base of exchanges: one request, relayed or replayed
relay               relay and record a request and its response
replay_answer       answer a request from a recording
rehearsal           serve a request in memory before the first real one
upstream            connections to upstreams, and their reuse
upstream_http1      send requests to upstreams in HTTP/1.1
receive_queue       process the input of HTTP/2 connections in turns
framing             find the end of an HTTP/1.1 body
heads               parse the head of a message
head_cache          recognise request heads that repeat on a connection
tls                 TLS over an existing connection
h2                  HTTP/2 on both sides
"""

from collections.abc import Callable

from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.recording_guard import RecorderInterface


async def run(
    config: EngineConfig, recorder: RecorderInterface | None, answerer: Answerer | None, ready: Callable[[int], None]
) -> None:
    """Run the engine (see `proxy.wire.engine.Engine`)."""
    from proxy.lane.lane import Lane

    await Lane(config, recorder, answerer).run(ready)
