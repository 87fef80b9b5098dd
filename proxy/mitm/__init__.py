"""The mitmproxy engine: a wire engine built on mitmproxy's protocol layers, without its master, addons and options.

Other packages use only `run`. It imports mitmproxy when it is called, because that takes a second.

service                listen, serve and stop
connection             one client's connection
layers                 choose mitmproxy's layers for a connection
layer_events           events and commands between Playhead's layers
admission              decide whether a request may be forwarded, and where
stream                 the base of streams: one request
relay_stream           relay and record a request and its response
replay_stream          answer a request from a recording
upgraded_connection    relay and record what follows a 101 response
websocket_replay       answer a WebSocket from a recording
tunnel                 forward bytes unchanged
tls                    TLS on both sides
protocol               HTTP and WebSockets, corrected
"""

from collections.abc import Callable

from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.recording_guard import RecorderInterface


async def run(
    config: EngineConfig, recorder: RecorderInterface | None, answerer: Answerer | None, ready: Callable[[int], None]
) -> None:
    """Run the engine (see `proxy.wire.engine.Engine`)."""
    from proxy.mitm.service import Service

    await Service(config, recorder, answerer).run(ready)
