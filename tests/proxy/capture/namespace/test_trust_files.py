"""Programs that read the copies of CA files trust Playhead's CA beside those that they trusted before."""

import subprocess
from pathlib import Path

import pytest

from proxy.capture.namespace import system_files, trust_files
from proxy.capture.namespace.trust_files import AuthorityFiles, trust_binds
from proxy.trust.ca import ensure_ca

ROOT = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFiles:
    return AuthorityFiles(certificate=ensure_ca(tmp_path / "keys").certificate, java=None)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with one file of roots, which has a link, and one directory of them."""
    place = tmp_path / "system"
    (place / "certs").mkdir(parents=True)
    (place / "roots.pem").write_text(ROOT)
    (place / "link.pem").symlink_to("roots.pem")
    (place / "certs" / "bundle.crt").write_text(ROOT)
    (place / "certs" / "0badc0de.0").symlink_to("bundle.crt")
    files = [str(place / name) for name in ("link.pem", "roots.pem", "certs/bundle.crt", "missing.pem")]
    monkeypatch.chdir(place)  # a .venv in the current directory is searched
    monkeypatch.setattr(trust_files, "SYSTEM_FILES", files)
    monkeypatch.setattr(trust_files, "SYSTEM_DIRECTORIES", [str(place / "certs"), str(place / "none")])
    return place


def test_each_file_is_shown_once_with_our_ca_behind_its_own(authority: AuthorityFiles, system: Path) -> None:
    binds = {target: Path(copy) for copy, target in trust_binds(authority, (), {"PATH": ""})}
    assert set(binds) == {str(system / "roots.pem"), str(system / "certs")}
    assert binds[str(system / "roots.pem")].read_text() == ROOT + authority.certificate.read_text()
    assert (system / "roots.pem").read_text() == ROOT
    copied = binds[str(system / "certs")]
    assert (copied / "bundle.crt").read_text() == ROOT + authority.certificate.read_text()
    assert (copied / "0badc0de.0").is_symlink()


def test_openssl_finds_our_ca_in_the_directory(authority: AuthorityFiles, system: Path) -> None:
    line = ["openssl", "x509", "-hash", "-noout", "-in", str(authority.certificate)]
    try:
        wanted = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        pytest.skip("openssl is not installed here")
    binds = {target: Path(copy) for copy, target in trust_binds(authority, (), {"PATH": ""})}
    hashed = binds[str(system / "certs")] / f"{wanted}.0"
    assert hashed.read_bytes() == authority.certificate.read_bytes()


def test_a_copy_follows_what_it_was_made_of(authority: AuthorityFiles, system: Path) -> None:
    before = {target: copy for copy, target in trust_binds(authority, (), {"PATH": ""})}
    again = {target: copy for copy, target in trust_binds(authority, (), {"PATH": ""})}
    assert again == before
    (system / "roots.pem").write_text(ROOT * 2)
    changed = {target: copy for copy, target in trust_binds(authority, (), {"PATH": ""})}
    assert Path(changed[str(system / "roots.pem")]).read_text().count("QUJD") == 2


def test_the_packages_of_the_python_in_the_command_are_found(
    authority: AuthorityFiles, system: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    bundle = environment / "lib" / "python3.12" / "site-packages" / "certifi" / "cacert.pem"
    bundle.parent.mkdir(parents=True)
    bundle.write_text(ROOT)
    (environment / "bin").mkdir()
    script = environment / "bin" / "agent"
    script.write_text(f"#!{environment}/bin/python\n")
    script.chmod(0o755)
    elsewhere = tmp_path / "agent"
    elsewhere.write_text(script.read_text())
    elsewhere.chmod(0o755)
    for command in ([str(script)], ["env", "-i", str(script)], [str(elsewhere)]):
        assert str(bundle) in [target for _, target in trust_binds(authority, command, {"PATH": ""})], command


def test_names_are_asked_of_files_and_servers_alone() -> None:
    theirs = "passwd: files systemd\nhosts: mymachines resolve [!UNAVAIL=return] files mdns4_minimal [NOTFOUND=return] myhostname dns\n"
    assert system_files.dns_only_nsswitch(theirs) == "passwd: files systemd\nhosts: mymachines files myhostname dns\n"
    assert system_files.dns_only_nsswitch("hosts: files resolve\n") == "hosts: files dns\n"


def test_a_name_server_on_an_interface_is_replaced_and_search_domains_stay() -> None:
    theirs = "search corp.example\nnameserver fe80::1%eth0\nnameserver 10.0.0.1\noptions use-vc ndots:2\n"
    ours = "search corp.example\nnameserver 127.0.0.53\nnameserver 10.0.0.1\noptions ndots:2\n"
    assert system_files.reachable_resolv_conf(theirs) == ours
