"""Chromium and its relatives, and Firefox, get a policy by which they trust Playhead's CA, beside the policies that they have."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from proxy.capture.namespace import browser_policies
from proxy.capture.namespace.browser_policies import policy_binds
from proxy.capture.namespace.trust_files import AuthorityFiles
from proxy.trust.ca import ensure_ca


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFiles:
    return AuthorityFiles(certificate=ensure_ca(tmp_path / "keys").certificate, java=None)


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system's directory of settings, which has some for other programs."""
    place = tmp_path / "etc"
    place.mkdir()
    (place / "hostname").write_text("here")
    homes = ("chromium", "opt/chrome", "opt/edge")
    monkeypatch.setattr(
        browser_policies, "POLICY_DIRECTORIES", [(str(place / home), "policies/managed") for home in homes]
    )
    monkeypatch.setattr(
        browser_policies, "FIREFOX_DIRECTORIES", [str(place / home) for home in ("firefox/policies", "distribution")]
    )
    return place


def _policies(copy: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in copy.glob("*.json")}


def _certificate(authority: AuthorityFiles) -> str:
    return "".join(authority.certificate.read_text().splitlines()[1:-1])


def test_the_policy_is_added_to_the_files_of_a_browser(authority: AuthorityFiles, etc: Path) -> None:
    (etc / "chromium").mkdir()
    (etc / "chromium" / "master_preferences").write_text("{}")
    [(copy, target)] = policy_binds(authority)
    assert target == str(etc / "chromium")
    assert (Path(copy) / "master_preferences").read_text() == "{}"
    assert _policies(Path(copy, "policies", "managed")) == {
        "playhead.json": {"CACertificates": [_certificate(authority)]}
    }
    assert os.listdir(etc / "chromium") == ["master_preferences"]
    assert policy_binds(authority) == [(copy, target)]


def test_a_policy_that_names_other_certificates_keeps_them(authority: AuthorityFiles, etc: Path) -> None:
    managed = etc / "chromium" / "policies" / "managed"
    managed.mkdir(parents=True)
    (managed / "own.json").write_text('{"CACertificates": ["QUJD"], "HomepageLocation": "x"}')
    (managed / "broken.json").write_text("{")
    (managed / "broken.json").chmod(0o644)
    [(copy, target)] = policy_binds(authority)
    assert target == str(managed)
    own = json.loads((Path(copy) / "own.json").read_text())
    assert own == {"CACertificates": ["QUJD", _certificate(authority)], "HomepageLocation": "x"}
    assert sorted(os.listdir(copy)) == ["broken.json", "own.json"]
    (managed / "own.json").write_text('{"CACertificates": []}')
    [(changed, _)] = policy_binds(authority)
    assert json.loads((Path(changed) / "own.json").read_text()) == {"CACertificates": [_certificate(authority)]}


def test_browsers_whose_directories_are_missing_share_an_empty_one_above(authority: AuthorityFiles, etc: Path) -> None:
    assert policy_binds(authority) == [], "the directory above has files of other programs"
    (etc / "opt").mkdir()
    [(copy, target)] = policy_binds(authority)
    assert target == str(etc / "opt")
    assert {path.parent.parent.parent.name for path in Path(copy).rglob("playhead.json")} == {"chrome", "edge"}
    (etc / "opt" / "other").mkdir()
    assert policy_binds(authority) == []


def test_nothing_is_written_through_a_symbolic_link(authority: AuthorityFiles, etc: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "managed").mkdir(parents=True)
    (etc / "chromium").mkdir()
    (etc / "chromium" / "policies").symlink_to(elsewhere)
    linked = tmp_path / "linked.json"
    linked.write_text('{"CACertificates": []}')
    policy_binds(authority)
    assert os.listdir(elsewhere / "managed") == []
    (etc / "chromium" / "policies").unlink()
    (etc / "chromium" / "policies" / "managed").mkdir(parents=True)
    (etc / "chromium" / "policies" / "managed" / "linked.json").symlink_to(linked)
    [(copy, _)] = policy_binds(authority)
    assert linked.read_text() == '{"CACertificates": []}'
    assert (Path(copy) / "playhead.json").exists()


def test_a_directory_with_much_in_it_is_left_as_it_is(
    authority: AuthorityFiles, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_policies, "MAX_ENTRIES", 3)
    (etc / "chromium").mkdir()
    for number in range(4):
        (etc / "chromium" / str(number)).write_text("")
    assert policy_binds(authority) == []


def test_firefox_installs_the_ca_beside_what_its_policies_say(authority: AuthorityFiles, etc: Path) -> None:
    (etc / "shared" / "searchplugins").mkdir(parents=True)
    (etc / "distribution").symlink_to("shared")
    target = str(etc / "shared")
    certificate = f"{target}/playhead-ca.pem"
    [(copy, mounted_on)] = policy_binds(authority)
    assert mounted_on == target
    assert sorted(os.listdir(copy)) == ["playhead-ca.pem", "policies.json", "searchplugins"]
    assert Path(copy, "playhead-ca.pem").read_bytes() == authority.certificate.read_bytes()
    assert _policies(Path(copy)) == {"policies.json": {"policies": {"Certificates": {"Install": [certificate]}}}}
    own = {
        "policies": {"DisableTelemetry": True, "Certificates": {"Install": ["a.pem"], "ImportEnterpriseRoots": True}}
    }
    (etc / "shared" / "policies.json").write_text(json.dumps(own))
    [(changed, _)] = policy_binds(authority)
    own["policies"]["Certificates"]["Install"] = ["a.pem", certificate]  # type: ignore[index] # both are objects
    assert _policies(Path(changed)) == {"policies.json": own}
    assert sorted(os.listdir(etc / "shared")) == ["policies.json", "searchplugins"]


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_policies_of_firefox_that_cannot_be_read_stay(authority: AuthorityFiles, etc: Path, text: str) -> None:
    (etc / "firefox" / "policies").mkdir(parents=True)
    (etc / "firefox" / "policies" / "policies.json").write_text(text)
    [(copy, _)] = policy_binds(authority)
    assert Path(copy, "policies.json").read_text() == text
