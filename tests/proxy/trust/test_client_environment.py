"""The environment of a wrapped program, tested with its readers: shells, Node, Java, requests, urllib, python-dotenv."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import dotenv
import httpx
import pytest
import requests.utils
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.recording.run_identity import parse_credentials
from proxy.trust import ca
from proxy.trust import client_environment as environ
from proxy.trust.client_environment import (
    CA_BUNDLE_VARIABLES,
    EXTRA_CA_VARIABLES,
    MODEL_HOSTS,
    Form,
    captive_environment,
    container_variables,
    no_proxy,
    node_options,
    proxy_url_for_run,
    proxy_variables,
    render_variables,
    replay_ca_file,
    url_from_container,
    user_proxy,
    without_system_certificate_file,
)

ROOT = Path(environ.__file__).parents[2]
PROXY = "http://run-7:secret@127.0.0.1:8080"

values = st.dictionaries(
    st.from_regex(r"PLAYHEAD_T_[A-Z]{1,8}", fullmatch=True),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r")),
    max_size=4,
)


def make_variables(base: dict[str, str] | None = None, **more: str | bool) -> dict[str, str]:
    return proxy_variables(proxy=PROXY, ca="/d/ca.pem", ca_bundle="/d/bundle.pem", base=base or {}, **more)  # type: ignore[arg-type]


def needs(program: str) -> str:
    return shutil.which(program) or pytest.skip(f"{program} is not installed here")


def test_a_container_is_given_no_address_and_no_path_of_this_machine() -> None:
    got = container_variables(
        proxy=PROXY,
        host="host.docker.internal",
        ca_directory="/etc/playhead/",
        run="run-7",
        api="http://127.0.0.1:8081",
    )
    assert got["HTTPS_PROXY"] == got["PLAYHEAD_PROXY"] == "http://run-7:secret@host.docker.internal:8080"
    assert got["PLAYHEAD_API"] == "http://host.docker.internal:8081"
    paths = {value for value in got.values() if value.startswith("/")}
    assert paths == {"/etc/playhead/ca.pem", "/etc/playhead/ca-bundle.pem"}
    assert got.keys() >= {*CA_BUNDLE_VARIABLES, *EXTRA_CA_VARIABLES}
    left = {name for name, value in got.items() if "127.0.0.1" in value or "localhost" in value or str(ROOT) in value}
    assert left == {"NO_PROXY", "no_proxy"}


@pytest.mark.parametrize(
    ("url", "host", "seen"),
    [
        ("http://r:t@127.0.0.1:8080", "10.0.0.1", "http://r:t@10.0.0.1:8080"),
        ("http://[::1]:8081", "fd00::1", "http://[fd00::1]:8081"),
        ("http://store:8081", "proxy", "http://store:8081"),
    ],
)
def test_only_a_loopback_address_is_another_for_a_container(url: str, host: str, seen: str) -> None:
    assert url_from_container(url, host) == seen


def test_every_runtime_gets_the_variable_that_it_reads() -> None:
    got = make_variables(run="run-7", api="http://127.0.0.1:8081")
    for name in ("HTTP_PROXY", "https_proxy", "WSS_PROXY", "ws_proxy"):
        assert got[name] == PROXY
    assert "ALL_PROXY" not in got
    for name in ("ALL_PROXY", "all_proxy"):
        assert (
            make_variables({name: "socks5://company"})["all_proxy"]
            == make_variables({name: "socks5://company"})["ALL_PROXY"]
            == PROXY
        )
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO"):
        assert got[name] == "/d/bundle.pem", "a variable that replaces the roots must hold them all"
    assert got["NODE_EXTRA_CA_CERTS"] == "/d/ca.pem"
    assert (got["PLAYHEAD_RUN"], got["PLAYHEAD_API"]) == ("run-7", "http://127.0.0.1:8081")
    assert got["NO_PROXY"] == got["no_proxy"] == "localhost,127.0.0.1,::1"


def test_a_replayed_command_needs_no_roots_but_ours_unless_the_user_names_some() -> None:
    place = {"ca": "/d/ca.pem", "ca_bundle": "/d/bundle.pem"}
    for base in ({}, {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}):
        assert replay_ca_file(place, (), base) == "/d/ca.pem"
    assert replay_ca_file(place, ("pinned.example.com",), {}) == "/d/bundle.pem"
    assert replay_ca_file(place, (), {"SSL_CERT_FILE": "/company.pem"}) == "/d/bundle.pem"


def test_openssl_looks_its_roots_up_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = ca.ensure_ca(tmp_path)
    trust: dict[str, Any] = {"proxy": PROXY, "ca": authority.certificate, "ca_bundle": authority.bundle}
    base = {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt", "SSL_CERT_DIR": "/company"}
    recorded = proxy_variables(**trust, base=without_system_certificate_file(base))
    captive = captive_environment(**trust, base=without_system_certificate_file(base), run="r", api=None)
    for got in (recorded, captive):
        assert "SSL_CERT_FILE" not in got, "httpx would read it whole, three times"
        assert got["SSL_CERT_DIR"] == f"{tmp_path / 'ca-certificates'}:/company"
    assert proxy_variables(**trust, base=base)["SSL_CERT_FILE"] == str(authority.bundle), (
        "what is exported unsets nothing"
    )
    assert proxy_variables(**trust, base={"SSL_CERT_FILE": "/own.pem"})["SSL_CERT_FILE"] == str(authority.bundle)
    alone = proxy_variables(**{**trust, "ca_bundle": authority.certificate}, base={})
    assert alone["SSL_CERT_FILE"] == str(authority.certificate), "in a replay it is the only one"

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", recorded["SSL_CERT_DIR"])
    context = httpx.create_ssl_context()
    assert context.cert_store_stats()["x509"] == 0, "a client reads no root before it needs one"


def test_java_is_left_alone_without_a_truststore() -> None:
    assert "JAVA_TOOL_OPTIONS" not in make_variables({"JAVA_TOOL_OPTIONS": "-Xmx1g"})
    assert make_variables({"JAVA_TOOL_OPTIONS": "-Xmx1g"}, truststore="/d/t.p12")["JAVA_TOOL_OPTIONS"].startswith(
        "-Xmx1g -D"
    )


def test_wrapping_twice_adds_nothing_twice() -> None:
    base = {"NODE_OPTIONS": "--max-old-space-size=99", "JAVA_TOOL_OPTIONS": "-Xmx1g", "NO_PROXY": "intra.corp"}
    once = make_variables(base, truststore="/d/t.p12")
    assert make_variables({**base, **once}, truststore="/d/t.p12") == once


def test_a_run_id_with_colons_survives_as_credentials() -> None:
    url = proxy_url_for_run("http://127.0.0.1:8080", "team:nightly:4", "tok/en")
    user, token = requests.utils.get_auth_from_url(url)
    assert ":" not in user, "aiohttp refuses one"
    for sent in (f"{user}:{token}", "team:nightly:4:tok/en"):
        assert parse_credentials(f"Basic {base64.b64encode(sent.encode()).decode()}") == ("team:nightly:4", "tok/en")


entries = st.one_of(
    st.sampled_from([*MODEL_HOSTS, "*", ".", "*.com", ".com", "com", "10.0.0.0/8", "0.0.0.0/0", "::/0", "intra.corp"]),
    st.builds(
        lambda host, cut, before, after: before + ".".join(host.split(".")[cut:]) + after,
        st.sampled_from(MODEL_HOSTS),
        st.integers(0, 3),
        st.sampled_from(["", ".", "*.", "*"]),
        st.sampled_from(["", ":443", ":80"]),
    ),
    st.text(st.sampled_from("abz*.:/09-"), max_size=8),
)


@given(st.lists(entries), st.sampled_from([",", ", ", " "]))
@example([".openai.com"], ",")
@example(["*"], ",")
@example(["OpenAI.com:443"], ",")
def test_no_client_that_reads_our_no_proxy_lets_a_model_escape(theirs: list[str], separator: str) -> None:
    value = no_proxy(separator.join(theirs)).value
    for host in MODEL_HOSTS:
        assert not urllib.request.proxy_bypass_environment(host, {"no": value})  # type: ignore[attr-defined]
        assert not requests.utils.should_bypass_proxies(f"https://{host}/", value)


def test_a_no_proxy_that_hides_models_is_reported_and_the_rest_is_kept() -> None:
    found = no_proxy("intra.corp, .openai.com 10.0.0.0/8,localhost")
    assert found.removed_entries == (".openai.com",)
    assert found.value == "localhost,127.0.0.1,::1,intra.corp,10.0.0.0/8"


def test_in_replay_nothing_but_loopback_goes_past_the_worker() -> None:
    assert make_variables({"no_proxy": "intra.corp"}, bypass=False)["NO_PROXY"] == "localhost,127.0.0.1,::1"


def test_the_companys_proxy_is_found_and_our_own_is_not_taken_for_it() -> None:
    assert user_proxy({"https_proxy": "http://proxy.corp:3128"}) == "http://proxy.corp:3128"
    assert user_proxy(make_variables(run="outer")) is None
    assert user_proxy({}) is None


def test_roots_that_the_user_names_are_found_once() -> None:
    base = {"SSL_CERT_FILE": "/corp.pem", "REQUESTS_CA_BUNDLE": "/corp.pem", "NODE_EXTRA_CA_CERTS": "/more.pem"}
    assert environ.user_roots(base) == (Path("/corp.pem"), Path("/more.pem"))


def read_back(shell: str, script: str, names: list[str]) -> dict[str, str]:
    prints = "".join(f"printf '%s\\0' \"${name}\"; " for name in names)
    out = subprocess.run([shell, "-c", script + prints], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    return dict(zip(names, out.stdout.decode().split("\0"), strict=False))


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_reads_back_what_was_written(shell: str) -> None:
    program = needs(shell)
    hostile = {"PLAYHEAD_A": 'it\'s $HOME `id` "x" \\ \n é', "PLAYHEAD_B": "", "PLAYHEAD_C": "-n"}
    assert read_back(program, render_variables(hostile, "sh"), list(hostile)) == hostile


def fish_unquoted(text: str) -> str:
    """Unquote by fish's rule for single quotes: a backslash is special only before a backslash and a single quote."""
    assert text.startswith("'")
    assert text.endswith("'")
    assert not re.search(r"(?<!\\)(\\\\)*'", text[1:-1])
    return re.sub(r"\\([\\'])", r"\1", text[1:-1])


@given(values)
def test_fish_reads_back_what_was_written(given_values: dict[str, str]) -> None:
    text = render_variables(given_values, "fish")
    found = re.findall(r"^set -gx (\w+) ('(?:\\[\\']|[^'])*')$", text, re.MULTILINE)
    assert {name: fish_unquoted(value) for name, value in found} == given_values


@given(values)
def test_dotenv_reads_back_what_was_written(given_values: dict[str, str]) -> None:
    text = render_variables(given_values, "dotenv")
    assert dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False) == given_values


@given(values)
def test_json_reads_back_what_was_written(given_values: dict[str, str]) -> None:
    assert json.loads(render_variables(given_values, "json")) == given_values


@pytest.mark.parametrize("form", ["sh", "fish", "dotenv"])
def test_a_usual_environment_is_one_line_for_each_variable(form: Form) -> None:
    got = make_variables(run="run-7")
    assert len(render_variables(got, form).splitlines()) == len(got)


@pytest.mark.parametrize("place", ["plain", "with space", 'with "quote" and \\'])
def test_node_finds_the_preload_wherever_we_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    node = needs("node")
    preload = tmp_path / place / "preload.cjs"
    preload.parent.mkdir()
    preload.write_text("globalThis.here = 'loaded'")
    monkeypatch.setattr(environ, "PRELOAD", preload)
    env = {**os.environ, "NODE_OPTIONS": node_options("--no-warnings")}
    out = subprocess.run([node, "-p", "here"], capture_output=True, text=True, check=True, env=env)
    assert out.stdout == "loaded\n"


@pytest.mark.parametrize("place", ["/plain/t.p12", "/with space/t.p12"])
def test_java_reads_its_options_whole(place: str) -> None:
    java = needs("java")
    env = {**os.environ, **make_variables(truststore=place)}
    out = subprocess.run(
        [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True, env=env
    )
    shown = {name: value for name, _, value in (line.strip().partition(" = ") for line in out.stderr.splitlines())}
    assert shown["javax.net.ssl.trustStore"] == place
    assert (shown["https.proxyHost"], shown["https.proxyPort"]) == ("127.0.0.1", "8080")
    assert "secret" not in out.stderr, "a JVM prints the options that it picks up"
