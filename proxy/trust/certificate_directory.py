"""Write a directory in which OpenSSL finds a certificate authority by the hash of its name, and reads no other.

Reading all roots from one file takes a client 20 to 60 ms of CPU for each TLS context, and httpx makes one for each proxy.
"""

import hashlib
import os
import re
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

DIRECTORY_NAME = "ca-certificates"
"""The name of the directory, beside the bundle from which it is made."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def write_directory(bundle: Path) -> None:
    """Create or renew the directory of this bundle. Programs that have the old directory open can go on reading it."""
    roots = bundle.read_bytes()
    link = bundle.with_name(DIRECTORY_NAME)
    directory = bundle.with_name(f"{DIRECTORY_NAME}-{hashlib.sha256(roots).hexdigest()[:16]}")
    if not directory.exists():
        part = directory.with_name(f".{directory.name}.{os.getpid()}")
        shutil.rmtree(part, ignore_errors=True)
        _write_files(part, roots)
        part.rename(directory)
    if not link.is_symlink() or os.readlink(link) != directory.name:
        new = link.with_name(f".{DIRECTORY_NAME}.{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(directory.name)
        new.replace(link)


def _write_files(directory: Path, roots: bytes) -> None:
    directory.mkdir(mode=0o755)
    names: Counter[str] = Counter()
    for pem in _CERTIFICATE.findall(roots):
        if name := subject_hash(pem):
            # Without the layers of a Path and a file object, which take four times as long: there are 150 of them.
            file = os.open(f"{directory}/{name}.{names[name]}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                os.write(file, pem)
            finally:
                os.close(file)
            names[name] += 1


def subject_hash(pem: bytes) -> str | None:
    """Return the name under which OpenSSL looks for a CA (`X509_NAME_hash`); None for an invalid certificate."""
    # Imported here, because a command imports this module and rarely has a directory to write: 0.07 s of CPU.
    from cryptography import x509
    from cryptography.utils import CryptographyDeprecationWarning

    with warnings.catch_warnings():
        # Old roots break rules of RFC 5280 that came later, such as that on a serial number of zero.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        try:
            subject = x509.load_pem_x509_certificate(pem).subject
        except ValueError:
            return None
    canonical = b"".join(_der(0x31, b"".join(sorted(map(_canonical_attribute, rdn)))) for rdn in subject.rdns)
    digest = hashlib.sha1(canonical).digest()  # noqa: S324 - OpenSSL's
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


def _canonical_attribute(attribute: "x509.NameAttribute[str | bytes]") -> bytes:
    """Encode a name attribute like OpenSSL's `x509_name_canon`: UTF-8, ASCII in lower case, runs of spaces as one."""
    value = attribute.value if isinstance(attribute.value, bytes) else attribute.value.encode()
    words = b" ".join(value.split()).lower()  # on bytes, so it changes ASCII only, like OpenSSL
    return _der(0x30, _der(6, _object_id(attribute.oid.dotted_string)) + _der(12, words))


def _object_id(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    return b"".join(map(_base128, (40 * first + second, *rest)))


def _base128(number: int) -> bytes:
    """Encode a number in base 128 (X.690, 8.19.2): seven bits a byte, the high bit set in all but the last."""
    low = bytes([number & 0x7F])
    while number := number >> 7:
        low = bytes([0x80 | number & 0x7F]) + low
    return low


def _der(tag: int, value: bytes) -> bytes:
    """Encode a tag, a length and a value (X.690, 8.1.3)."""
    if len(value) < 0x80:
        return bytes([tag, len(value)]) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + value
