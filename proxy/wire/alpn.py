"""Choose the HTTP version for a client: the one that it would use without Playhead."""

from typing import Final

from proxy.wire.client_hello import Hello
from proxy.wire.config import Origin
from proxy.wire.engine_state import EngineState

SUPPORTED_PROTOCOLS: Final = (b"h2", b"http/1.1")


def has_common_protocol(hello: Hello) -> bool:
    """Whether client and worker have a version in common."""
    return not hello.protocols or any(protocol in SUPPORTED_PROTOCOLS for protocol in hello.protocols)


def must_ask_upstream_first(hello: Hello, engine: EngineState, target: Origin) -> bool:
    """Whether the version that the upstream supports must be found out before the client's handshake."""
    if b"h2" not in hello.protocols or engine.answerer is not None or hello.name not in (None, target.host):
        return False
    return not engine.is_overridden(target) and engine.protocol_for_client(target) is None


def choose_protocol(hello: Hello, engine: EngineState, target: Origin) -> str | None:
    """Choose the version that the upstream or the recording uses; where that is unknown, the client's first choice."""
    upstream_protocol = engine.protocol_for_client(target)
    if upstream_protocol == b"":
        return None
    if upstream_protocol in hello.protocols:
        return upstream_protocol.decode()
    return next((protocol.decode() for protocol in hello.protocols if protocol in SUPPORTED_PROTOCOLS), None)
