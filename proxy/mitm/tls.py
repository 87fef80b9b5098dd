"""TLS on both sides: a certificate by Playhead's CA for the client, full verification of the upstream, and the same ALPN
protocol on both."""

import ipaddress
from pathlib import Path
from typing import Any

from mitmproxy.net import tls as net_tls
from OpenSSL import SSL

from proxy.trust.leaves import Leaf

HTTP_ALPNS = (b"h2", b"http/1.1", b"http/1.0")


def client_side_tls(leaf: Leaf, alpn: bytes | None) -> SSL.Connection:
    """Return the server side of a handshake. `alpn` is the protocol to choose, b"" for none, None for the client's choice."""
    context = net_tls.create_client_proxy_context(
        method=net_tls.Method.TLS_SERVER_METHOD,
        min_version=net_tls.DEFAULT_MIN_VERSION,
        max_version=net_tls.DEFAULT_MAX_VERSION,
        cipher_list=None,
        ecdh_curve=None,
        chain_file=None,
        alpn_select_callback=_choose_alpn,
        request_client_cert=False,
        extra_chain_certs=(),
        dhparams=None,
    )
    connection = SSL.Connection(context)
    connection.use_certificate(leaf.certificate)
    connection.use_privatekey(leaf.key)
    connection.set_app_data(alpn)
    connection.set_accept_state()
    return connection


def _choose_alpn(connection: SSL.Connection, offered: list[bytes]) -> Any:
    alpn = connection.get_app_data()
    if alpn == b"":
        return SSL.NO_OVERLAPPING_PROTOCOLS
    if alpn in offered:
        return alpn
    return next((alpn for alpn in offered if alpn in HTTP_ALPNS), SSL.NO_OVERLAPPING_PROTOCOLS)


def upstream_side_tls(name: str, offers: tuple[bytes, ...], trust: Path) -> SSL.Connection:
    """Return the client side of a handshake. It always verifies that the certificate is valid and for this name."""
    context = net_tls.create_proxy_server_context(
        method=net_tls.Method.TLS_CLIENT_METHOD,
        min_version=net_tls.DEFAULT_MIN_VERSION,
        max_version=net_tls.DEFAULT_MAX_VERSION,
        cipher_list=None,
        ecdh_curve=None,
        verify=net_tls.Verify.VERIFY_PEER,
        ca_path=None,
        ca_pemfile=str(trust),
        client_cert=None,
        legacy_server_connect=False,
    )
    connection = SSL.Connection(context)
    _verify_name(connection, name)
    if offers:
        connection.set_alpn_protos(list(offers))
    connection.set_connect_state()
    return connection


def _verify_name(connection: SSL.Connection, name: str) -> None:
    # pyOpenSSL has no public function for this; mitmproxy's tlsconfig does the same.
    lib = SSL._lib  # type: ignore[attr-defined]
    parameters = lib.SSL_get0_param(connection._ssl)
    lib.X509_VERIFY_PARAM_set_hostflags(
        parameters, lib.X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | lib.X509_CHECK_FLAG_NEVER_CHECK_SUBJECT
    )
    try:
        address = ipaddress.ip_address(name).packed
    except ValueError:
        host = name.encode("idna") if not name.isascii() else name.encode()
        connection.set_tlsext_host_name(host)
        done = lib.X509_VERIFY_PARAM_set1_host(parameters, host, len(host))
    else:
        # RFC 6066 3: SNI must not contain literal addresses.
        done = lib.X509_VERIFY_PARAM_set1_ip(parameters, address, len(address))
    if done != 1:
        raise ValueError(f"cannot verify certificates for {name!r}")


def certificate_error(connection: SSL.Connection) -> str | None:
    """Return why the upstream's certificate was refused, or None."""
    lib = SSL._lib  # type: ignore[attr-defined]
    result = lib.SSL_get_verify_result(connection._ssl)
    if result == 0:
        return None
    return str(SSL._ffi.string(lib.X509_verify_cert_error_string(result)).decode())  # type: ignore[attr-defined]
