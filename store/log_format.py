"""Write what a process logs to stderr: as lines for people, or as JSON for a collector of logs."""

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

type LogFormat = Literal["text", "json"]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

_OWN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes that every record has; others were passed as `extra`."""


class JsonFormatter(logging.Formatter):
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
    logging.basicConfig(level=logging.INFO, format=_TEXT, force=True)
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
