"""Sign certificates for hosts with a CA, and create and read one. `ca` imports this only when it is needed."""

import datetime
import ipaddress
from collections import OrderedDict

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = datetime.timedelta(days=730)
LEAF_LIFE = datetime.timedelta(days=14)
BACKDATING = datetime.timedelta(days=1)
"""Certificates begin this long ago, because clients' clocks may be slow."""

CA_BACKDATING = datetime.timedelta(days=3650)
"""A CA begins this long ago: the clock of a replay may be that of its recording, which can be older than the CA."""

MAX_CACHED_LEAVES = 1024


class Leaf(msgspec.Struct, frozen=True):
    """A certificate for one host and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class LeafSigner:
    """Signs certificates for hosts with the certificate and the key of a CA."""

    def __init__(self, certificate: bytes, key: bytes, *, is_backdated: bool) -> None:
        """`is_backdated`: whether leaves are valid as long as the CA has been."""
        self._issuer = read_certificate(certificate)
        self._key = read_key(key)
        self._is_backdated = is_backdated
        # The key of all leaves of this process. It is never written to disk.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaves: OrderedDict[str, Leaf] = OrderedDict()

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
                since=self._issuer.not_valid_before_utc if self._is_backdated else None,
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


def self_signed_leaf(host: str) -> Leaf:
    """Return a certificate that nobody trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    builder = _certificate_builder(LEAF_LIFE).subject_name(name).issuer_name(name).public_key(key.public_key())
    return Leaf(builder.sign(key, hashes.SHA256()), key)


def create_ca() -> tuple[bytes, bytes]:
    """Create a CA. Return its certificate and its key as PEM."""
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
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ca_certificate.public_bytes(pem), secret


def read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read the key of a CA. Raises ValueError."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise ValueError("is not an unencrypted PEM key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("is not an elliptic-curve key")
    return key


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read the certificate of a CA. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem)


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
