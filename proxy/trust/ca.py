"""The certificate authority of a data directory, protected by file permissions, and the certificates it signs.

`ca.key` never leaves the directory, and only its owner may read it. `ca.pem` is what clients trust. `ca-bundle.pem` also
has the system's roots, for the many variables that replace all roots by one file; `ca-certificates` is the same as a
directory.
"""

import datetime
import fcntl
import hashlib
import ipaddress
import os
import re
import ssl
import stat
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import certifi
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxy.errors import Failure
from proxy.trust.certificate_directory import write_directory
from store.private_file import NotPrivate, read_private, require_unwritable

CA_LIFE = datetime.timedelta(days=730)
LEAF_LIFE = datetime.timedelta(days=14)
BACKDATING = datetime.timedelta(days=1)
"""Certificates begin this long ago, because clients' clocks may be slow."""

CA_BACKDATING = datetime.timedelta(days=3650)
"""A CA begins this long ago: the clock of a replay may be that of its recording, which can be older than the CA."""

MAX_CACHED_LEAVES = 1024

RENEWAL = "delete it and ca.pem to get a new CA"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\r?\n?", re.DOTALL)


class Leaf(msgspec.Struct, frozen=True):
    """A certificate for one host and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """The CA of a data directory: its files, and the means to sign with it. Created by `ensure_ca`."""

    certificate: Path
    """The file with the CA's certificate, which clients trust."""

    bundle: Path
    """The file with the CA's certificate and the system's roots."""

    _issuer: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)
    _leaf_key: ec.EllipticCurvePrivateKey = field(
        repr=False, default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    """The key of all leaves of this process. It is never written to disk."""

    _leaves: OrderedDict[str, Leaf] = field(repr=False, default_factory=OrderedDict)
    _is_backdated: bool = False
    """Whether leaves are valid as long as the CA has been."""

    @property
    def valid_since(self) -> datetime.datetime:
        """When the CA's certificate begins."""
        return self._issuer.not_valid_before_utc

    def for_recorded_clocks(self) -> "CertificateAuthority":
        """Return the authority with leaves for clients that may have the clock of a recording."""
        return replace(self, _is_backdated=True)

    def leaf(self, host: str) -> Leaf:
        """Return a certificate for a host name or address. It is renewed when half its life is over."""
        leaf = self._leaves.get(host)
        if leaf is None or self._is_soon_over(leaf.certificate):
            leaf = Leaf(self._sign_leaf(host), self._leaf_key)
            self._leaves[host] = leaf
        self._leaves.move_to_end(host)
        while len(self._leaves) > MAX_CACHED_LEAVES:
            self._leaves.popitem(last=False)
        return leaf

    def _is_soon_over(self, leaf: x509.Certificate) -> bool:
        start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        now = datetime.datetime.now(datetime.UTC)
        if self._is_backdated:
            return end - now < LEAF_LIFE / 2 and end < self._issuer.not_valid_after_utc
        return now > start + (end - start) / 2

    def _sign_leaf(self, host: str) -> x509.Certificate:
        name = _general_name(host)
        # RFC 5280 allows 64 characters in the common name. Clients look at the alternative name only.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(name.value)[:64])])
        ski = self._issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usage = _key_usage(digital_signature=True)
        return (
            _certificate_builder(
                LEAF_LIFE,
                since=self.valid_since if self._is_backdated else None,
                until=self._issuer.not_valid_after_utc,
            )
            .subject_name(subject)
            .issuer_name(self._issuer.subject)
            .public_key(self._leaf_key.public_key())
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def ensure_ca(directory: Path) -> CertificateAuthority:
    """Load or create the CA of this directory. Raises Failure if other users can read or change its key."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        require_unwritable(directory, "the directory of the CA")
    except NotPrivate as error:
        raise Failure(str(error)) from error
    key_file, certificate, bundle = (directory / name for name in ("ca.key", "ca.pem", "ca-bundle.pem"))
    with _hold_lock(directory):
        if not key_file.exists(follow_symlinks=False):
            _create_ca(key_file, certificate)
        key = _read_key(key_file)
        issuer = _read_certificate(certificate, key)
        roots = merge_roots([certificate])
        if not _is_written(bundle, roots, 0o644):
            # Only then: a Java truststore is made again, in 0.2 s, whenever the bundle was written.
            _write_whole(bundle, roots, 0o644)
        write_directory(bundle)
    return CertificateAuthority(certificate, bundle, issuer, key)


def self_signed_leaf(host: str) -> Leaf:
    """Return a certificate that nobody trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    builder = _certificate_builder(LEAF_LIFE).subject_name(name).issuer_name(name).public_key(key.public_key())
    return Leaf(builder.sign(key, hashes.SHA256()), key)


def merge_roots(own: Iterable[Path]) -> bytes:
    """Merge the system's roots, those of certifi and these files, each certificate once."""
    blocks: dict[bytes, None] = {}
    for path in (*_root_files(), *own):
        status = path.stat()
        blocks |= dict.fromkeys(_read_certificates(path, (status.st_mtime_ns, status.st_size, status.st_ino)))
    return b"".join(blocks)


@lru_cache(8)
def _read_certificates(path: Path, _state: tuple[int, int, int]) -> tuple[bytes, ...]:
    """Read the certificates of a file. A worker needs the system's twice, and one that was forked has them already."""
    found = _CERTIFICATE.findall(path.read_bytes())
    return tuple(block.replace(b"\r", b"").rstrip(b"\n") + b"\n" for block in found)


def write_roots_file(authority: CertificateAuthority, own: Iterable[Path]) -> Path:
    """Write the merged roots to a file that is named by its content, so that workers share it.

    Raises Failure if one of these files holds no certificate.
    """
    own = tuple(own)
    roots = merge_roots(own)
    if bare := next((path for path in own if not _CERTIFICATE.search(path.read_bytes())), None):
        raise Failure(f"the private CA file {bare} holds no certificate in PEM form: correct upstream_ca")
    path = authority.certificate.with_name(f"roots-{hashlib.sha256(roots).hexdigest()[:16]}.pem")
    if not path.exists():
        _write_whole(path, roots, 0o644)
    return path


def _root_files() -> Iterator[Path]:
    system = ssl.get_default_verify_paths().cafile
    if system is not None:
        yield Path(system)
    yield Path(certifi.where())


@contextmanager
def _hold_lock(directory: Path) -> Iterator[None]:
    """Lock the directory: when several workers start at once, one of them creates the CA."""
    handle = os.open(directory / "ca.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _create_ca(key_file: Path, certificate: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Playhead"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Playhead CA"),
        ]
    )
    ca_certificate = (
        _certificate_builder(CA_LIFE, since=datetime.datetime.now(datetime.UTC) - CA_BACKDATING)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        # Python 3.13 verifies with X509_STRICT, which refuses a CA without these two.
        .add_extension(_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    # The certificate is written first, so that there is never a key without one.
    _write_whole(certificate, ca_certificate.public_bytes(pem), 0o644)
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_whole(key_file, secret, 0o600)


def _write_whole(path: Path, data: bytes, mode: int) -> None:
    """Write a file atomically, with its permissions from the first byte on."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _is_written(path: Path, data: bytes, mode: int) -> bool:
    """Whether a file is there with this content and these permissions."""
    try:
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == mode and path.read_bytes() == data
    except OSError:
        return False


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        data = read_private(path, "the CA key", RENEWAL)
    except NotPrivate as error:
        raise Failure(str(error)) from error
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise Failure(f"the CA key {path} is not an unencrypted PEM key; restore it, or {RENEWAL}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Failure(f"the CA key {path} is not an elliptic-curve key; {RENEWAL}")
    return key


def _read_certificate(path: Path, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(
            f"the CA certificate {path} cannot be read ({error}); delete ca.key beside it to get a new CA"
        ) from error
    if found.public_key() != key.public_key():
        raise Failure(f"the certificate {path} does not belong to ca.key beside it; delete ca.key to get a new CA")
    if found.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise Failure(
            f"the CA {path} expired on {found.not_valid_after_utc:%Y-%m-%d}; delete ca.key beside it to get a new one, "
            "and trust that where you trusted this one by hand"
        )
    return found


def _certificate_builder(
    life: datetime.timedelta, since: datetime.datetime | None = None, until: datetime.datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    start = now - BACKDATING if since is None else since
    end = now + life if until is None else min(now + life, until)
    serial = x509.random_serial_number()
    return x509.CertificateBuilder().not_valid_before(start).not_valid_after(end).serial_number(serial)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode() if not host.isascii() else host)


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
