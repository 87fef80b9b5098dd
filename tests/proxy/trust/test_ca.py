import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from proxy.errors import Failure
from proxy.lane import tls
from proxy.trust import ca, leaves


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_key_is_for_nobody_else(tmp_path: Path) -> None:
    ca.ensure_ca(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_the_key_has_its_permissions_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ca.ensure_ca(tmp_path / "keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys" / "ca.key").stat().st_mode) == 0o600


def test_no_file_that_clients_trust_holds_the_key(tmp_path: Path) -> None:
    authority = ca.ensure_ca(tmp_path)
    assert b"PRIVATE" not in authority.certificate.read_bytes() + authority.bundle.read_bytes()


def test_it_is_made_once(tmp_path: Path) -> None:
    first = ca.ensure_ca(tmp_path).certificate.read_bytes()
    assert ca.ensure_ca(tmp_path).certificate.read_bytes() == first


def test_one_that_is_usable_is_checked_without_what_takes_long_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ca.ensure_ca(tmp_path)
    monkeypatch.setattr(ca, "_check_thoroughly", None)
    found = ca.ensure_ca(tmp_path)
    assert found.valid_since == made.valid_since == _certificate(found.certificate).not_valid_before_utc
    assert found.prepare() is found.prepare()


def test_it_is_made_once_though_many_start_together(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def make(_: int) -> bytes:
        start.wait()
        return ca.ensure_ca(tmp_path / "keys").certificate.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1


def test_it_can_sign_leaves_and_nothing_else(tmp_path: Path) -> None:
    made = _certificate(ca.ensure_ca(tmp_path).certificate)
    constraints = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


@pytest.mark.parametrize("mode", [0o644, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    ca.ensure_ca(tmp_path)
    (tmp_path / "ca.key").chmod(mode)
    with pytest.raises(Failure, match=r"can be read by others .*chmod 600"):
        ca.ensure_ca(tmp_path)


def test_a_key_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    ca.ensure_ca(tmp_path)
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failure, match="symbolic link"):
        ca.ensure_ca(tmp_path)


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "ca.key").symlink_to(tmp_path / "victim")
    with pytest.raises(Failure, match="symbolic link"):
        ca.ensure_ca(tmp_path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    ca.ensure_ca(tmp_path)
    os.chown(tmp_path / "ca.key", 65534, 65534)
    with pytest.raises(Failure, match="belongs to user 65534"):
        ca.ensure_ca(tmp_path)


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Failure, match="chmod 700"):
        ca.ensure_ca(tmp_path)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_certificate_is_named(tmp_path: Path, damage: bytes) -> None:
    ca.ensure_ca(tmp_path)
    (tmp_path / "ca.pem").write_bytes(damage)
    with pytest.raises(Failure, match=r"ca\.pem"):
        ca.ensure_ca(tmp_path)


@pytest.mark.parametrize("damage", [b"nonsense", b"encrypted"])
def test_a_damaged_key_is_named(tmp_path: Path, damage: bytes) -> None:
    ca.ensure_ca(tmp_path)
    if damage == b"encrypted":
        key = serialization.load_pem_private_key((tmp_path / "ca.key").read_bytes(), None)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        damage = key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"password"))
    (tmp_path / "ca.key").write_bytes(damage)
    with pytest.raises(Failure, match=r"ca\.key is not an unencrypted PEM key"):
        ca.ensure_ca(tmp_path)


def test_a_key_and_a_certificate_of_two_authorities_are_refused(tmp_path: Path) -> None:
    ca.ensure_ca(tmp_path / "a")
    ca.ensure_ca(tmp_path / "b")
    shutil.copy(tmp_path / "b" / "ca.pem", tmp_path / "a" / "ca.pem")
    with pytest.raises(Failure, match="does not belong to ca"):
        ca.ensure_ca(tmp_path / "a")


def test_an_expired_authority_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "CA_LIFE", -leaves.BACKDATING / 2)
    with pytest.raises(Failure, match="expired on"):
        ca.ensure_ca(tmp_path)


def _certificates(path: Path) -> set[bytes]:
    blocks = path.read_text().split("-----END CERTIFICATE-----")[:-1]
    return {
        ssl.PEM_cert_to_DER_cert(block[block.index("-----BEGIN") :] + "-----END CERTIFICATE-----") for block in blocks
    }


def test_the_bundle_holds_the_usual_roots_and_ours(tmp_path: Path) -> None:
    authority = ca.ensure_ca(tmp_path)
    assert _certificates(authority.bundle) >= _certificates(authority.certificate) | _certificates(
        Path(certifi.where())
    )


def test_the_bundle_holds_each_certificate_once(tmp_path: Path) -> None:
    bundle = ca.ensure_ca(tmp_path).bundle
    written = bundle.stat()
    assert ca.ensure_ca(tmp_path).bundle.stat() == written, "what is made of it would be made again"
    bundle.chmod(0o600)
    assert ca.ensure_ca(tmp_path).bundle.stat().st_mode == written.st_mode
    blocks = bundle.read_bytes().split(b"-----BEGIN CERTIFICATE-----")
    assert len(blocks) == len(set(blocks))


def test_a_leaf_is_made_once_for_a_host(tmp_path: Path) -> None:
    authority = ca.ensure_ca(tmp_path)
    assert authority.leaf("api.test") is authority.leaf("api.test")
    assert authority.leaf("other.test") is not authority.leaf("api.test")


def test_leaves_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "MAX_CACHED_LEAVES", 3)
    authority = ca.ensure_ca(tmp_path)
    first = authority.leaf("a.test")
    for host in ("b.test", "c.test", "d.test"):
        authority.leaf(host)
    assert authority.leaf("a.test") is not first


def test_a_leaf_whose_life_is_half_over_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "LEAF_LIFE", leaves.BACKDATING / 2)
    authority = ca.ensure_ca(tmp_path)
    assert authority.leaf("api.test") is not authority.leaf("api.test")


def _handshake(authority: ca.CertificateAuthority, directory: Path, host: str) -> ssl.SSLObject:
    """Make a whole TLS handshake in memory, verified as strictly as Python can."""
    leaf = authority.leaf(host)
    chain = directory / "leaf.pem"
    pem = serialization.Encoding.PEM
    chain.write_bytes(
        leaf.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + leaf.certificate.public_bytes(pem)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain)
    client = ssl.create_default_context(cafile=str(authority.certificate))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0]


@pytest.mark.parametrize("host", ["api.test", "127.0.0.1", "::1", "xn--bcher-kva.example", "a" * 60 + ".example.test"])
def test_a_strict_client_accepts_a_leaf(tmp_path: Path, host: str) -> None:
    assert _handshake(ca.ensure_ca(tmp_path), tmp_path, host).version() == "TLSv1.3"


def test_a_strict_client_refuses_a_leaf_of_another_authority(tmp_path: Path) -> None:
    authority, other = ca.ensure_ca(tmp_path / "a"), ca.ensure_ca(tmp_path / "b")
    shutil.copy(other.certificate, authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(authority, tmp_path, "api.test")


def test_a_failure_is_one_sentence_without_a_traceback(tmp_path: Path) -> None:
    ca.ensure_ca(tmp_path)
    (tmp_path / "ca.key").chmod(0o644)
    code = "import json,sys,pathlib\nfrom proxy.trust import ca\nfrom proxy.errors import Failure\ntry:\n ca.ensure_ca(pathlib.Path(sys.argv[1]))\nexcept Failure as f:\n print(json.dumps(str(f)))"
    said = json.loads(
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True).stdout
    )
    assert "\n" not in said


def test_the_directory_holds_the_bundle_under_the_names_that_openssl_looks_for(tmp_path: Path) -> None:
    openssl = shutil.which("openssl") or pytest.skip("openssl is not installed here")
    authority = ca.ensure_ca(tmp_path)
    directory = tmp_path / "ca-certificates"
    files = sorted(directory.iterdir())
    assert b"".join(sorted(one.read_bytes() for one in files)) == b"".join(sorted(_blocks(authority.bundle)))
    # Each file has one certificate, whose hash is the file's name.
    for one in files[:: max(1, len(files) // 25)] + [
        one for one in files if one.read_bytes() in _blocks(authority.certificate)
    ]:
        result = subprocess.run(
            [openssl, "x509", "-subject_hash", "-noout", "-in", str(one)], capture_output=True, check=True
        )
        assert result.stdout.decode().strip() == one.stem
    before = directory.resolve()
    ca.ensure_ca(tmp_path)
    assert directory.resolve() == before, "it is made once"
    shutil.rmtree(before)
    directory.unlink()
    ca.ensure_ca(tmp_path)
    assert len(list(directory.iterdir())) == len(files)


def _blocks(file: Path) -> list[bytes]:
    return [
        f"{block}-----END CERTIFICATE-----\n".encode()
        for block in file.read_text().split("-----END CERTIFICATE-----\n")[:-1]
    ]


def test_a_leaf_is_loaded_where_the_system_shows_no_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "OPEN_FILES", str(tmp_path / "proc" / "self" / "fd"))
    leaf = ca.ensure_ca(tmp_path).leaf("api.test")
    assert tls.server_context(leaf, alpn="http/1.1").cert_store_stats() is not None
