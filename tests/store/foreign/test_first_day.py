"""The day on which the recording in a file begins."""

import datetime as dt
import os
from pathlib import Path

import pytest

from store.foreign.first_day import first_day
from tests.store.running_store import EXAMPLE

CASSETTE = """
interactions:
- request: {method: GET, uri: 'https://api.example.com/', headers: {}}
  response: {status: {code: 200, message: OK}, headers: {}, body: {string: hello}}
version: 1
"""


def test_a_bundle_begins_with_its_first_exchange() -> None:
    assert first_day(EXAMPLE) == dt.date(2026, 11, 21)


def test_a_file_without_times_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "cassette.yaml"
    file.write_text(CASSETTE)
    os.utime(file, (0, dt.datetime(2020, 2, 29, 23, 59, tzinfo=dt.UTC).timestamp()))
    assert first_day(file) == dt.date(2020, 2, 29)


@pytest.mark.parametrize("content", [b"", b"{", b"- [", b'{"playhead":"bundle"}\n', b"\x1f\x8b\x08", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_has_no_day(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken"
    file.write_bytes(content)
    assert first_day(file) is None
    assert first_day(tmp_path / "absent") is None


def test_a_large_file_is_not_read_for_its_day(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(CASSETTE + "#" * (4 << 20))
    assert first_day(file) is None
