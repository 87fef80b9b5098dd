"""Write what a process logs to stderr: as lines for people, or as JSON for a collector of logs."""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

type LogFormat = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

_OWN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes that every record has; others were passed as `extra`."""


REPEAT_EVERY: Final = 60.0
"""Seconds after which a message that is logged again and again is written again."""

REMEMBERED: Final = 256
"""Messages that are recognised when they repeat."""


class RepeatFilter(logging.Filter):
    """Leaves out a message that was written less than `REPEAT_EVERY` seconds ago.

    What is tried again each second while the database is away would write 90 MB a day, beside the spool that grows. The
    attribute `repeated` of the next one says how many were left out.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._written: dict[tuple[str, str], tuple[float, int]] = {}
        """When each message was written last, and how many were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a message."""
        try:
            message = record.name, record.getMessage()
        except (TypeError, ValueError):
            return True  # its handler reports that the arguments do not fit
        with self._lock:
            now = self._now()
            written_at, left_out = self._written.get(message, (float("-inf"), 0))
            if now - written_at < REPEAT_EVERY:
                self._written[message] = written_at, left_out + 1
                return False
            self._written.pop(message, None)
            self._written[message] = now, 0
            if len(self._written) > REMEMBERED:
                del self._written[next(iter(self._written))]
        if left_out:
            record.repeated = left_out
        return True


class _CleanFormatter(logging.Formatter):
    """Redacts tracebacks: the message of an exception may have a part of a request."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name of logging
        """Return the traceback without secrets."""
        return _redact_traceback(super().formatException(ei))


def _redact_traceback(text: str) -> str:
    # Imported here: nearly no process ever logs a traceback, and each would wait for it.
    from calls.redaction.redactor import Redactor

    return Redactor(key=secrets.token_bytes(32)).redact_text(text)


class TextFormatter(_CleanFormatter):
    """A line for people."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of logging
        """Return the line without a traceback."""
        line = super().formatMessage(record)
        repeated = getattr(record, "repeated", 0)
        return f"{line} (and {repeated} times since this was written last)" if repeated else line


class JsonFormatter(_CleanFormatter):
    """One JSON object a line: time, level, logger, event, and fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A value that JSON does not have is written as its text."""
        fields = {"process": record.process, "template": str(record.msg)}
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "fields": fields,
        }
        return json.dumps(line, default=str)


def configure_logging(log_format: LogFormat = "text") -> None:
    """Log from the level INFO on, in this format, which replaces the one before."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(_TEXT))
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
