"""The settings: from `playhead.toml`, `PLAYHEAD_*` environment variables and flags, the later of which win.

They are read once, by the command line, which passes plain values on.
"""

import dataclasses
import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from calls.project_runs import DEFAULT_PROJECT, PROJECT_NAME
from calls.redaction.settings import RedactionSettings
from proxy.anchor_settings import TimestampSettings, WitnessSettings
from proxy.canary.canary_settings import CanarySettings
from proxy.errors import Failure
from proxy.export_settings import ExportSettings, check_endpoint
from proxy.object_settings import ObjectSettings
from proxy.retention_settings import check_duration, check_rules, check_size
from proxy.setting_values import (
    MOST_BYTES,
    UNKNOWN_NAME,
    InvalidValue,
    Reader,
    Secret,
    list_of,
    members_of,
    one_of,
    optional,
    read_any_table,
    read_database_url,
    read_fields,
    read_flag,
    read_host,
    read_path,
    read_text,
    read_token,
    read_value,
    setting,
    shown_value,
    table_of,
    whole_number,
    with_checks,
)
from proxy.worker_config import EngineName, Mode
from store.datadir import default_data_directory

UNKNOWN_SETTING = "there is no such setting; `playhead config` lists all"
_OTHER_VARIABLES = ("run", "api", "proxy", "command", "uv", "inference_env", "questions")
"""`PLAYHEAD_*` variables that are not settings."""

_TABLES: Final = "each {} is a table of its own, under {} in double brackets"

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class WrongFlag(Failure):
    """A flag on the command line has an invalid value."""


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port != 0
    except ValueError:
        # Such as a port over 65535, or a bracket without the other.
        return False
    is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and has_port
    return is_address and not (
        parts.path.strip("/") or parts.query or parts.fragment or re.search(r"[^!-~]", parts.netloc)
    )


def _parse_origin(text: str) -> str:
    if not _is_origin(text):
        raise ValueError(f"{text!r} is not an origin such as https://host:port, with a port from 1 to 65535")
    return text.rstrip("/")


def _parse_store_url(text: str) -> str:
    origin = _parse_origin(text)
    if not origin.startswith("http://"):
        raise ValueError(f"{text!r} is not the URL of a store server: it speaks plain HTTP; use http://host:port")
    return origin


def _check_project(name: str) -> str:
    if not PROJECT_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a name of a project: use 1 to 63 of a-z 0-9 . _ -, no sign first")
    return name


def _lower_names[T](table: dict[str, T]) -> dict[str, T]:
    return {host.lower(): each for host, each in table.items()}


def _check_retention(tables: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    check_rules(tables)
    return tables


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return names
    # Few have any, and every command reads the settings.
    from calls.redaction.rules.personal_names import MAX_LETTERS, MAX_NAMES, MIN_LETTERS, find_unfit_name

    if (name := find_unfit_name(names)) is not None:
        raise ValueError(
            f"{name!r:.80} cannot be looked for: a name has {MIN_LETTERS} to {MAX_LETTERS} letters; write the whole name, or leave it out"
        )
    if len(names) > MAX_NAMES:
        raise ValueError(f"{len(names)} names are more than the {MAX_NAMES} that can be looked for: list fewer")
    return names


_read_mode: Final[Reader[Mode]] = one_of("record", "replay", "auto", "passthrough")
_read_words: Final = list_of(read_text, separated=True)
_read_endpoint: Final = with_checks(read_text, check_endpoint)
_read_origin: Final = with_checks(read_text, _parse_origin)
_read_store_url: Final = with_checks(read_text, _parse_store_url)
_read_size: Final[Reader[str]] = with_checks(read_text, check_size)
_read_port: Final = whole_number(1, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelSettings:
    """Hosts whose connections pass undecrypted, for clients that pin certificates. The run gets a note of each."""

    hosts: tuple[str, ...] = setting(list_of(read_host), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. Sizes are in bytes."""

    mode: Mode = setting(_read_mode, "record", description="record, replay, auto or passthrough")
    data: Path = setting(
        read_path, factory=default_data_directory, description="where recordings, keys and the database live"
    )
    listen: str = setting(
        read_text, "127.0.0.1", description="address of the workers and the API; beyond loopback clients need a token"
    )
    proxy_port: int = setting(whole_number(0, 65535), 8080, description="port of the proxy; 0: a free one")
    api_port: int = setting(whole_number(0, 65535), 8081, description="port of the REST API; 0: a free one")
    transparent: int | None = setting(
        optional(_read_port),
        None,
        description="port for connections that the kernel redirects (playhead rules); unset: none",
    )
    workers: int = setting(whole_number(1, 64), 1, description="worker processes that share the proxy port")
    part: Literal["all", "store", "proxy"] = setting(
        one_of("all", "store", "proxy"), "all", description="what `up` runs; the images run one part each"
    )
    store_url: str | None = setting(
        optional(_read_store_url),
        None,
        description="URL of the store server for `part = proxy`, e.g. http://store:8081; unset: this machine's `api_port`",
    )
    store_idle: int = setting(
        whole_number(0, 3600),
        60,
        description="seconds that the store server and the process that forks workers, which a command started, stay ready for the next; 0: not at all",
    )
    fork_agent: str | None = setting(
        optional(_read_endpoint),
        None,
        description="URL that starts an agent for a fork, which the web page and `start` of the REST API then offer (docs/forks.md)",
    )
    project: str = setting(
        with_checks(read_text, _check_project),
        DEFAULT_PROJECT,
        description="the project to record into and to look at; a token with a project of its own has priority",
    )
    engine: EngineName = setting(
        one_of("mitmproxy", "lane"),
        "lane",
        description="the wire engine; the lane hands what it does not support to mitmproxy",
    )
    reverse: str | None = setting(
        optional(_read_origin), None, description="serve this one origin in reverse mode, e.g. https://api.openai.com"
    )
    database_url: Secret | None = setting(
        optional(read_database_url), None, description="a PostgreSQL to use instead of the embedded one"
    )
    token: Secret | None = setting(
        optional(read_token),
        None,
        description="a recording token that clients of the proxy must send; beyond loopback one is generated if none is set",
    )
    token_file: Path | None = setting(
        optional(read_path), None, description="a file to read `token` from, such as a mounted secret"
    )
    api_token: Secret | None = setting(
        optional(read_token), None, description="a token that the API accepts beside the one in the data directory"
    )
    api_token_file: Path | None = setting(
        optional(read_path), None, description="a file to read `api_token` from, such as a mounted secret"
    )
    open_api: bool = setting(
        read_flag,
        False,
        description="answer API requests on loopback without a token: every user of this machine may read and delete",
    )
    shared_runs: bool = setting(
        read_flag,
        False,
        description="let clients without a run's token write into runs that record, fork and resume began",
    )
    replay: tuple[str, ...] = setting(_read_words, (), description="runs or bundles that answer in replay mode")
    log_format: Literal["text", "json"] = setting(
        one_of("text", "json"),
        "text",
        description="how the store server and the workers log: lines for people, or a JSON object a line",
    )
    durability: Literal["process", "fsync"] = setting(
        one_of("process", "fsync"), "process", description="what the end of an answer waits for: write(2) or the disk"
    )
    on_record_failure: Literal["gap", "refuse"] = setting(
        one_of("gap", "refuse"), "gap", description="what happens to a request that cannot be recorded"
    )
    body_limit: int = setting(
        whole_number(0, MOST_BYTES),
        32 << 20,
        description="bytes recorded of one body; the rest passes, and is marked truncated",
    )
    spool_limit: int = setting(
        whole_number(1 << 20, MOST_BYTES), 2 << 30, description="bytes that may wait on disk for the database"
    )
    prices: Path | None = setting(
        optional(read_path), None, description="a TOML or JSON file of prices of your own (docs/prices.md)"
    )
    redact_personal_data: bool = setting(
        read_flag,
        False,
        description="also replace card numbers, IBANs, e-mail addresses and telephone numbers, in recording and replay",
    )
    keep_token_claims: bool = setting(
        read_flag,
        False,
        description="of signed JSON web tokens in answers, replace only the signature, for clients that decode them in a replay",
    )
    redact_names: tuple[str, ...] = setting(
        with_checks(list_of(read_text), _check_names),
        (),
        description="names of people to replace as well, in recording and replay; usually read from a file",
        is_json=True,
    )
    redact_names_file: Path | None = setting(
        optional(read_path), None, description="a file to read `redact_names` from, one name a line"
    )
    upstream_proxy: str | None = setting(
        optional(_read_origin), None, description="a proxy for upstream connections, e.g. http://proxy.corp:3128"
    )
    upstream_ca: Path | None = setting(
        optional(read_path), None, description="PEM file with private CAs that upstreams may use"
    )
    connect_ports: tuple[int, ...] = setting(
        list_of(_read_port, separated=True), (80, 443), description="ports that agents may reach"
    )
    allow_private: bool = setting(
        read_flag, False, description="let agents reach private and loopback addresses through the proxy"
    )
    upstreams: dict[str, str] = setting(
        with_checks(table_of(_read_origin), _lower_names),
        factory=dict,
        description="origins to connect to in place of hosts",
        is_json=True,
    )
    modes: dict[str, Mode] = setting(
        with_checks(table_of(_read_mode), _lower_names),
        factory=dict,
        description="the mode for a host (api.example.com, or *.example.com) in place of `mode`",
        is_json=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        list_of(read_host, separated=True),
        (),
        description="hosts that may be reached in replay, unrecorded: short for the mode passthrough",
    )
    tunnel: TunnelSettings = setting(
        members_of(TunnelSettings),
        TunnelSettings(),
        description="hosts whose connections pass undecrypted, and are noted",
        is_json=True,
    )
    profile: tuple[dict[str, Any], ...] = setting(
        list_of(read_any_table, wrong=_TABLES.format("profile", "[[profile]]")),
        (),
        description="how requests to an API become keys (docs/keys.md)",
        is_json=True,
    )
    export: tuple[ExportSettings, ...] = setting(
        list_of(members_of(ExportSettings), wrong=_TABLES.format("target", "[[export]]")),
        (),
        description="servers that receive the runs that end, as traces of OpenTelemetry (docs/operations.md)",
        is_json=True,
    )
    retention: tuple[dict[str, Any], ...] = setting(
        with_checks(list_of(read_any_table, wrong=_TABLES.format("rule", "[[retention]]")), _check_retention),
        (),
        description="how long runs are kept (docs/retention.md)",
        is_json=True,
    )
    retention_failed: str = setting(
        with_checks(read_text, check_duration),
        "forever",
        description="how long runs that ended badly are kept, e.g. 90d",
    )
    retention_budget: str | None = setting(
        optional(_read_size),
        None,
        description="size of the database from which the oldest runs go, e.g. 50GB; unset: no limit",
    )
    witness: tuple[WitnessSettings, ...] = setting(
        list_of(members_of(WitnessSettings), wrong=_TABLES.format("witness", "[[witness]]")),
        (),
        description="witnesses that cosign checkpoints: `url` and `key` of each (docs/proof.md)",
        is_json=True,
    )
    timestamp: TimestampSettings | None = setting(
        optional(members_of(TimestampSettings)),
        None,
        description="an authority that states when checkpoints existed: its `url`, and `roots`, a PEM file (docs/proof.md)",
        is_json=True,
    )
    canary: tuple[CanarySettings, ...] = setting(
        list_of(members_of(CanarySettings), wrong=_TABLES.format("canary", "[[canary]]")),
        (),
        description="calls that are asked again, to notice that a model changed (docs/canary.md)",
        is_json=True,
    )
    objects: ObjectSettings = setting(
        members_of(ObjectSettings),
        ObjectSettings(),
        description="object storage for large bodies (docs/operations.md)",
        is_json=True,
    )
    config: Path | None = setting(optional(read_path), None, description="the file that was read")
    given_names: frozenset[str] = frozenset()
    """The names of the settings that are set somewhere, perhaps to their defaults."""

    def __post_init__(self) -> None:
        if self.listen not in LOOPBACK and self.open_api:
            raise ValueError(
                f"open_api would let other machines read and delete recordings through {self.listen}: leave it out"
            )
        if self.token and ":" in self.token.get_secret_value():
            raise ValueError(
                "a token cannot contain a colon: in http://RUN:TOKEN@host the last colon ends the run's name; choose another"
            )
        if self.token and self.api_token and self.token == self.api_token:
            raise ValueError(
                "token and api_token are the same: every agent holds the first, and could delete recordings; choose two"
            )
        if self.replay and self.mode not in ("replay", "auto"):
            raise ValueError(f"mode {self.mode} answers nothing from recordings: add --mode replay to --replay")
        if self.workers > 1 and self.mode in ("replay", "auto"):
            raise ValueError(f"mode {self.mode} keeps its position in the recording in one process: use --workers 1")

    @property
    def redaction(self) -> RedactionSettings:
        """What is redacted beside secrets."""
        return RedactionSettings(
            personal_data=self.redact_personal_data,
            names=tuple(self.redact_names),
            keep_token_claims=self.keep_token_claims,
        )

    @property
    def host_modes(self) -> dict[str, Mode]:
        """The mode of each host that has its own."""
        return {**dict.fromkeys(self.allowed_hosts, "passthrough"), **self.modes}


def setting_descriptions() -> dict[str, str]:
    """Return what each setting means, in order."""
    return {field.name: field.metadata["description"] for field in _FIELDS.values()}


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return all settings as JSON has them, with secrets masked."""
    members: dict[str, Any] = shown_value(settings)
    return members


_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings) if "read" in field.metadata}


def _read_setting_files(values: dict[str, Any]) -> dict[str, Any]:
    """Add the settings that are read from files that other settings name. Raises ValueError."""
    found: dict[str, Any] = {
        name: _read_secret_file(name, file)
        for name in ("token", "api_token")
        if (file := _file_setting(f"{name}_file", values)) and not values.get(name)
    }
    if file := _file_setting("redact_names_file", values):
        from calls.redaction.rules.personal_names import read_names

        names = read_names(_read_file("redact_names_file", file, "names, one a line"))
        if not names:
            raise ValueError(f"redact_names_file: {file} holds no names: write one per line, or leave the setting out")
        found["redact_names"] = (*values.get("redact_names", ()), *names)
    if file := _file_setting("prices", values):
        from proxy.price_settings import read_prices

        read_prices(file)
    return values | found


def _file_setting(name: str, values: Mapping[str, Any]) -> Path | None:
    return read_value(name, read_path, values[name]) if values.get(name) else None


def _read_secret_file(name: str, path: Path) -> str:
    text = _read_file(f"{name}_file", path, "the token alone").strip()
    try:
        read_token(text)
    except InvalidValue as error:
        raise ValueError(f"{name}_file: {path}: {error.reason}") from error
    return text


def _read_file(name: str, path: Path, content: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{name}: cannot read {path}: {why}; name a file that holds {content}") from error


def load_settings(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """Load the settings. Raises Failure that names the file and line, variable or flag of an invalid value."""
    chosen_path = config or os.environ.get("PLAYHEAD_CONFIG")
    path = Path(chosen_path or "playhead.toml")
    file = _read_toml(path) if chosen_path or path.exists() else {}
    set_flags = {name: value for name, value in flags.items() if value is not None}
    _check_variable_names(os.environ)
    variables = _read_variables(os.environ)
    layers = _merge(_merge(file, variables), {**set_flags, "config": path if file else None})
    try:
        values = _read_setting_files(layers)
        return Settings(**read_fields(Settings, values), given_names=frozenset(values))
    except InvalidValue as error:
        raise _settings_failure(error, set_flags, variables, path) from error
    except ValueError as error:
        raise Failure(str(error)) from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Put one layer of settings over another. Of two tables, the members are merged."""
    merged = dict(below)
    for name, value in above.items():
        is_table = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merge(merged[name], value) if is_table else value
    return merged


def _read_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings that environment variables hold. An empty one is none, as in a compose file an unset one is."""
    found: dict[str, Any] = {}
    # A variable of a member, such as PLAYHEAD_TUNNEL__HOSTS, has priority over that of the table.
    for variable in sorted(environment, key=lambda name: (name.count("__"), name)):
        name, *members = variable.lower().removeprefix("playhead_").split("__")
        field = _FIELDS.get(name)
        if field is None or name == variable.lower() or not environment[variable]:
            continue
        is_table = field.metadata["is_json"]
        value = _parse_variable(variable, environment[variable], is_json=is_table and not members)
        if members and is_table:
            # What is a list in it is JSON, too.
            value = _parse_member(value)
            for member in reversed(members):
                value = {member: value}
        elif members:
            continue
        found = _merge(found, {name: value})
    return found


def _parse_variable(variable: str, text: str, *, is_json: bool) -> Any:
    try:
        return json.loads(text) if is_json else text
    except (ValueError, RecursionError) as error:
        raise Failure(
            f"{variable} is not valid JSON: environment variables hold lists and tables as JSON, such as"
            f""" PLAYHEAD_UPSTREAMS='{{"api.example.com": "http://127.0.0.1:9000"}}'"""
        ) from error


def _parse_member(text: str) -> Any:
    try:
        return json.loads(text) if text[0] in "[{" else text
    except (ValueError, RecursionError):
        return text


_KUBERNETES = re.compile(r"PLAYHEAD_(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_\w+)?)")
"""The variables that Kubernetes sets in every container beside a service named playhead."""


def _check_variable_names(environment: Mapping[str, str]) -> None:
    """Raise Failure for a variable whose name is close to a setting's: it would have no effect.

    Other `PLAYHEAD_*` variables are allowed: Kubernetes sets some for a service named playhead.
    """
    for name in environment:
        if _KUBERNETES.fullmatch(name):
            continue
        setting = name.removeprefix("PLAYHEAD_").partition("__")[0].lower()
        is_known = setting == name.lower() or setting in (*_FIELDS, *_OTHER_VARIABLES)
        if not is_known and (near := _nearest_name(setting, 0.8)):
            raise Failure(f"{name} has no effect: did you mean PLAYHEAD_{near.upper()}?")


def _nearest_name(name: str, cutoff: float, known: Iterable[str] = _FIELDS.keys()) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, 1, cutoff)), None)


def _read_toml(path: Path) -> dict[str, Any]:
    data = b""
    try:
        data = path.read_bytes()
        return tomllib.loads(data.decode())
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}; give --config a file that exists") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Failure(f"{path} is not UTF-8 (at line {line}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"{path} is not valid TOML: {error}; correct that line") from error
    except (ValueError, RecursionError) as error:
        # The parser gives neither a line: a number of thousands of digits, or thousands of brackets.
        raise Failure(
            f"{path} cannot be read: a number is too long or tables are nested too deeply; shorten it"
        ) from error


def _settings_failure(
    error: InvalidValue, set_flags: Mapping[str, Any], variables: Mapping[str, Any], path: Path
) -> Failure:
    """Describe an invalid value and where it is set."""
    name, reason = error.where[0], _error_reason(error)
    if name in set_flags:
        return WrongFlag(f"--{name.replace('_', '-')}: {reason}")
    if name in variables:
        return Failure(f"PLAYHEAD_{name.upper()}: {reason}")
    return Failure(f"{path}: setting {'.'.join(error.where)[:200]}: {reason}")


def _error_reason(error: InvalidValue) -> str:
    if error.kind != UNKNOWN_NAME:
        return error.reason
    members = _KNOWN_MEMBERS.get(error.where[0], Settings)
    near = _nearest_name(error.where[-1], 0.6, [field.name for field in dataclasses.fields(members)])
    return f"there is no such setting; did you mean {'.'.join((*error.where[:-1], near))}?" if near else UNKNOWN_SETTING


_KNOWN_MEMBERS: Final[Mapping[str, type[Any]]] = {
    "tunnel": TunnelSettings,
    "export": ExportSettings,
    "canary": CanarySettings,
    "witness": WitnessSettings,
    "timestamp": TimestampSettings,
    "objects": ObjectSettings,
}
"""Settings that are tables, and their members."""
