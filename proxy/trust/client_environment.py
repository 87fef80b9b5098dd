"""The environment variables that send a program's traffic to a worker and make it trust the worker's certificates.

There is no one variable for it: each runtime reads its own. Nothing here reads the environment of this process; what
the user has is handed in, and kept where it does not lead past the worker.
"""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from proxy.capture.namespace.trust_files import SYSTEM_FILES
from proxy.trust import certificate_directory

type Form = Literal["sh", "fish", "json", "dotenv"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""What goes past the worker: Go bypasses loopback whatever it is told, so nobody must come to rely on the contrary."""

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
"""One host for each API of which nobody means to lose the calls."""

PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
WEBSOCKET_PROXY = ("WS_PROXY", "WSS_PROXY")
"""Read by aiohttp, which sends WebSockets past the others."""

OPENSSL_FILE = "SSL_CERT_FILE"
OPENSSL_DIRECTORY = "SSL_CERT_DIR"
"""Read by OpenSSL (Python's ssl, httpx, openai, anthropic, Ruby), Go, .NET, uv and rustls. httpx reads the first one that is set."""

CA_BUNDLE = (
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
"""Variables that replace a runtime's roots: they get the system's roots and our CA in one file."""

CA_ALONE = ("NODE_EXTRA_CA_CERTS", "DENO_CERT", "CODEX_CA_CERTIFICATE")
"""Variables that add to a runtime's roots."""


WITHHELD = ("PLAYHEAD_API_TOKEN", "PLAYHEAD_TOKEN", "PLAYHEAD_DATABASE_URL")
"""Settings with which a command that is recorded could read or delete recordings, or record under any name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProxy:
    """A NO_PROXY that does not let the calls escape that are to be recorded."""

    value: str
    left_out: tuple[str, ...] = ()
    """The user's entries that would have sent model APIs past the worker."""


def addressed(proxy: str, run: str, token: str | None) -> str:
    """The worker's URL with a run as its credentials. A run id may hold colons, which no user's name may: aiohttp refuses them
    (RFC 7617, 2), so they come to us escaped twice (`identity.credentials`)."""
    return proxy.replace("://", f"://{quote(quote(run, safe=''))}:{quote(token or 'x', safe='')}@", 1)


def variables(
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
    """What to add to the environment `base` so that programs go through `proxy` (http://RUN:TOKEN@host:port).

    `bypass=False` drops the user's own NO_PROXY: in replay nothing may reach a network.
    """
    past = no_proxy(_either_case(base, "NO_PROXY") if bypass else "").value
    # Whoever reads ALL_PROXY reads the others too, and httpx loads all roots once for each of the three (60 ms of CPU).
    names = PROXY if _either_case(base, "ALL_PROXY") else PROXY[:2]
    both = {**dict.fromkeys((*names, *WEBSOCKET_PROXY), proxy), "NO_PROXY": past}
    return {
        **both,
        **{name.lower(): value for name, value in both.items()},
        **_root_variables(ca, ca_bundle, base),
        # Without it git sends the credentials, and so the run, only after a 407 that no worker on loopback gives.
        "GIT_HTTP_PROXY_AUTHMETHOD": "basic",
        # aiohttp itself looks at no variable; litellm, which rides on it, looks at this one.
        "AIOHTTP_TRUST_ENV": "True",
        "NODE_USE_ENV_PROXY": "1",
        "NODE_OPTIONS": node_options(base.get("NODE_OPTIONS", "")),
        **({"JAVA_TOOL_OPTIONS": java_options(proxy, truststore, base)} if truststore else {}),
        # How the thin client knows that these proxies are ours: it names runs to nobody else.
        "PLAYHEAD_PROXY": proxy,
        **({"PLAYHEAD_RUN": run} if run else {}),
        **_api_variables(api, api_token_file),
    }


def container_variables(
    *, proxy: str, host: str, ca_directory: str, run: str | None = None, api: str | None = None
) -> dict[str, str]:
    """The variables for a container, which reaches this machine as `host` and has the certificates in `ca_directory`.

    Nothing of this machine's environment or file system is in them.
    """
    directory = ca_directory.rstrip("/")
    found = variables(
        proxy=seen_from_container(proxy, host),
        ca=f"{directory}/ca.pem",
        ca_bundle=f"{directory}/ca-bundle.pem",
        base={},
        run=run,
        api=api and seen_from_container(api, host),
    )
    # The preload is a file of ours. Node 22.21, 24.5 and later need none: they read NODE_USE_ENV_PROXY.
    del found["NODE_OPTIONS"]
    return found


def seen_from_container(url: str, host: str) -> str:
    """The same URL with a name for this machine in place of a loopback address."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK:
        return url
    user, at, _ = parts.netloc.rpartition("@")
    name = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{user}{at}{name}{f':{parts.port}' if parts.port else ''}").geturl()


def _api_variables(api: str | None, token_file: Path | None) -> dict[str, str]:
    """Where the API is, and where its token lies for those who may read it: the token itself stands in no environment."""
    where = {"PLAYHEAD_API": api} if api else {}
    return where | ({"PLAYHEAD_API_TOKEN_FILE": str(token_file)} if api and token_file else {})


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """An environment for somebody else's command."""
    return {name: value for name, value in base.items() if name not in WITHHELD}


def captive_variables(
    *,
    proxy: str,
    ca: str | Path,
    ca_bundle: str | Path,
    base: Mapping[str, str],
    run: str,
    api: str | None,
    api_token_file: Path | None = None,
) -> dict[str, str]:
    """The whole environment of a captive command: `base` without proxies, which it does not need, and with our CA.

    PLAYHEAD_PROXY is for our own thin client, which names runs.
    """
    named = (*PROXY, *WEBSOCKET_PROXY, "NO_PROXY")
    proxies = {*named, *(name.lower() for name in named)}
    return {
        **{name: value for name, value in without_secrets(base).items() if name not in proxies},
        **_root_variables(ca, ca_bundle, base),
        "PLAYHEAD_RUN": run,
        "PLAYHEAD_PROXY": proxy,
        **_api_variables(api, api_token_file),
    }


def _root_variables(ca: str | Path, ca_bundle: str | Path, base: Mapping[str, str]) -> dict[str, str]:
    return {
        **dict.fromkeys(CA_BUNDLE, str(ca_bundle)),
        **dict.fromkeys(CA_ALONE, str(ca)),
        **_openssl_roots(ca, ca_bundle, base),
    }


def _openssl_roots(ca: str | Path, ca_bundle: str | Path, base: Mapping[str, str]) -> dict[str, str]:
    """A directory costs a client next to nothing, but a file that the user's environment names would be preferred to it."""
    directory = Path(ca_bundle).with_name(certificate_directory.NAME)
    if OPENSSL_FILE in base or str(ca_bundle) == str(ca) or not directory.is_dir():
        return {OPENSSL_FILE: str(ca_bundle)}
    theirs = [entry for entry in base.get(OPENSSL_DIRECTORY, "").split(os.pathsep) if entry]
    return {OPENSSL_DIRECTORY: os.pathsep.join(dict.fromkeys([str(directory), *theirs]))}


def without_system_file(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without an SSL_CERT_FILE that names what our directory holds anyway."""
    return {name: value for name, value in base.items() if name != OPENSSL_FILE or value not in SYSTEM_FILES}


def replay_roots(place: Mapping[str, Any], tunnelled: Sequence[str], base: Mapping[str, str]) -> str:
    """The roots that a replayed command needs: our CA, which signs all that it can reach, is read in 2 ms and the system's in 60.

    Hosts that pass undecrypted, or a company's CA that the user names, are a reason to keep all of them.
    """
    own = [root for root in user_roots(base) if str(root) not in SYSTEM_FILES]
    return str(place["ca_bundle"] if tunnelled or own else place["ca"])


def no_proxy(theirs: str, hosts: Sequence[str] = MODEL_HOSTS) -> NoProxy:
    """Loopback, and the user's own entries but for those that cover one of the hosts."""
    entries = [entry for entry in re.split(r"[\s,]+", theirs) if entry]
    left_out = tuple(entry for entry in entries if any(covers(entry, host) for host in hosts))
    kept = [entry for entry in entries if entry not in left_out]
    return NoProxy(value=",".join(dict.fromkeys([*LOOPBACK, *kept])), left_out=left_out)


def covers(entry: str, host: str) -> bool:
    """Whether some client reads this NO_PROXY entry as covering the host. Clients differ; the widest reading counts."""
    name = re.sub(r":\d+$", "", entry.lower()).lstrip("*")
    if entry == "*" or not name.strip("."):
        return True
    if _network_covers(name, host):
        return True
    return host == name.lstrip(".") or host.endswith("." + name.lstrip("."))


def _network_covers(name: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(name, strict=False)
    except ValueError:
        return False


def user_proxy(base: Mapping[str, str]) -> str | None:
    """The proxy that the user's own environment names (a company's), for the worker to go through in its turn."""
    if "PLAYHEAD_RUN" in base or "PLAYHEAD_PROXY" in base:
        return None  # a worker of ours, around this one
    return _either_case(base, "HTTPS_PROXY") or _either_case(base, "ALL_PROXY") or None


def user_roots(base: Mapping[str, str]) -> tuple[Path, ...]:
    """Files with roots that the user's environment names: a company's CA, which our bundle must not take away."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    return tuple(dict.fromkeys(Path(base[name]) for name in names if base.get(name)))


def _either_case(base: Mapping[str, str], name: str) -> str:
    return base.get(name.lower()) or base.get(name) or ""


def node_options(theirs: str) -> str:
    """The user's NODE_OPTIONS, with the preload that makes Node's own clients obey a proxy."""
    ours = f"--require {_node_quoted(str(PRELOAD))}"
    return theirs if ours in theirs else f"{theirs} {ours}".strip()


def _node_quoted(path: str) -> str:
    """As node's `ParseNodeOptionsEnvVar` reads it: double quotes, with backslashes before quotes and backslashes."""
    if re.fullmatch(r"[\w./+@:-]+", path):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def java_options(proxy: str, truststore: str | Path, base: Mapping[str, str]) -> str:
    """A JVM reads no proxy variable and cannot be given credentials: its calls find their run by other rules."""
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
    ours = " ".join(_java_quoted(f"-D{name}={value}") for name, value in options.items())
    theirs = base.get("JAVA_TOOL_OPTIONS", "")
    return theirs if ours in theirs else f"{theirs} {ours}".strip()


def _java_quoted(option: str) -> str:
    """The JVM knows quotes and no escape within them."""
    if not re.search(r"\s|['\"]", option):
        return option
    return f'"{option}"' if '"' not in option else f"'{option}'"


def render(values: Mapping[str, str], form: Form = "sh") -> str:
    """The variables in the language that will read them."""
    match form:
        case "sh":
            return _lines(f"export {name}={shlex.quote(value)}" for name, value in values.items())
        case "fish":
            return _lines(f"set -gx {name} {_fish_quoted(value)}" for name, value in values.items())
        case "dotenv":
            return _lines(f"{name}={_dotenv_quoted(value)}" for name, value in values.items())
        case "json":
            return json.dumps(values, indent=2) + "\n"


def _lines(lines: Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _fish_quoted(value: str) -> str:
    """In fish's single quotes only a backslash and a single quote are special."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _dotenv_quoted(value: str) -> str:
    """Bare where every reader agrees (docker's `--env-file` keeps quotes as they are), else in single quotes."""
    if re.fullmatch(r"[\w./:@,+=%-]*", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
