"""The lane: a wire engine for what nearly all agents send, at a small part of mitmproxy's cost.

HTTP/1.1 by CONNECT and TLS, as a plain proxy and in front of one origin; HTTP/2 in tunnels. Everything else is handed to the
mitmproxy engine in the same process, before a byte is forwarded, with the bytes that were read so far.

lane                what all connections of a lane share
connection_base     one client's connection, of any protocol
client              one client's connection of HTTP/1.1
tunnel_handshake    the first bytes in a tunnel
admission           whether the lane can serve a request
exchange            one request, relayed or answered
relay               relay and record a request and its response
replay_answer       answer a request from a recording
upstream            connections to upstreams
upstream_http1      requests and responses in HTTP/1.1
receive_queue       read the input of HTTP/2 connections in turns
framing             where a body ends
heads               read the head of a message
head_cache          heads that were read before on a connection
tls                 TLS over an existing connection
h2                  HTTP/2
"""

from collections.abc import Callable

from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.recording_guard import RecorderInterface


async def run(
    config: EngineConfig, recorder: RecorderInterface | None, answerer: Answerer | None, ready: Callable[[int], None]
) -> None:
    """Serve as `config` says until its `stop` is set; `ready` gets the port once we listen.

    Recording needs a recorder; replay and auto need an answerer. Requests in flight may end within the grace time.
    """
    from proxy.lane.lane import Lane

    await Lane(config, recorder, answerer).run(ready)
