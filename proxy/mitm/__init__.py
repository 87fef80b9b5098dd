"""The mitmproxy engine: a wire engine made of mitmproxy's protocol layers, without its master, addons and options.

`run` is all that others need. mitmproxy is imported only when it is called: that takes a second.

service                listen, serve and stop
connection             one client's connection
layers                 which of mitmproxy's layers a connection gets
layer_events           the events and commands between our layers
admission              whether a request may go on, and to whom
stream                 one request, of any kind
relay_stream           relay and record a request and its response
replay_stream          answer a request from a recording
upgraded_connection    what follows a response of status 101
websocket_replay       answer a WebSocket from a recording
tunnel                 bytes that pass as they are
tls                    TLS on both sides
protocol               HTTP and WebSockets
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
    from proxy.mitm.service import Service

    await Service(config, recorder, answerer).run(ready)
