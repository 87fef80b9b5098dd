"""Targets of exports are checked when they are read, and their secrets stay out of the file and of messages."""

from pathlib import Path

import pytest

from proxy.errors import Failure
from proxy.export_settings import ExportSettings
from proxy.setting_values import Secret, shown_value
from proxy.settings import Settings, load_settings


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "playhead.toml"
    file.write_text(text)
    return load_settings({}, file)


def test_a_target_has_the_values_of_variables_in_its_headers(tmp_path: Path) -> None:
    text = '[[export]]\nendpoint = "https://a/otel/"\nheaders = { Authorization = "Basic ${KEY}" }\nproject = "p"\ncontent = true\n'
    (one,) = load(tmp_path, text).export
    target = one.target({"KEY": "c2VjcmV0"})
    assert target.headers == {"Authorization": "Basic c2VjcmV0"}
    assert (target.url, target.options.project, target.options.content) == ("https://a/otel/v1/traces", "p", True)
    assert "KEY" not in str(shown_value(one)), "masked, as in `playhead config`"


def test_a_variable_that_is_not_set_is_named() -> None:
    one = ExportSettings(endpoint="http://a", headers={"X-Key": Secret("${MY_KEY}")})
    with pytest.raises(Failure, match=r"the header X-Key .* needs the environment variable MY_KEY, which is not set"):
        one.target({})
    with pytest.raises(Failure, match="header X-Key has characters that no header can have"):
        one.target({"MY_KEY": "a\nb"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[export]]\nendpoint = "localhost:6006"', "'localhost:6006' is not a URL such as"),
        ('[[export]]\nendpoint = "http://u:p@a"', "an endpoint cannot hold a user and a password"),
        ('[[export]]\nendpoint = "http://a?b=c"', "is not a URL such as"),
        ('[[export]]\nendpoint = "http://a:b"', "is not a URL such as"),
        ('[[export]]\nproject = "a"', "export.0.endpoint: Field required"),
        ('[[export]]\nendpoint = "http://a"\nheadders = {}', "did you mean export.0.headers?"),
        ('[[export]]\nendpoint = "http://a"\nsemconv = "1.2"', "'1.2' should be '1.36', '1.37', '1.40' or '2026-11'"),
        ('[[export]]\nendpoint = "http://a"\nheaders = { "a b" = "c" }', "'a b' is not the name of a header"),
        ('[export]\nendpoint = "http://a"', "under \\[\\[export\\]\\] in double brackets"),
    ],
)
def test_a_wrong_target_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Failure, match=message):
        load(tmp_path, text)


def test_a_refusal_does_not_show_the_value_of_a_header(tmp_path: Path) -> None:
    text = '[[export]]\nendpoint = "http://a"\nheaders = { X-Key = "hunter\\u0007two" }'
    with pytest.raises(Failure, match="header X-Key has characters") as refused:
        load(tmp_path, text)
    assert "hunter" not in str(refused.value)
