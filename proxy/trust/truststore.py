"""Write a CA bundle as a PKCS #12 file, the only form that a JVM takes from outside."""

import re
import warnings

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def truststore(bundle: bytes) -> bytes:
    """The certificates of a PEM bundle as a truststore without a password: there is nothing secret in it."""
    certificates = [_read(pem) for pem in _CERTIFICATE.findall(bundle)]
    entries = [PKCS12Certificate(one, b"%d" % number) for number, one in enumerate(certificates) if one is not None]
    return serialize_java_truststore(entries, NoEncryption())


def _read(pem: bytes) -> x509.Certificate | None:
    """None for a root that cryptography refuses."""
    with warnings.catch_warnings():
        # Old roots break rules of RFC 5280 that did not matter when they were made (a serial number of zero).
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        try:
            return x509.load_pem_x509_certificate(pem)
        except ValueError:
            return None
