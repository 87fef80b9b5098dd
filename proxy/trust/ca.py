"""The certificate authority of a data directory, protected by file permissions, and the certificates it signs.

`ca.key` never leaves the directory and nobody else may read it. `ca.pem` is what clients trust; `ca-bundle.pem` is the
same beside the system's roots, for the many variables that replace all roots by one file; `ca-certificates` is the same as a
directory.
"""

import datetime
import fcntl
import hashlib
import ipaddress
import os
import re
import ssl
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from proxy.errors import Failure
from proxy.trust.certificate_directory import write_directory
from store.private_file import NotPrivate, read_private, require_unwritable

CA_LIFE = datetime.timedelta(days=730)
LEAF_LIFE = datetime.timedelta(days=14)
BACKDATED = datetime.timedelta(days=1)
"""Clients' clocks may be slow."""

LEAVES_KEPT = 1024

RENEWAL = "delete it and ca.pem to get a new CA"

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\r?\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate for one host, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """The CA of a data directory: its files, and what signs with it. Made by `ensure`."""

    certificate: Path
    """What clients trust."""

    bundle: Path
    """The same and the system's roots."""

    _issuer: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)
    _leaf_key: ec.EllipticCurvePrivateKey = field(
        repr=False, default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    """One for all leaves of this process; it is never written."""

    _leaves: OrderedDict[str, Leaf] = field(repr=False, default_factory=OrderedDict)

    def leaf(self, host: str) -> Leaf:
        """A certificate for a host name or address, made once and again when half its life is over."""
        found = self._leaves.get(host)
        if found is None or _half_over(found.certificate):
            found = Leaf(self._signed(host), self._leaf_key)
            self._leaves[host] = found
        self._leaves.move_to_end(host)
        while len(self._leaves) > LEAVES_KEPT:
            self._leaves.popitem(last=False)
        return found

    def _signed(self, host: str) -> x509.Certificate:
        name = _general_name(host)
        # The common name is for people; RFC 5280 allows 64 characters, and clients look at the alternative name only.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(name.value)[:64])])
        ski = self._issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usage = _usage(digital_signature=True)
        return (
            _dated(LEAF_LIFE, until=self._issuer.not_valid_after_utc)
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


def ensure(directory: Path) -> CertificateAuthority:
    """The CA of this directory; made if there is none. Raises Failure where its key could be read or changed by others."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        require_unwritable(directory, "the directory of the CA")
    except NotPrivate as error:
        raise Failure(str(error)) from error
    key_file, certificate, bundle = (directory / name for name in ("ca.key", "ca.pem", "ca-bundle.pem"))
    with _locked(directory):
        if not key_file.exists(follow_symlinks=False):
            _make(key_file, certificate)
        key = _read_key(key_file)
        issuer = _read_certificate(certificate, key)
        _write(bundle, merged([certificate]), 0o644)
        write_directory(bundle)
    return CertificateAuthority(certificate, bundle, issuer, key)


def merged(own: Iterable[Path]) -> bytes:
    """The system's roots, those that Python programs bring along, and these files, each certificate once."""
    blocks: dict[bytes, None] = {}
    for path in (*_roots(), *own):
        for block in _CERTIFICATE.findall(path.read_bytes()):
            blocks[block.replace(b"\r", b"").rstrip(b"\n") + b"\n"] = None
    return b"".join(blocks)


def roots_file(authority: CertificateAuthority, own: Iterable[Path]) -> Path:
    """What `merged` gives as a file, since OpenSSL wants one. It is named by its content and stays: workers share it.

    Raises Failure where one of these files holds no certificate.
    """
    own = tuple(own)
    roots = merged(own)
    if bare := next((path for path in own if not _CERTIFICATE.search(path.read_bytes())), None):
        raise Failure(f"the private CA file {bare} holds no certificate in PEM form; correct upstream_ca")
    path = authority.certificate.with_name(f"roots-{hashlib.sha256(roots).hexdigest()[:16]}.pem")
    if not path.exists():
        _write(path, roots, 0o644)
    return path


def _roots() -> Iterator[Path]:
    system = ssl.get_default_verify_paths().cafile
    if system is not None:
        yield Path(system)
    yield Path(certifi.where())


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Several workers start at once; one of them makes the CA."""
    handle = os.open(directory / "ca.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(key_file: Path, certificate: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Playhead"),
            x509.NameAttribute(NameOID.COMMON_NAME, "Playhead CA"),
        ]
    )
    made = (
        _dated(CA_LIFE)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        # Python 3.13 verifies with X509_STRICT, which refuses a CA without these two.
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    # The certificate first: a key without one is never left behind.
    _write(certificate, made.public_bytes(pem), 0o644)
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key_file, secret, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and with its permissions from the first byte."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


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
        raise Failure(f"the CA key {path} is no elliptic-curve key; {RENEWAL}")
    return key


def _read_certificate(path: Path, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Failure(
            f"the CA certificate {path} cannot be read ({error}); delete ca.key beside it to get a new CA"
        ) from error
    if found.public_key() != key.public_key():
        raise Failure(f"{path} and ca.key beside it do not belong together; delete ca.key to get a new CA")
    if found.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise Failure(
            f"the CA {path} expired on {found.not_valid_after_utc:%Y-%m-%d}; delete ca.key beside it to get a new one, "
            "and trust that where you trusted this one by hand"
        )
    return found


def _dated(life: datetime.timedelta, until: datetime.datetime | None = None) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + life if until is None else min(now + life, until)
    serial = x509.random_serial_number()
    return x509.CertificateBuilder().not_valid_before(now - BACKDATED).not_valid_after(end).serial_number(serial)


def _half_over(certificate: x509.Certificate) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return datetime.datetime.now(datetime.UTC) > start + (end - start) / 2


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode() if not host.isascii() else host)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
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
