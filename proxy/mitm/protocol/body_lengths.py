"""Check the bodies of HTTP/2 against their content-length (RFC 9113 8.1.1).

h2 counts data, but neither a head that ends its stream, nor a body that ends with trailers, nor what may have no body at all.
"""

import h2.events

_FAULT = "its body is not as long as its head says"


class BodyLengths:
    """The bodies of one connection that are coming."""

    def __init__(self) -> None:
        self.heads: set[int] = set()
        """Streams on which HEAD was asked."""

        self._left: dict[int, int] = {}
        """How much is still to come of those whose length is known."""

    def fault(self, event: h2.events.Event) -> tuple[int, str] | None:
        """On which stream the message that this belongs to has a wrong length, and how."""
        stream_id: int = getattr(event, "stream_id", None) or 0
        wrong: str | None = None
        match event:
            case h2.events.RequestReceived() | h2.events.ResponseReceived():
                wrong = self._begin(stream_id, event)
            case h2.events.DataReceived() if stream_id in self._left:
                self._left[stream_id] -= len(event.data or b"")
                wrong = _FAULT if self._left[stream_id] < 0 else None
            case h2.events.TrailersReceived():
                wrong = _FAULT if self._left.get(stream_id) else None
            case h2.events.StreamEnded():
                wrong = _FAULT if self._left.pop(stream_id, 0) else None
            case h2.events.StreamReset():
                self._left.pop(stream_id, None)
        if wrong is None:
            return None
        self._left.pop(stream_id, None)
        return stream_id, wrong

    def _begin(self, stream_id: int, event: h2.events.RequestReceived | h2.events.ResponseReceived) -> str | None:
        fields = dict(event.headers or ())
        lengths = [value for name, value in event.headers or () if name == b"content-length"]
        # What is no plain number is refused where the head is judged.
        length = int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() else None
        status = fields.get(b":status")
        if stream_id in self.heads or status in (b"204", b"304"):
            self.heads.discard(stream_id)
            if status == b"204" and length:
                return "a response of status 204 has a length"
            length = 0
        if length is not None:
            if event.stream_ended:
                return _FAULT if length else None
            self._left[stream_id] = length
        return None
