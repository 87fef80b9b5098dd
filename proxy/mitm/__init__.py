"""The mitmproxy engine: a wire engine made of mitmproxy's protocol layers, without its master, addons and options.

`run` is all that others need. mitmproxy is imported only when it is called: that takes a second.
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
    from proxy.mitm.service import Service

    await Service(config, recorder, answerer).run(ready)
