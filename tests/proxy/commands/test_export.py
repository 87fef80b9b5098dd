"""What an exported run may hold: nothing that a terminal acts on, and the same values all the same."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from calls.model import Exchange, Request
from calls.redaction.redactor import RedactionRules, Redactor
from calls.redaction.rules.credentials import RULES
from proxy.commands import export
from proxy.commands.export import SecretSearch, export_run
from proxy.errors import Failure
from proxy.processes.store_client import Api
from store.bundle.bundle import bundle_lines
from tests.replay.strategies import PROFILES, exchange, ok, run_of

HOSTILE = "red \x9b31m, next\x85line, \x7f, \u202eright to left, and € 漢"


class Stub:
    """An API that has one run, of one exchange."""

    def __init__(self, made: Exchange | None = None) -> None:
        self._made = made or exchange(Request(method="GET", url="http://a.example/"), ok(HOSTILE.encode()), number=1)

    def get(self, _: str, **__: Any) -> dict[str, bool]:
        return {"settled": True}

    def stream_bytes(self, _: str, **_query: str) -> list[bytes]:
        return [b"".join(bundle_lines(run_of(self._made)))]


def exports(form: str, output: Path | None) -> None:
    export_run(
        cast(Api, Stub()), "run", form, SecretSearch(redactor=Redactor(key=bytes(32))), output, profiles=PROFILES
    )


def terminal(form: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What a terminal gets."""
    written = io.BytesIO()
    shown = io.TextIOWrapper(written)
    monkeypatch.setattr(shown, "isatty", lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", shown)
        exports(form, None)
    return written.getvalue()


def is_harmless(text: bytes) -> bool:
    return all(char.isprintable() or char == "\n" for char in text.decode())


def test_a_har_has_no_control_characters_and_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports("har", file := tmp_path / "run.har")
    assert is_harmless(file.read_bytes())
    assert terminal("har", monkeypatch) == file.read_bytes()
    entry = json.loads(file.read_bytes())["log"]["entries"][0]
    assert entry["response"]["content"]["text"] == HOSTILE


@pytest.mark.parametrize("form", ["bundle", "vcr"])
def test_a_terminal_gets_nothing_that_it_acts_on(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(form, monkeypatch)
    assert is_harmless(shown)
    exports(form, file := tmp_path / "run")
    if form == "bundle":
        values = [[json.loads(line) for line in text.splitlines()] for text in (shown, file.read_bytes())]
        assert values[0] == values[1]


def test_a_secret_in_pieces_that_the_rules_of_its_day_did_not_know_is_not_exported(tmp_path: Path) -> None:
    secret = "ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3d"
    deltas = [{"choices": [{"index": 0, "delta": {"content": secret[at : at + 4]}}]} for at in range(0, 40, 4)]
    spelled = b"".join(b"data: %s\n\n" % json.dumps(delta).encode() for delta in deltas)
    key = bytes(32)
    older = Redactor(RedactionRules(credentials=tuple(rule for rule in RULES if "'ghp_'" not in repr(rule))), key)
    made = exchange(
        Request(method="POST", url="http://a.example/"), ok(older.redact_body(spelled, "text/event-stream")[0])
    )
    file = tmp_path / "run.jsonl"

    def exports_it(redactor: Redactor) -> None:
        export_run(cast(Api, Stub(made)), "run", "bundle", SecretSearch(redactor=redactor), file, profiles=PROFILES)

    exports_it(older)
    file.unlink()
    with pytest.raises(Failure, match=r"looks like a secret is in 10 places") as refusal:
        exports_it(Redactor(key=key))

    assert not file.exists()
    assert not any(secret[at : at + 4] in str(refusal.value) for at in range(0, 40, 4))


def test_two_exports_do_not_mix_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with export.open_output(file) as part:
        part.write(b"half")
        with pytest.raises(Failure, match="another command is writing the recording"):
            exports("bundle", file)
    assert file.read_bytes() == b"half"
    assert os.listdir(tmp_path) == ["run.jsonl"]
