"""Choose the version of HTTP for a client: the one that it would get without us."""

from typing import Final

from proxy.wire.client_hello import Hello
from proxy.wire.config import Origin
from proxy.wire.engine_state import EngineState

SPOKEN: Final = (b"h2", b"http/1.1")


def spoken(hello: Hello) -> bool:
    """Whether there is a version that both sides know."""
    return not hello.protocols or any(protocol in SPOKEN for protocol in hello.protocols)


def asks_first(hello: Hello, engine: EngineState, target: Origin) -> bool:
    """Whether an upstream has to be asked what it speaks, before its client's handshake."""
    if b"h2" not in hello.protocols or engine.answerer is not None or hello.name not in (None, target.host):
        return False
    return not engine.is_overridden(target) and engine.protocol_for_client(target) is None


def chosen(hello: Hello, engine: EngineState, target: Origin) -> str | None:
    """What to agree on: what the upstream speaks, or what was recorded; else what the client likes best."""
    wanted = engine.protocol_for_client(target)
    if wanted == b"":
        return None
    if wanted in hello.protocols:
        return wanted.decode()
    return next((protocol.decode() for protocol in hello.protocols if protocol in SPOKEN), None)
