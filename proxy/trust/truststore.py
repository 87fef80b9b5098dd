"""Convert a CA bundle to PKCS #12, the only external format that a JVM reads."""

import re
import warnings

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def build_truststore(bundle: bytes) -> bytes:
    """Convert a PEM bundle to a truststore. It has no password, because certificates are not secret."""
    certificates = [_load_certificate(pem) for pem in _CERTIFICATE.findall(bundle)]
    entries = [PKCS12Certificate(one, b"%d" % number) for number, one in enumerate(certificates) if one is not None]
    return serialize_java_truststore(entries, NoEncryption())


def _load_certificate(pem: bytes) -> x509.Certificate | None:
    """Load a certificate; None if cryptography refuses it."""
    with warnings.catch_warnings():
        # Old roots break rules of RFC 5280 that came later, such as that on a serial number of zero.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        try:
            return x509.load_pem_x509_certificate(pem)
        except ValueError:
            return None
