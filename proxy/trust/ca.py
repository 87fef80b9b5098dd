"""The certificate authority of a data directory, protected by file permissions, and the certificates it signs.

`ca.key` never leaves the directory, and only its owner may read it. `ca.pem` is what clients trust. `ca-bundle.pem` also
has the system's roots, for the many variables that replace all roots by one file; `ca-certificates` is the same as a
directory.
"""

import base64
import datetime
import fcntl
import hashlib
import os
import re
import ssl
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.errors import Failure
from proxy.trust.certificate_directory import write_directory
from store.private_file import NotPrivate, read_private, require_unwritable

if TYPE_CHECKING:
    # `cryptography` takes 35 ms to import: it is imported to create a CA, and by the first leaf.
    from proxy.trust.leaves import Leaf, LeafSigner

RENEWAL: Final = "delete it and ca.pem to get a new CA"

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"

_PLAIN_KEY: Final = re.compile(rb"-----BEGIN PRIVATE KEY-----\s([A-Za-z0-9+/=\s]+)-----END PRIVATE KEY-----\s*")
_ELLIPTIC_CURVE: Final = bytes.fromhex("06072a8648ce3d0201")
"""The object identifier id-ecPublicKey (RFC 5480 2.1.1) in DER."""


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class CertificateAuthority:
    """The CA of a data directory: its files, and the means to sign with it. Created by `ensure_ca`."""

    def __init__(
        self, certificate: Path, bundle: Path, pem: tuple[bytes, bytes], valid_since: datetime.datetime
    ) -> None:
        """`pem`: the content of the certificate's and the key's file. `valid_since`: when the certificate begins."""
        self.certificate = certificate
        """The file with the CA's certificate, which clients trust."""

        self.bundle = bundle
        """The file with the CA's certificate and the system's roots."""

        self.valid_since = valid_since
        self._pem = pem
        self._is_backdated = False
        self._signer: LeafSigner | None = None
        self._preparing = threading.Lock()

    def for_recorded_clocks(self) -> "CertificateAuthority":
        """Return the authority with leaves for clients that may have the clock of a recording."""
        backdated = CertificateAuthority(self.certificate, self.bundle, self._pem, self.valid_since)
        backdated._is_backdated = True
        return backdated

    def leaf(self, host: str) -> "Leaf":
        """Return a certificate for a host name or address. It is renewed when half its life is over."""
        return (self._signer or self.prepare()).leaf(host)

    def prepare(self) -> "LeafSigner":
        """Import and make what the first leaf needs. Any thread may call this."""
        from proxy.trust.leaves import LeafSigner

        with self._preparing:
            if self._signer is None:
                self._signer = LeafSigner(*self._pem, is_backdated=self._is_backdated)
            return self._signer


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
        pem = _read_ca(certificate, key_file)
        valid_since = _check_quickly(certificate, key_file, pem[1]) or _check_thoroughly(certificate, key_file, pem)
        roots = merge_roots([certificate])
        if not _is_written(bundle, roots, 0o644):
            # Only then: a Java truststore is made again, in 0.2 s, whenever the bundle was written.
            _write_whole(bundle, roots, 0o644)
        write_directory(bundle)
    return CertificateAuthority(certificate, bundle, pem, valid_since)


def merge_roots(own: Iterable[Path]) -> bytes:
    """Merge the system's roots, those of certifi and these files, each certificate once."""
    blocks: dict[bytes, None] = {}
    for path in (*_root_files(), *own):
        blocks |= dict.fromkeys(_read_certificates(path, _state(path)))
    return b"".join(blocks)


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(8)
def _read_certificates(path: Path, _state: tuple[int, int, int]) -> tuple[bytes, ...]:
    """Read the certificates of a file. A worker needs the system's twice, and one that was forked has them already."""
    # Without a regular expression, which takes 2 ms for the system's file.
    pieces = path.read_bytes().replace(b"\r", b"").split(_END)[:-1]
    found = (piece[begin:] for piece in pieces if (begin := piece.find(_BEGIN)) >= 0)
    return tuple(block + _END + b"\n" for block in found)


def write_roots_file(authority: CertificateAuthority, own: Iterable[Path]) -> Path:
    """Write the merged roots to a file that is named by its content, so that workers share it.

    Raises Failure if one of these files holds no certificate.
    """
    own = tuple(own)
    roots = merge_roots(own)
    if bare := next((path for path in own if not _read_certificates(path, _state(path))), None):
        raise Failure(f"the private CA file {bare} holds no certificate in PEM form: correct upstream_ca")
    path = authority.certificate.with_name(f"roots-{hashlib.sha256(roots).hexdigest()[:16]}.pem")
    if not path.exists():
        _write_whole(path, roots, 0o644)
    return path


def _root_files() -> Iterator[Path]:
    system = ssl.get_default_verify_paths().cafile
    if system is not None:
        yield Path(system)
    # As `certifi.where` does, whose imports take 7 ms.
    if (found := find_spec("certifi")) is not None and found.origin is not None:
        yield Path(found.origin).with_name("cacert.pem")


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
    from proxy.trust.leaves import create_ca

    pem, secret = create_ca()
    # The certificate is written first, so that there is never a key without one.
    _write_whole(certificate, pem, 0o644)
    _write_whole(key_file, secret, 0o600)


def _read_ca(certificate: Path, key_file: Path) -> tuple[bytes, bytes]:
    """Read the files of the CA. Raises Failure."""
    try:
        key = read_private(key_file, "the CA key", RENEWAL)
    except NotPrivate as error:
        raise Failure(str(error)) from error
    try:
        return certificate.read_bytes(), key
    except OSError as error:
        raise _unreadable_certificate(certificate, error) from error


def _check_quickly(certificate: Path, key_file: Path, key: bytes) -> datetime.datetime | None:
    """Return when the certificate begins; None unless OpenSSL says that it is valid now and has this key, an unencrypted EC key."""
    plain = _PLAIN_KEY.fullmatch(key)
    if plain is None or _ELLIPTIC_CURVE not in base64.b64decode(plain[1]):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password, so that OpenSSL asks nobody for one if the file has changed.
        context.load_cert_chain(certificate, key_file, password="")
        context.load_verify_locations(certificate)
        (found,) = context.get_ca_certs()
        since, until = (_parse_time(str(found[name])) for name in ("notBefore", "notAfter"))
    except (OSError, ValueError, KeyError):
        return None
    return since if until > datetime.datetime.now(datetime.UTC) else None


def _parse_time(text: str) -> datetime.datetime:
    """Parse OpenSSL's form: `Nov  6 13:05:00 2026 GMT`. `ssl.cert_time_to_seconds` does so as well, and imports for 4 ms. Raises ValueError."""
    month, day, time, year, _ = text.split()
    hour, minute, second = map(int, time.split(":"))
    return datetime.datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=datetime.UTC)


def _check_thoroughly(certificate: Path, key_file: Path, pem: tuple[bytes, bytes]) -> datetime.datetime:
    """Return when the certificate begins. Raises Failure with what is wrong with it or its key."""
    from proxy.trust.leaves import read_certificate, read_key

    try:
        key = read_key(pem[1])
    except ValueError as error:
        raise Failure(f"the CA key {key_file} {error}; restore it, or {RENEWAL}") from error
    try:
        found = read_certificate(pem[0])
    except ValueError as error:
        raise _unreadable_certificate(certificate, error) from error
    if found.public_key() != key.public_key():
        raise Failure(
            f"the certificate {certificate} does not belong to ca.key beside it; delete ca.key to get a new CA"
        )
    if found.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise Failure(
            f"the CA {certificate} expired on {found.not_valid_after_utc:%Y-%m-%d}; delete ca.key beside it to get a new one, "
            "and trust that where you trusted this one by hand"
        )
    return found.not_valid_before_utc


def _unreadable_certificate(path: Path, error: Exception) -> Failure:
    return Failure(f"the CA certificate {path} cannot be read ({error}); delete ca.key beside it to get a new CA")


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
