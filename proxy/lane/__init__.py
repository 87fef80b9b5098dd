"""The lane: a wire engine for what nearly all agents send, at a small part of mitmproxy's cost.

HTTP/1.1 by CONNECT and TLS, as a plain proxy and in front of one origin; HTTP/2 in tunnels (the files `h2*`). Whatever
else it meets it hands to the mitmproxy engine in the same process, before a byte is forwarded, with the bytes read so far.
`run` is all that others need.
"""

from collections.abc import Callable

from proxy.door import Answerer, DoorConfig
from proxy.mitm.tape import Recorder


async def run(
    config: DoorConfig, recorder: Recorder | None, answerer: Answerer | None, ready: Callable[[int], None]
) -> None:
    """Serve as `config` says until its `stop` is set; `ready` gets the port once we listen.

    Recording needs a recorder; replay and auto need an answerer. Requests in flight may end within the grace time.
    """
    from proxy.lane.lane import Lane

    await Lane(config, recorder, answerer).run(ready)
