"""Settings of a command beside an `up` with other settings are applied, reported or refused, never ignored."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.record import _separation_reason
from proxy.commands.up import _hold_data_directory
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.settings_match import (
    WORKER_SETTINGS,
    differing_settings,
    require_same_database,
    require_same_profiles,
    setting_digests,
)
from proxy.settings import Settings, load_settings

PROFILE = (
    '[[profile]]\nname = "tools/1"\nmatch = { host = "tools.example.com" }\nkey = ["$.query"]\nsecret = ["$.badge"]\n'
)

UPSTREAMS = '[upstreams]\n"tools.example.com" = "http://127.0.0.1:9000"\n'


def settings(place: Path, toml: str = "", **flags: Any) -> Settings:
    """Return the settings of a command in this directory."""
    place.mkdir(exist_ok=True)
    file = place / "playhead.toml"
    file.write_text(toml)
    return load_settings(flags, file)


def store_server(found: Settings) -> dict[str, Any]:
    """Return the notice of an `up`'s store server, as other commands read it."""
    answer: dict[str, Any] = json.loads(
        json.dumps({"settings": setting_digests(found, ("database_url", "profile")), "config": str(found.config)})
    )
    return answer


@pytest.mark.parametrize(
    ("here", "there", "differ"),
    [
        ("", "body_limit = 10\n" + UPSTREAMS, []),
        ("body_limit = 10\n", "body_limit = 10\n", []),
        ("body_limit = 10\n", "", ["body_limit"]),
        ("redact_personal_data = true\n", "", ["redact_personal_data"]),
        ("keep_token_claims = true\n", "", ["keep_token_claims"]),
        ("redact_personal_data = false\n", "redact_personal_data = true\n", ["redact_personal_data"]),
        ('redact_names = ["Ada Lovelace"]\n', "", ["redact_names"]),
        ('redact_names = ["Ada Lovelace"]\n', 'redact_names = ["Ada Lovelace"]\n', []),
        (UPSTREAMS.replace("tools", "TOOLS"), UPSTREAMS, []),
        (UPSTREAMS.replace("9000", "9001"), UPSTREAMS, ["upstreams"]),
        ('allowed_hosts = ["a.test"]\n', '[modes]\n"a.test" = "passthrough"\n', []),
        ('upstream_ca = "ca.pem"\n[tunnel]\nhosts = ["a.test"]\n', "", ["upstream_ca", "tunnel"]),
        ("workers = 2\nproxy_port = 9\n", "", []),
    ],
)
def test_a_worker_differs_by_what_is_set_here_and_set_otherwise(
    here: str, there: str, differ: list[str], tmp_path: Path
) -> None:
    known = json.loads(json.dumps(setting_digests(settings(tmp_path / "there", there), WORKER_SETTINGS)))
    assert differing_settings(settings(tmp_path / "here", here), known) == differ


def test_a_variable_counts_as_much_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = setting_digests(settings(tmp_path), WORKER_SETTINGS)
    monkeypatch.setenv("PLAYHEAD_BODY_LIMIT", "10")
    assert differing_settings(settings(tmp_path), known) == ["body_limit"]


def test_another_database_than_the_store_servers_is_refused(tmp_path: Path) -> None:
    known = store_server(settings(tmp_path, database_url="postgresql://user:word@host/one"))
    assert "word" not in json.dumps(known)
    require_same_database(settings(tmp_path), known)
    require_same_database(settings(tmp_path, database_url="postgresql://user:word@host/one"), known)
    for other in (known, store_server(settings(tmp_path))):
        with pytest.raises(Failure, match="names another database"):
            require_same_database(settings(tmp_path, database_url="postgresql://user:word@host/two"), other)


def test_what_is_secret_by_other_profiles_than_the_ups_is_not_recorded(tmp_path: Path) -> None:
    bare, own = settings(tmp_path / "bare"), settings(tmp_path / "own", PROFILE)
    other = settings(tmp_path / "other", PROFILE.replace("badge", "pin"))
    for own_worker in (True, False):
        require_same_profiles(own, store_server(own), own_worker=own_worker)
        for known in (bare, other):
            with pytest.raises(Failure, match=r"restart it with --config .*own/playhead.toml"):
                require_same_profiles(own, store_server(known), own_worker=own_worker)
    require_same_profiles(bare, store_server(own), own_worker=False)
    with pytest.raises(Failure, match=r"pass --config .*own/playhead.toml"):
        require_same_profiles(bare, store_server(own), own_worker=True)


def test_a_store_server_that_is_no_ups_has_no_say_in_profiles(tmp_path: Path) -> None:
    require_same_profiles(
        settings(tmp_path, PROFILE),
        {"settings": setting_digests(settings(tmp_path), ["database_url"])},
        own_worker=True,
    )


def test_no_other_worker_stands_in_for_one_that_answers(tmp_path: Path) -> None:
    note = {"mode": "auto", "settings": setting_digests(settings(tmp_path), WORKER_SETTINGS)}
    assert _separation_reason(settings(tmp_path), note) == ""
    with pytest.raises(Failure, match="body_limit: set otherwise here"):
        _separation_reason(settings(tmp_path, "body_limit = 10\n"), note)
    assert "a worker of its own" in _separation_reason(
        settings(tmp_path, "body_limit = 10\n"), {**note, "mode": "record"}
    )


@pytest.mark.parametrize("part", ["all", "store"])
def test_nobody_goes_by_the_note_of_an_up_that_was_killed(part: str, data: Path) -> None:
    """`store server`: the notice is from the `up` that runs the workers."""
    processes = CommandProcesses(load_settings({"data": data, "part": part}, None))
    processes.data.announce("up", {"proxy": "http://127.0.0.1:9"})
    with _hold_data_directory(processes):
        assert (processes.data.read_notice("up") is None) is (part == "all")
