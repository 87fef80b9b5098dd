"""What a process logs as JSON can be read line by line, whatever is logged."""

import io
import json
import logging
from collections.abc import Callable
from typing import Any

from store.log_format import REMEMBERED, REPEAT_EVERY, JsonFormatter, RepeatFilter, TextFormatter


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


def test_a_message_that_repeats_is_written_once_a_minute_with_how_often() -> None:
    now = 0.0
    stream, log = _logger(lambda: now)
    for second in range(150):
        now = float(second)
        log.warning("%s waits: %s", "sums/4", "no answer")
        if second in (0, 70):
            log.warning("%s waits: %s", "texts/1", "no answer")
    assert stream.getvalue().splitlines() == [
        "sums/4 waits: no answer",
        "texts/1 waits: no answer",
        f"sums/4 waits: no answer (and {REPEAT_EVERY - 1:.0f} times since this was written last)",
        "texts/1 waits: no answer",
        f"sums/4 waits: no answer (and {REPEAT_EVERY - 1:.0f} times since this was written last)",
    ]


def test_any_number_of_messages_takes_little_memory_and_wrong_arguments_are_no_fault() -> None:
    stream, log = _logger(lambda: 0.0)
    for number in range(REMEMBERED + 1):
        log.warning("message %d", number)
    log.warning("message %d", REMEMBERED)
    log.warning("message %d", 0)
    assert len(stream.getvalue().splitlines()) == REMEMBERED + 2, "the first one is forgotten, the last is not"
    record = logging.makeLogRecord({"msg": "%d", "args": ("no number",)})
    assert RepeatFilter().filter(record)


def _logger(now: Callable[[], float]) -> tuple[io.StringIO, logging.Logger]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter("%(message)s"))
    handler.addFilter(RepeatFilter(now))
    log = logging.Logger("store.feed")
    log.addHandler(handler)
    return stream, log


def test_a_traceback_has_no_secret() -> None:
    secret = "sk-proj-" + "aB3dE6gH9jK2" * 4
    stream = io.StringIO()
    log = logging.Logger("proxy")
    for formatter in (JsonFormatter(), TextFormatter("%(message)s")):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        log.addHandler(handler)
    try:
        int(f"password=hunter2hunter2 {secret}")
    except ValueError:
        log.exception("an exchange could not be recorded")
    text = stream.getvalue()
    assert text.count("invalid literal for int()") == 2
    assert not [said for said in (secret, "hunter2") if said in text]
