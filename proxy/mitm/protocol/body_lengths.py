"""Check HTTP/2 bodies against their Content-Length (RFC 9113 8.1.1).

h2 checks the data, but not a head that ends its stream, a body that ends with trailers, or a message that must not have a
body.
"""

import h2.events

_LENGTH_FAULT = "the length of its body differs from its Content-Length"


class BodyLengths:
    """The bodies that are being received on one connection."""

    def __init__(self) -> None:
        self.head_streams: set[int] = set()
        """The streams of HEAD requests."""

        self._remaining: dict[int, int] = {}
        """The remaining length of each stream's body, if it is known."""

    def length_fault(self, event: h2.events.Event) -> tuple[int, str] | None:
        """Return the stream and the error if an event shows that the length of a body is wrong, or None."""
        stream_id: int = getattr(event, "stream_id", None) or 0
        wrong: str | None = None
        match event:
            case h2.events.RequestReceived() | h2.events.ResponseReceived():
                wrong = self._begin_message(stream_id, event)
            case h2.events.DataReceived() if stream_id in self._remaining:
                self._remaining[stream_id] -= len(event.data or b"")
                wrong = _LENGTH_FAULT if self._remaining[stream_id] < 0 else None
            case h2.events.TrailersReceived():
                wrong = _LENGTH_FAULT if self._remaining.get(stream_id) else None
            case h2.events.StreamEnded():
                wrong = _LENGTH_FAULT if self._remaining.pop(stream_id, 0) else None
            case h2.events.StreamReset():
                self._remaining.pop(stream_id, None)
        if wrong is None:
            return None
        self._remaining.pop(stream_id, None)
        return stream_id, wrong

    def _begin_message(
        self, stream_id: int, event: h2.events.RequestReceived | h2.events.ResponseReceived
    ) -> str | None:
        fields = dict(event.headers or ())
        lengths = [value for name, value in event.headers or () if name == b"content-length"]
        # Another check refuses a head with an invalid Content-Length.
        length = int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() else None
        status = fields.get(b":status")
        if stream_id in self.head_streams or status in (b"204", b"304"):
            self.head_streams.discard(stream_id)
            if status == b"204" and length:
                return "a response with status 204 has a Content-Length"
            length = 0
        if length is not None:
            if event.stream_ended:
                return _LENGTH_FAULT if length else None
            self._remaining[stream_id] = length
        return None
