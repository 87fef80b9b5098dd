"""The environment variables that send a program's traffic to a worker and make it trust the worker's certificates.

Each runtime reads variables of its own. Nothing here reads the environment of this process: the user's environment is
an argument, and its entries stay unless they would lead past the worker.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import msgspec

from proxy.capture.namespace.trust_files import SYSTEM_FILES
from proxy.trust import certificate_directory

type Form = Literal["sh", "fish", "json", "dotenv"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Hosts that go past the worker. Go bypasses loopback whatever its settings, so no client should rely on the contrary."""

PRELOAD = Path(__file__).parents[1] / "clients" / "preload.cjs"

MODEL_HOSTS = (
    "api.openai.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "us-central1-aiplatform.googleapis.com",
    "bedrock-runtime.us-east-1.amazonaws.com",
    "resource.openai.azure.com",
    "api.mistral.ai",
    "api.cohere.com",
    "api.groq.com",
    "api.deepseek.com",
    "api.x.ai",
    "api.together.xyz",
    "openrouter.ai",
)
"""One host of each model API, whose calls NO_PROXY must not send past the worker."""

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
WEBSOCKET_PROXY_VARIABLES = ("WS_PROXY", "WSS_PROXY")
"""Variables that aiohttp reads for WebSockets in place of the others."""

OPENSSL_FILE_VARIABLE = "SSL_CERT_FILE"
OPENSSL_DIRECTORY_VARIABLE = "SSL_CERT_DIR"
"""The two variables that OpenSSL (Python's ssl, httpx, openai, anthropic, Ruby), Go, .NET, uv and rustls read. httpx
reads the first one that is set."""

CA_BUNDLE_VARIABLES = (
    "REQUESTS_CA_BUNDLE",  # requests ignores SSL_CERT_FILE
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",  # botocore, AWS CLI
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CARGO_HTTP_CAINFO",
    "HTTPLIB2_CA_CERTS",  # Google's older Python client
    "WEBSOCKET_CLIENT_CA_BUNDLE",  # the websocket-client package
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",  # gcloud
    "NIX_SSL_CERT_FILE",  # whatever Nix built looks there first
)
"""Variables that replace a runtime's roots. They name a file with the system's roots and Playhead's CA."""

EXTRA_CA_VARIABLES = ("NODE_EXTRA_CA_CERTS", "DENO_CERT", "CODEX_CA_CERTIFICATE")
"""Variables that add to a runtime's roots. They name a file with Playhead's CA alone."""


SECRET_VARIABLES = ("PLAYHEAD_API_TOKEN", "PLAYHEAD_TOKEN", "PLAYHEAD_DATABASE_URL")
"""Settings that recorded commands do not get: with them they could read or delete recordings, or record any run."""


class NoProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A value of NO_PROXY that does not send calls to model APIs past the worker."""

    value: str
    removed_entries: tuple[str, ...] = ()
    """The user's entries that were left out because they would send model APIs past the worker."""


def proxy_url_for_run(proxy: str, run: str, token: str | None) -> str:
    """Return the worker's URL with the run and the token as its credentials.

    The run is escaped twice: it may hold colons, which aiohttp refuses in a user name (RFC 7617, 2).
    """
    return proxy.replace("://", f"://{quote(quote(run, safe=''))}:{quote(token or 'x', safe='')}@", 1)


def proxy_variables(
    *,
    proxy: str,
    ca: str | Path,
    ca_bundle: str | Path,
    base: Mapping[str, str],
    run: str | None = None,
    api: str | None = None,
    api_token_file: Path | None = None,
    truststore: str | Path | None = None,
    bypass: bool = True,
) -> dict[str, str]:
    """Return the variables to add to the environment `base` so that programs use `proxy` (http://RUN:TOKEN@host:port).

    `bypass=False` drops the user's own NO_PROXY: in a replay nothing may reach the network.
    """
    past = no_proxy(_variable_in_either_case(base, "NO_PROXY") if bypass else "").value
    # Programs that read ALL_PROXY read the others too, and httpx loads all roots for each of the three (60 ms of CPU).
    names = PROXY_VARIABLES if _variable_in_either_case(base, "ALL_PROXY") else PROXY_VARIABLES[:2]
    both = {**dict.fromkeys((*names, *WEBSOCKET_PROXY_VARIABLES), proxy), "NO_PROXY": past}
    return {
        **both,
        **{name.lower(): value for name, value in both.items()},
        **_root_variables(ca, ca_bundle, base),
        # Otherwise git sends the credentials, which name the run, only after a 407, and workers on loopback send none.
        "GIT_HTTP_PROXY_AUTHMETHOD": "basic",
        # aiohttp itself reads no variable. litellm, which uses aiohttp, reads this one.
        "AIOHTTP_TRUST_ENV": "True",
        "NODE_USE_ENV_PROXY": "1",
        "NODE_OPTIONS": node_options(base.get("NODE_OPTIONS", "")),
        **({"JAVA_TOOL_OPTIONS": java_options(proxy, truststore, base)} if truststore else {}),
        # By this variable the thin client knows that the proxy is Playhead: it sends the names of runs to no other.
        "PLAYHEAD_PROXY": proxy,
        **({"PLAYHEAD_RUN": run} if run else {}),
        **_api_variables(api, api_token_file),
    }


def container_variables(
    *, proxy: str, host: str, ca_directory: str, run: str | None = None, api: str | None = None
) -> dict[str, str]:
    """Return the variables for a container that reaches this machine as `host` and has the certificates in `ca_directory`.

    They hold nothing from this machine's environment or file system.
    """
    directory = ca_directory.rstrip("/")
    found = proxy_variables(
        proxy=url_from_container(proxy, host),
        ca=f"{directory}/ca.pem",
        ca_bundle=f"{directory}/ca-bundle.pem",
        base={},
        run=run,
        api=api and url_from_container(api, host),
    )
    # The container does not have the preload file. Node 22.21, 24.5 and later read NODE_USE_ENV_PROXY instead.
    del found["NODE_OPTIONS"]
    return found


def url_from_container(url: str, host: str) -> str:
    """Replace a loopback address in a URL by the container's name for this machine."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK:
        return url
    user, at, _ = parts.netloc.rpartition("@")
    name = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{user}{at}{name}{f':{parts.port}' if parts.port else ''}").geturl()


def _api_variables(api: str | None, token_file: Path | None) -> dict[str, str]:
    """Return the variables with the API's URL and the path of its token. The token itself is in no environment."""
    where = {"PLAYHEAD_API": api} if api else {}
    return where | ({"PLAYHEAD_API_TOKEN_FILE": str(token_file)} if api and token_file else {})


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """Remove Playhead's secrets from an environment."""
    return {name: value for name, value in base.items() if name not in SECRET_VARIABLES}


def captive_environment(
    *,
    proxy: str,
    ca: str | Path,
    ca_bundle: str | Path,
    base: Mapping[str, str],
    run: str,
    api: str | None,
    api_token_file: Path | None = None,
) -> dict[str, str]:
    """Return the whole environment of a captive command: `base` without proxies, which it does not need, and with the CA.

    PLAYHEAD_PROXY is for the thin client, which names runs.
    """
    variables = (*PROXY_VARIABLES, *WEBSOCKET_PROXY_VARIABLES, "NO_PROXY")
    proxies = {*variables, *(name.lower() for name in variables)}
    return {
        **{name: value for name, value in without_secrets(base).items() if name not in proxies},
        **_root_variables(ca, ca_bundle, base),
        "PLAYHEAD_RUN": run,
        "PLAYHEAD_PROXY": proxy,
        **_api_variables(api, api_token_file),
    }


def _root_variables(ca: str | Path, ca_bundle: str | Path, base: Mapping[str, str]) -> dict[str, str]:
    return {
        **dict.fromkeys(CA_BUNDLE_VARIABLES, str(ca_bundle)),
        **dict.fromkeys(EXTRA_CA_VARIABLES, str(ca)),
        **_openssl_roots(ca, ca_bundle, base),
    }


def _openssl_roots(ca: str | Path, ca_bundle: str | Path, base: Mapping[str, str]) -> dict[str, str]:
    """Name the directory, which clients load fastest, unless the user's environment names a file, which would win."""
    directory = Path(ca_bundle).with_name(certificate_directory.DIRECTORY_NAME)
    if OPENSSL_FILE_VARIABLE in base or str(ca_bundle) == str(ca) or not directory.is_dir():
        return {OPENSSL_FILE_VARIABLE: str(ca_bundle)}
    theirs = [entry for entry in base.get(OPENSSL_DIRECTORY_VARIABLE, "").split(os.pathsep) if entry]
    return {OPENSSL_DIRECTORY_VARIABLE: os.pathsep.join(dict.fromkeys([str(directory), *theirs]))}


def without_system_certificate_file(base: Mapping[str, str]) -> dict[str, str]:
    """Remove an SSL_CERT_FILE that names one of the system's files, whose roots Playhead's directory also has."""
    return {name: value for name, value in base.items() if name != OPENSSL_FILE_VARIABLE or value not in SYSTEM_FILES}


def replay_ca_file(worker_info: Mapping[str, Any], tunnelled: Sequence[str], base: Mapping[str, str]) -> str:
    """Return the file with the roots that a replayed command needs: mostly Playhead's CA alone.

    Reading that takes 2 ms, and reading the system's roots 60 ms. They are needed only for hosts that pass undecrypted,
    or when the user names a company's CA.
    """
    own = [root for root in user_roots(base) if str(root) not in SYSTEM_FILES]
    return str(worker_info["ca_bundle"] if tunnelled or own else worker_info["ca"])


def no_proxy(theirs: str) -> NoProxy:
    """Build a NO_PROXY of loopback and of those of the user's entries that cover none of the hosts of models."""
    entries = [entry for entry in re.split(r"[\s,]+", theirs) if entry]
    removed_entries = tuple(entry for entry in entries if any(is_host_covered(entry, host) for host in MODEL_HOSTS))
    other_entries = [entry for entry in entries if entry not in removed_entries]
    return NoProxy(value=",".join(dict.fromkeys([*LOOPBACK, *other_entries])), removed_entries=removed_entries)


def is_host_covered(entry: str, host: str) -> bool:
    """Whether any client reads this NO_PROXY entry as covering the host. Clients differ; the widest reading counts."""
    name = re.sub(r":\d+$", "", entry.lower()).lstrip("*")
    if entry == "*" or not name.strip("."):
        return True
    if _is_in_network(name, host):
        return True
    return host == name.lstrip(".") or host.endswith("." + name.lstrip("."))


def _is_in_network(name: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(name, strict=False)
    except ValueError:
        return False


def user_proxy(base: Mapping[str, str]) -> str | None:
    """Return the proxy that the user's environment names, such as a company's, for the worker to use."""
    if "PLAYHEAD_RUN" in base or "PLAYHEAD_PROXY" in base:
        return None  # it is another proxy worker
    return _variable_in_either_case(base, "HTTPS_PROXY") or _variable_in_either_case(base, "ALL_PROXY") or None


def user_roots(base: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files with roots, such as a company's CA, that the user's environment names."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    return tuple(dict.fromkeys(Path(base[name]) for name in names if base.get(name)))


def _variable_in_either_case(base: Mapping[str, str], name: str) -> str:
    return base.get(name.lower()) or base.get(name) or ""


def node_options(theirs: str) -> str:
    """Add the preload that makes Node's own clients use the proxy to the user's NODE_OPTIONS."""
    ours = f"--require {_quote_for_node(str(PRELOAD))}"
    return theirs if ours in theirs else f"{theirs} {ours}".strip()


def _quote_for_node(path: str) -> str:
    """Quote for node's `ParseNodeOptionsEnvVar`: double quotes, with backslashes before quotes and backslashes."""
    if re.fullmatch(r"[\w./+@:-]+", path):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def java_options(proxy: str, truststore: str | Path, base: Mapping[str, str]) -> str:
    """Return JAVA_TOOL_OPTIONS. A JVM cannot be given proxy credentials, so its calls are attributed by other evidence."""
    parts = urlsplit(proxy)
    options = {
        "https.proxyHost": parts.hostname,
        "https.proxyPort": parts.port,
        "http.proxyHost": parts.hostname,
        "http.proxyPort": parts.port,
        "http.nonProxyHosts": "localhost|127.*|[::1]",
        "javax.net.ssl.trustStore": truststore,
        "javax.net.ssl.trustStoreType": "PKCS12",
    }
    ours = " ".join(_quote_for_java(f"-D{name}={value}") for name, value in options.items())
    theirs = base.get("JAVA_TOOL_OPTIONS", "")
    return theirs if ours in theirs else f"{theirs} {ours}".strip()


def _quote_for_java(option: str) -> str:
    """Quote for the JVM, which knows quotes but no escapes within them."""
    if not re.search(r"\s|['\"]", option):
        return option
    return f'"{option}"' if '"' not in option else f"'{option}'"


def render_variables(values: Mapping[str, str], form: Form = "sh") -> str:
    """Render the variables in a shell's or a file format's syntax."""
    match form:
        case "sh":
            return _join_lines(f"export {name}={shlex.quote(value)}" for name, value in values.items())
        case "fish":
            return _join_lines(f"set -gx {name} {_quote_for_fish(value)}" for name, value in values.items())
        case "dotenv":
            return _join_lines(f"{name}={_quote_for_dotenv(value)}" for name, value in values.items())
        case "json":
            return json.dumps(values, indent=2) + "\n"


def _join_lines(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _quote_for_fish(value: str) -> str:
    """Quote for fish, in whose single quotes only a backslash and a single quote are special."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quote_for_dotenv(value: str) -> str:
    """Quote only where necessary: docker's `--env-file` keeps quotes as part of the value."""
    if re.fullmatch(r"[\w./:@,+=%-]*", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def environment_problems(base: Mapping[str, str]) -> tuple[str, ...]:
    """Return the problems in the user's own environment, one sentence each."""
    user_value = base.get("no_proxy") or base.get("NO_PROXY") or ""
    removed_entries = no_proxy(user_value).removed_entries
    return tuple(
        f"NO_PROXY has {entry!r}, which sends calls to model APIs past the proxy: record and replay ignore it; remove it"
        " from your shell's environment too"
        for entry in removed_entries
    )
