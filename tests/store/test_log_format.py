"""What a process logs as JSON can be read line by line, whatever is logged."""

import io
import json
import logging
from typing import Any

from store.log_format import JsonFormatter


def log_line(message: str, *values: object, **more: Any) -> dict[str, Any]:
    """The line of a record, which has the form that is promised."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("store.ingest")
    log.addHandler(handler)
    log.warning(message, *values, **more)
    [line] = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    assert list(found) == ["time", "level", "logger", "event", "fields"]
    return found


def test_a_record_is_one_object_with_its_event_and_its_fields() -> None:
    line = log_line("%s waits for %d s", "texts/1", 5, extra={"run": "night", "size": 3})
    assert (line["level"], line["logger"], line["event"]) == ("warning", "store.ingest", "texts/1 waits for 5 s")
    assert line["time"].endswith("Z")
    assert line["fields"]["template"] == "%s waits for %d s"
    assert (line["fields"]["run"], line["fields"]["size"]) == ("night", 3)


def test_line_breaks_other_values_and_exceptions_stay_on_the_line() -> None:
    assert log_line("a\nb\u2028c\x00\ud800")["event"] == "a\nb\u2028c\x00\ud800"
    assert "object" in log_line("odd", extra={"value": object()})["fields"]["value"]
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        assert "ValueError: bad\nvalue" in log_line("failed", exc_info=True)["fields"]["exception"]
