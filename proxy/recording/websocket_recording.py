"""Record the messages of a WebSocket, each of which is complete when it arrives."""

from calls.events import Data
from calls.model import ChunkKind
from calls.redaction.redactor import Redactor
from calls.redaction.streams.streamed_messages import RedactedMessage, StreamedMessages
from proxy.recording.message_recording import MessageRecording
from proxy.recording.spool_outbox import RecordWriter


class WebsocketRecording:
    """Records the messages of both sides of one WebSocket."""

    def __init__(self, redactor: Redactor, writer: RecordWriter, body_limit: int) -> None:
        """`body_limit`: the bytes of each side that are recorded."""
        self._redactor = redactor
        self._writer = writer
        self._body_limit = body_limit
        self._redactors: dict[MessageRecording, StreamedMessages] = {}
        """What redacts the messages of a side, and holds some back."""

    def record(self, side: MessageRecording, data: bytes, at: int, kind: ChunkKind) -> None:
        """Record a message of one side."""
        if (redactor := self._redactors.get(side)) is None:
            redactor = self._redactors[side] = self._redactor.new_message_redactor()
        side.seen_bytes += len(data)
        if side.recorded_bytes + len(data) > self._body_limit:
            if not side.is_truncated:
                self._writer.record_gap(f"the {side.side} messages went on beyond the limit")
            self._write(side, redactor.finish())
            side.is_truncated = True
            self._writer.append(Data(side.exchange, at, side.side, b"", kind, len(data)))
            return
        side.recorded_bytes += len(data)
        self._write(side, redactor.feed(data, at, kind))
        if redactor.waiting_size > side.reserved_bytes and not side.resize_reservation(redactor.waiting_size):
            self._writer.record_gap(f"there was no room to hold the {side.side} messages back")
            self._write(side, redactor.finish())
            side.is_truncated = True
            side.recorded_bytes = self._body_limit

    def finish(self) -> None:
        """Record what is still held of the messages."""
        for side, redactor in self._redactors.items():
            self._write(side, redactor.finish())
            side.resize_reservation(0)

    def _write(self, side: MessageRecording, messages: list[RedactedMessage]) -> None:
        for at, kind, data, count, fault, size in messages:
            if fault is None:
                self._writer.append(Data(side.exchange, at, side.side, data, kind, None, count))
                continue
            self._writer.record_gap(f"a message could not be redacted ({fault})")
            side.is_truncated = True
            side.recorded_bytes -= size
            self._writer.append(Data(side.exchange, at, side.side, b"", kind, size))
