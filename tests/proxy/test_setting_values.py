"""Settings from variables and files: which has priority, and what each form of a value means."""

from pathlib import Path

import pytest

from proxy.errors import Failure
from proxy.setting_values import Secret
from proxy.settings import load_settings, shown_settings


def test_a_flag_is_above_a_variable_and_that_above_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "playhead.toml"
    file.write_text(
        'workers = 3\nproxy_port = 3\napi_port = 3\n[upstreams]\n"a.test" = "http://a:1"\n"b.test" = "http://b:1"\n'
    )
    monkeypatch.setenv("PLAYHEAD_PROXY_PORT", "2")
    monkeypatch.setenv("playhead_api_port", "2")
    monkeypatch.setenv("PLAYHEAD_UPSTREAMS", '{"b.test": "http://b:2/"}')
    found = load_settings({"api_port": 1, "mode": None}, file)
    assert (found.workers, found.proxy_port, found.api_port) == (3, 2, 1)
    assert found.upstreams == {"a.test": "http://a:1", "b.test": "http://b:2"}, "tables are merged"
    assert found.given_names >= {"workers", "proxy_port", "api_port", "upstreams"}
    assert "mode" not in found.given_names


def test_a_variable_can_be_of_a_member_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "playhead.toml"
    file.write_text('[objects]\nurl = "s3://of-the-file"\nregion = "eu"\n')
    monkeypatch.setenv("PLAYHEAD_OBJECTS__URL", "s3://of-the-variable")
    monkeypatch.setenv("PLAYHEAD_TUNNEL__HOSTS", '["pinned.test"]')
    found = load_settings({}, file)
    assert (found.objects.url, found.objects.region, found.tunnel.hosts) == (
        "s3://of-the-variable",
        "eu",
        ("pinned.test",),
    )
    monkeypatch.setenv("PLAYHEAD_OBJECTS__THRESHOLD", "1")
    with pytest.raises(Failure, match="PLAYHEAD_OBJECTS: threshold = '1' is too small"):
        load_settings({}, file)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("OPEN_API", "Yes", True),
        ("OPEN_API", "off", False),
        ("WORKERS", " 4 ", 4),
        ("CONNECT_PORTS", "443, 8443", (443, 8443)),
        ("ALLOWED_HOSTS", "A.test b.test", ("a.test", "b.test")),
        ("REPLAY", "", ()),
        ("TOKEN", "t", Secret("t")),
    ],
)
def test_words_of_variables(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv(f"PLAYHEAD_{name}", text)
    assert getattr(load_settings({}, None), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("OPEN_API", "perhaps", "PLAYHEAD_OPEN_API: 'perhaps' should be true or false"),
        ("MODE", "recrod", "PLAYHEAD_MODE: 'recrod' should be 'record', 'replay', 'auto' or 'passthrough'"),
        ("UPSTREAMS", '{"a.test": "a"}', "PLAYHEAD_UPSTREAMS: 'a' is not an origin such as"),
        ("REVERSE", "ftp://a", "PLAYHEAD_REVERSE: 'ftp://a' is not an origin such as"),
    ],
)
def test_wrong_words_of_variables(monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str) -> None:
    monkeypatch.setenv(f"PLAYHEAD_{name}", text)
    with pytest.raises(Failure) as refused:
        load_settings({}, None)
    assert str(refused.value).startswith(words)


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_DATABASE_URL", "postgresql://u:hunter2@db/p")
    found = load_settings({}, None)
    assert "hunter2" not in f"{found!r} {found} {shown_settings(found)}"
    assert found.database_url is not None
    assert found.database_url.get_secret_value().endswith("hunter2@db/p")
