"""The non-public parts of mitmproxy that the engine uses. An upgrade that changes one of them fails here, by name."""

import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h2.connection
import pytest
from h11._receivebuffer import ReceiveBuffer
from mitmproxy import connection, http
from mitmproxy.net import tls as net_tls
from mitmproxy.net.http.http1 import read
from mitmproxy.proxy import commands, events, layer, mode_specs, server
from mitmproxy.proxy import layers as their_layers
from mitmproxy.proxy.layers import http as their_http
from mitmproxy.proxy.layers import tcp, tls
from mitmproxy.proxy.layers.http import _http1, _http2, _http_h2
from mitmproxy.proxy.layers.http import _upstream_proxy as above
from OpenSSL import SSL

from proxy.mitm import connection as mitm_connection
from proxy.mitm import layer_events, layers, stream, tunnel, upgraded_connection
from proxy.mitm.protocol import http1, http2
from proxy.wire import engine_state


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("mitmproxy").startswith("12.2.")


@pytest.mark.parametrize("name", sorted(layers.REPLACEMENTS))
def test_mitmproxy_looks_its_connections_up_by_name(name: str) -> None:
    made_in = (their_http.HttpLayer._handle_event, their_http.HttpClient._handle_event)
    assert any(name in inspect.unwrap(method).__code__.co_names for method in made_in)
    theirs = getattr(_http1 if name.startswith("Http1") else _http2, name)
    assert issubclass(layers.REPLACEMENTS[name], theirs)


def test_installing_replaces_them() -> None:
    layers.install()
    assert {name: getattr(their_http, name) for name in layers.REPLACEMENTS} == layers.REPLACEMENTS
    assert "make_error_response" in inspect.unwrap(_http1.Http1Server.read_headers).__code__.co_names
    assert _http1.make_error_response is http1.error_response


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (http1.Http1, _http1.Http1Connection),
        (http1.Http1ClientSide, _http1.Http1Server),
        (http1.Http1UpstreamSide, _http1.Http1Client),
        (http2.Http2, _http2.Http2Connection),
        (http2.Http2ClientSide, _http2.Http2Server),
        (http2.Http2UpstreamSide, _http2.Http2Client),
        (http2.BufferedHttp2, _http_h2.BufferedH2Connection),
        (layers.Http, their_http.HttpLayer),
        (stream.Stream, their_http.HttpStream),
        (mitm_connection.MitmConnection, server.LiveConnectionHandler),
        (tunnel.OpaqueTunnel, tcp.TCPLayer),
        (upgraded_connection.UpgradedConnection, tcp.TCPLayer),
    ],
)
def test_what_we_override_is_there_and_takes_what_we_take(ours: type, theirs: type) -> None:
    overridden = OVERRIDDEN[ours.__qualname__, ours.__module__.rpartition(".")[2]]
    for name in overridden:
        assert name in vars(ours), f"{ours} does not override {name}"
        mine, original = (inspect.signature(getattr(kind, name)) for kind in (ours, theirs))
        assert len(mine.parameters) == len(original.parameters), f"{theirs.__name__}.{name} takes {original}"


OVERRIDDEN: dict[tuple[str, str], tuple[str, ...]] = {
    ("Http1", "http1"): ("read_body",),
    ("Http1ClientSide", "http1"): ("_handle_event", "read_headers", "send"),
    ("Http1UpstreamSide", "http1"): ("read_headers", "send"),
    ("Http2", "http2"): ("handle_h2_event", "_handle_event"),
    ("Http2ClientSide", "http2"): ("_handle_event",),
    ("Http2UpstreamSide", "http2"): ("_handle_event", "_handle_event2", "handle_h2_event"),
    ("BufferedHttp2", "http2"): ("__init__", "_receive_goaway_frame"),
    ("Http", "layers"): ("make_stream", "get_connection", "register_connection", "_handle_event"),
    ("Stream", "stream"): ("_handle_event", "passthrough"),
    ("MitmConnection", "connection"): ("handle_client", "drain_writers", "open_connection", "handle_hook", "log"),
    ("OpaqueTunnel", "tunnel"): ("start",),
    ("UpgradedConnection", "upgraded_connection"): ("relay_messages",),
}


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (_http1.Http1Connection, "buf body_reader mark_done stream_id request response state"),
        (_http1.Http1Server, "wait done"),
        (_http2.Http2Connection, "h2_conf is_open_for_us streams"),
        (_http_h2.BufferedH2Connection, "stream_buffers"),
        (_http2.Http2Client, "our_stream_id their_stream_id stream_queue"),
        (their_http.HttpStream, "mode handle_connect make_server_connection child_layer"),
        (their_http.HttpLayer, "event_to_child connections waiting_for_establishment streams"),
        (layer.Layer, "_paused_event_queue context"),
        (server.ConnectionHandler, "transports timeout_watchdog server_event handle_connection on_timeout"),
        (server.TimeoutWatchdog, "disarm"),
        (server.ConnectionIO, "handler reader writer"),
        (tls.TLSLayer, "start_tls"),
        (above.HttpUpstreamProxy, "make"),
        (connection.Server, "address via sni alpn_offers error timestamp_start peername sockname"),
        (connection.Client, "sni alpn alpn_offers tls"),
        (events.Wakeup, "command"),
        (commands.RequestWakeup, "delay"),
        (ReceiveBuffer, "maybe_extract_lines maybe_extract_at_most"),
        (h2.connection.H2Connection, "acknowledge_received_data"),
        (their_http.GetHttpConnection, "address tls via transport_protocol"),
        (their_http.RegisterHttpConnection, "connection err"),
        (http.Request, "data authority"),
    ],
)
def test_what_we_reach_for_is_there(owner: Any, names: str) -> None:
    known = _everything(owner)
    assert [name for name in names.split() if name not in known] == []


def _everything(owner: type) -> set[str]:
    """Class attributes, annotations, and what the constructors assign."""
    found = set(dir(owner))
    for kind in owner.__mro__:
        found |= set(getattr(kind, "__annotations__", ()))
        made = getattr(vars(kind).get("__init__"), "__code__", None)
        found |= set(made.co_names if made else ())
    return found


@pytest.mark.parametrize(
    "name",
    [
        "SSL_get0_param",
        "X509_VERIFY_PARAM_set_hostflags",
        "X509_VERIFY_PARAM_set1_host",
        "X509_VERIFY_PARAM_set1_ip",
        "SSL_get_verify_result",
        "X509_verify_cert_error_string",
    ],
)
def test_openssl_has_the_functions_that_set_a_certificate(name: str) -> None:
    assert hasattr(SSL._lib, name)  # type: ignore[attr-defined]


def test_the_options_that_layers_look_at_are_all_there() -> None:
    """The engine passes its own options object to mitmproxy, so it must have every option that mitmproxy reads."""
    asked = set()
    for path in Path(their_layers.__file__).parent.rglob("*.py"):
        if path.parent.name == "quic" or path.name in ("_http3.py", "_http_h3.py", "dns.py"):
            continue
        words = path.read_text().replace("context.options.", "\0").split("\0")[1:]
        asked |= {word.split("\n")[0].split(" ")[0].split(")")[0].split(":")[0].split(",")[0] for word in words}
    unknown = {name for name in asked if name.isidentifier() and not hasattr(engine_state.Options(1.0), name)}
    assert unknown <= UNREACHED


UNREACHED = {"stream_large_bodies", "body_size_limit", "proxyauth"}
"""Options that are read only by replaced methods of HttpStream, and by SOCKS."""


def test_the_functions_we_call_take_what_we_give() -> None:
    inspect.signature(net_tls.create_client_proxy_context).bind(
        method=1, min_version=1, max_version=1, cipher_list=1, ecdh_curve=1, chain_file=1, alpn_select_callback=1,
        request_client_cert=1, extra_chain_certs=1, dhparams=1,
    )  # fmt: skip
    inspect.signature(net_tls.create_proxy_server_context).bind(
        method=1, min_version=1, max_version=1, cipher_list=1, ecdh_curve=1, verify=1, ca_path=1, ca_pemfile=1,
        client_cert=1, legacy_server_connect=1,
    )  # fmt: skip
    inspect.signature(read.expected_http_body_size).bind(1, 2)
    assert mode_specs.ProxyMode.parse("reverse:https://x:1").type_name == "reverse"
    assert mode_specs.ProxyMode.parse("upstream:http://x:1").type_name == "upstream"


def test_an_await_is_a_hook_that_can_be_waited_for() -> None:
    assert layer_events.Await.blocking is True
    assert issubclass(layer_events.Await, commands.StartHook)
    assert len({layer_events.Await(None), layer_events.Await(None)}) == 2  # type: ignore[arg-type]  # they are keys of a dict


def test_the_engine_does_not_bring_mitmproxy_s_addons_along() -> None:
    """Flask, LDAP and thirty addons would add a second to every start."""
    code = "import sys, proxy.mitm.service; print(*(m for m in ('flask', 'ldap3', 'mitmproxy.addons', 'mitmproxy.master') if m in sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert ran.stdout.strip() == ""


def test_asking_for_the_engine_imports_nothing_of_mitmproxy_yet() -> None:
    code = "import sys, proxy.mitm, proxy.wire.config; print([m for m in sys.modules if m.startswith('mitmproxy')])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert ran.stdout.strip() == "[]"
