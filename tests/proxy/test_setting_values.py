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


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('token_file = "a\\u0000"', "token_file: 'a\\x00' has a null character"),
        ("redact_names_file = 7", "redact_names_file: 7 should be text in quotes"),
        ('prices = "a\\u0000"', "prices: 'a\\x00' has a null character"),
        (f'upstream_ca = "{LONG}"', "(5002 characters) is longer than a path can be"),
        ('api_token = "schlüssel"', "api_token: a token has printable ASCII characters alone"),
        ('token = "a\\nb"', "token: a token has printable ASCII characters alone"),
        ('token = "ab "', "token: a token has printable ASCII characters alone"),
        ('store_url = "http://store:70000"', "store_url: 'http://store:70000' is not an origin such as"),
        (
            'store_url = "https://store:8081"',
            "store_url: 'https://store:8081' is not the URL of a store server: it speaks",
        ),
        ('store_url = "http://store:0"', "store_url: 'http://store:0' is not an origin such as"),
        ('store_url = "http://[::1"', "store_url: 'http://[::1' is not an origin such as"),
        ('reverse = "http://a b"', "reverse: 'http://a b' is not an origin such as"),
        ('database_url = "postgresql://u:p@db:70000/p"', "database_url: the URL has the port 70000: use one from 1"),
        ('database_url = "postgresql://u:p@a:5432,[::1]:0/p"', "database_url: the URL has the port 0: use one from 1"),
        ('database_url = "postgresql://u\\u0000@db/p"', "database_url: the URL has a null character"),
        (
            "spool_limit = 100000000000000000000000",
            "spool_limit: 100000000000000000000000 should be less than or equal",
        ),
        ("body_limit = 100000000000000000000000", "body_limit: 100000000000000000000000 should be less than or equal"),
        ('[tunnel]\nhosts = [""]', "tunnel.hosts.0: '' is not a host"),
        ('[tunnel]\nhosts = ["a.test", "a b"]', "tunnel.hosts.1: 'a b' is not a host"),
        ('[tunnel]\nhosts = ["[::1"]', "tunnel.hosts.0: '[::1' is not a host"),
        ('[tunnel]\nhosts = ["a.test:443"]', "tunnel.hosts.0: 'a.test:443' is not a host"),
        ('allowed_hosts = ["https://a.test"]', "allowed_hosts.0: 'https://a.test' is not a host"),
        (f'mode = "{LONG}"', "(5002 characters) should be 'record'"),
        (f'[tunnel]\nhosts = ["a {LONG}"]', "(5004 characters) is not a host"),
        (f'[objects]\nurl = "{LONG}"', "(5002 characters) is not a place for objects"),
        (f'retention_failed = "{LONG}"', "use 30m, 12h, 7d, 2w, 1y or forever"),
        (f'[[retention]]\nkeep = "{LONG}"', "use 30m, 12h, 7d, 2w, 1y or forever"),
        (f"{LONG} = 1", "there is no such setting"),
    ],
)
def test_a_value_that_cannot_work_is_refused_in_a_short_sentence(tmp_path: Path, toml: str, words: str) -> None:
    file = tmp_path / "playhead.toml"
    file.write_text(toml)
    with pytest.raises(Failure) as refused:
        load_settings({}, file)
    said = str(refused.value)
    assert words in said
    assert len(said) < 450 + len(str(tmp_path))


def test_a_token_of_a_file_that_no_client_can_send_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\nsecond\n")
    with pytest.raises(Failure, match=f"token_file: {file}: a token has printable ASCII characters alone"):
        load_settings({"token_file": str(file)}, None)


def test_values_near_those_that_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "playhead.toml"
    file.write_text(
        'token = "a b~"\nspool_limit = "1125899906842624"\nstore_url = "http://[::1]:65535/"\n'
        'database_url = "postgresql://u:p%3A70000@a:5432,b:65535,[::1]:1,c/p?host=/run"\n'
        '[tunnel]\nhosts = ["A.test", "*.b_c.test", "localhost", "::1", "127.0.0.1", "bücher.example", "a.test."]\n'
    )
    found = load_settings({}, file)
    assert found.tunnel.hosts[:4] == ("a.test", "*.b_c.test", "localhost", "::1")
    assert (found.spool_limit, found.store_url) == (1 << 50, "http://[::1]:65535")


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_DATABASE_URL", "postgresql://u:hunter2@db/p")
    found = load_settings({}, None)
    assert "hunter2" not in f"{found!r} {found} {shown_settings(found)}"
    assert found.database_url is not None
    assert found.database_url.get_secret_value().endswith("hunter2@db/p")
