"""Every setting that the deployment files and the docs name is one, and reaches the processes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import _OTHER_VARIABLES, load_settings, setting_descriptions

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = ROOT / "docker-compose.yml"

SETTINGS = {f"PLAYHEAD_{name.upper()}" for name in setting_descriptions()}

OTHERS = {
    *(f"PLAYHEAD_{name.upper()}" for name in _OTHER_VARIABLES),
    "PLAYHEAD_PG_BINDIR",
    "PLAYHEAD_SCRATCH",  # given to the commands of trials
    "PLAYHEAD_VERDICTS",  # of the model server (inference/), a program of its own
}
"""Variables of ours that are no settings of `playhead`."""

FIXED = {
    "PLAYHEAD_DATA",
    "PLAYHEAD_PART",
    "PLAYHEAD_PROXY_PORT",
    "PLAYHEAD_API_PORT",
    "PLAYHEAD_TRANSPARENT",
    "PLAYHEAD_PROFILE",
    "PLAYHEAD_EXPORT",
    "PLAYHEAD_RETENTION",
    "PLAYHEAD_CANARY",
    "PLAYHEAD_TOKEN_FILE",  # compose asks for the token itself
}
"""What a container has from its image or its ports; what only a file can hold."""


def named_variables() -> Iterator[tuple[str, str]]:
    """Each variable of ours that somebody is told to set, with its file."""
    files = [COMPOSE, *(ROOT / "deploy").rglob("*"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    for file in files:
        # The action is a program of its own, whose variables are its inputs.
        if file.is_file() and "action" not in file.parts:
            for name in re.findall(r"(?<![\w])PLAYHEAD_[A-Z_]*[A-Z]\b", file.read_text("utf-8", "ignore")):
                yield str(file.relative_to(ROOT)), name.partition("__")[0]


def environments() -> dict[str, dict[str, Any]]:
    """What each of our services in the compose file is given."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: services[name]["environment"] for name in ("store", "proxy")}


def test_every_variable_that_is_named_is_a_setting() -> None:
    found = set(named_variables())
    assert len(found) > 10
    assert {one for one in found if one[1] not in SETTINGS | OTHERS} == set()


@pytest.mark.parametrize("service", ["store", "proxy"])
def test_compose_passes_every_setting_on(service: str) -> None:
    given = set(environments()[service])
    assert given - SETTINGS == {
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"),
        *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    }
    lacking = SETTINGS - given - FIXED - ({"PLAYHEAD_STORE_URL"} if service == "store" else set())
    assert lacking == set(), "set in a shell or .env, these would have no effect in the container"


def test_images_have_the_settings_that_are_fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for image, part in (("store", "store"), ("proxy", "proxy")):
        for name in SETTINGS:
            monkeypatch.delenv(name, raising=False)
        line = next(
            one for one in (ROOT / f"deploy/{image}.Dockerfile").read_text().split("\n") if "PLAYHEAD_PART" in one
        )
        for name, value in re.findall(r"(PLAYHEAD_\w+)=(\S+)", line):
            assert name in SETTINGS
            monkeypatch.setenv(name, value)
        # What compose gives beside, and nothing for what is not set.
        given = environments()[image]
        for name, value in given.items():
            monkeypatch.setenv(name, re.sub(r"\$\{(\w+)[^}]*\}", r"given-\1", value or ""))
        monkeypatch.setenv("PLAYHEAD_UPSTREAMS", '{"api.openai.com": "http://inference:9000"}')
        found = load_settings({}, None)
        assert (found.part, str(found.data), found.listen) == (part, "/var/lib/playhead", "0.0.0.0")
        assert found.upstreams == {"api.openai.com": "http://inference:9000"}
