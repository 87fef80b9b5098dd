"""The settings: from `playhead.toml`, `PLAYHEAD_*` environment variables and flags, the later of which win.

They are read once, by the command line, which passes plain values on.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, InitSettingsSource, NoDecode, SettingsConfigDict, SettingsError
from pydantic_settings import PydanticBaseSettingsSource as Source

from calls.project_runs import DEFAULT_PROJECT, PROJECT_NAME
from calls.redaction.rules.personal_names import MAX_LETTERS, MAX_NAMES, MIN_LETTERS, find_unfit_name, read_names
from proxy.anchor_settings import TimestampSettings, WitnessSettings
from proxy.errors import Failure
from proxy.export_settings import ExportSettings
from proxy.object_settings import ObjectSettings
from proxy.retention_settings import check_duration, check_rules, check_size
from proxy.worker_config import EngineName, Mode

type Port = Annotated[int, Field(ge=1, le=65535)]

UNKNOWN_SETTING = "there is no such setting; `playhead config` lists all"
_OTHER_VARIABLES = ("run", "api", "proxy", "command", "uv", "inference_env")
"""`PLAYHEAD_*` variables that are not settings."""

_EXPECTED_TYPES = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "path_type": "text in quotes",
    "tuple_type": "a list in square brackets",
    "dict_type": "a table",
    "model_type": "a table",
}
"""What a value should be, in the words of TOML, by pydantic's error type."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class WrongFlag(Failure):
    """A flag on the command line has an invalid value."""


class TunnelSettings(BaseModel):
    """Hosts whose connections pass undecrypted, for clients that pin certificates. The run gets a note of each."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    hosts: tuple[str, ...] = ()


class Settings(BaseSettings):
    """All settings. Sizes are in bytes."""

    # In a compose file an unset variable becomes an empty one.
    model_config = SettingsConfigDict(
        env_prefix="PLAYHEAD_", env_nested_delimiter="__", env_ignore_empty=True, extra="forbid", frozen=True
    )

    mode: Mode = Field("record", description="record, replay, auto or passthrough")
    data: Path = Field(
        default_factory=lambda: default_data_directory(), description="where recordings, keys and the database live"
    )
    listen: str = Field(
        "127.0.0.1", description="address of the workers and the API; beyond loopback clients need a token"
    )
    proxy_port: int = Field(8080, ge=0, le=65535, description="port of the proxy; 0: a free one")
    api_port: int = Field(8081, ge=0, le=65535, description="port of the REST API; 0: a free one")
    transparent: int | None = Field(
        None, ge=1, le=65535, description="port for connections that the kernel redirects (playhead rules); unset: none"
    )
    workers: int = Field(1, ge=1, le=64, description="worker processes that share the proxy port")
    part: Literal["all", "store", "proxy"] = Field("all", description="what `up` runs; the images run one part each")
    store_url: str | None = Field(
        None,
        description="URL of the store server for `part = proxy`, e.g. http://store:8081; unset: this machine's `api_port`",
    )
    store_idle: int = Field(
        60,
        ge=0,
        le=3600,
        description="seconds that the store server which a reading command started stays ready for the next one; 0: it ends at once",
    )
    project: str = Field(
        DEFAULT_PROJECT,
        description="the project to record into and to look at; a token with a project of its own has priority",
    )
    engine: EngineName = Field(
        "lane", description="the wire engine; the lane hands what it does not support to mitmproxy"
    )
    reverse: str | None = Field(None, description="serve this one origin in reverse mode, e.g. https://api.openai.com")
    database_url: SecretStr | None = Field(None, description="a PostgreSQL to use instead of the embedded one")
    token: SecretStr | None = Field(
        None,
        description="a recording token that clients of the proxy must send; beyond loopback one is generated if none is set",
    )
    token_file: Path | None = Field(None, description="a file to read `token` from, such as a mounted secret")
    api_token: SecretStr | None = Field(
        None, description="a token that the API accepts beside the one in the data directory"
    )
    api_token_file: Path | None = Field(None, description="a file to read `api_token` from, such as a mounted secret")
    open_api: bool = Field(
        False,
        description="answer API requests on loopback without a token: every user of this machine may read and delete",
    )
    shared_runs: bool = Field(
        False, description="let clients without a run's token write into runs that record, fork and resume began"
    )
    replay: Annotated[tuple[str, ...], NoDecode] = Field((), description="runs or bundles that answer in replay mode")
    log_format: Literal["text", "json"] = Field(
        "text", description="how the store server and the workers log: lines for people, or a JSON object a line"
    )
    durability: Literal["process", "fsync"] = Field(
        "process", description="what the end of an answer waits for: write(2) or the disk"
    )
    on_record_failure: Literal["gap", "refuse"] = Field(
        "gap", description="what happens to a request that cannot be recorded"
    )
    body_limit: int = Field(
        32 << 20, ge=0, description="bytes recorded of one body; the rest passes, and is marked truncated"
    )
    spool_limit: int = Field(2 << 30, ge=1 << 20, description="bytes that may wait on disk for the database")
    redact_personal_data: bool = Field(
        False,
        description="also replace card numbers, IBANs, e-mail addresses and telephone numbers, in recording and replay",
    )
    redact_names: tuple[str, ...] = Field(
        (), description="names of people to replace as well, in recording and replay; usually read from a file"
    )
    redact_names_file: Path | None = Field(None, description="a file to read `redact_names` from, one name a line")
    upstream_proxy: str | None = Field(
        None, description="a proxy for upstream connections, e.g. http://proxy.corp:3128"
    )
    upstream_ca: Path | None = Field(None, description="PEM file with private CAs that upstreams may use")
    connect_ports: Annotated[tuple[Port, ...], NoDecode] = Field((80, 443), description="ports that agents may reach")
    allow_private: bool = Field(False, description="let agents reach private and loopback addresses through the proxy")
    upstreams: dict[str, str] = Field(default_factory=dict, description="origins to connect to in place of hosts")
    modes: dict[str, Mode] = Field(
        default_factory=dict, description="the mode for a host (api.example.com, or *.example.com) in place of `mode`"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="hosts that may be reached in replay, unrecorded: short for the mode passthrough"
    )
    tunnel: TunnelSettings = Field(
        TunnelSettings(), description="hosts whose connections pass undecrypted, and are noted"
    )
    profile: tuple[dict[str, Any], ...] = Field((), description="how requests to an API become keys (docs/keys.md)")
    export: tuple[ExportSettings, ...] = Field(
        (), description="servers that receive the runs that end, as traces of OpenTelemetry (docs/operations.md)"
    )
    retention: tuple[dict[str, Any], ...] = Field((), description="how long runs are kept (docs/retention.md)")
    retention_failed: str = Field("forever", description="how long runs that ended badly are kept, e.g. 90d")
    retention_budget: str | None = Field(
        None, description="size of the database from which the oldest runs go, e.g. 50GB; unset: no limit"
    )
    witness: tuple[WitnessSettings, ...] = Field(
        (), description="witnesses that cosign checkpoints: `url` and `key` of each (docs/proof.md)"
    )
    timestamp: TimestampSettings | None = Field(
        None,
        description="an authority that states when checkpoints existed: its `url`, and `roots`, a PEM file (docs/proof.md)",
    )
    objects: ObjectSettings = Field(
        ObjectSettings.model_validate({}), description="object storage for large bodies (docs/operations.md)"
    )
    config: Path | None = Field(None, description="the file that was read")

    @field_validator("project")
    @classmethod
    def _check_project(cls, name: str) -> str:
        if not PROJECT_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not a name of a project: use 1 to 63 of a-z 0-9 . _ -, no sign first")
        return name

    @field_validator("replay", "connect_ports", "allowed_hosts", mode="before")
    @classmethod
    def _split_words(cls, value: object) -> object:
        """Split a list from an environment variable, which has commas or blanks between its items."""
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("modes")
    @classmethod
    def _lower_mode_hosts(cls, value: dict[str, Mode]) -> dict[str, Mode]:
        return {host.lower(): mode for host, mode in value.items()}

    @field_validator("allowed_hosts")
    @classmethod
    def _lower_allowed_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.lower() for host in value)

    @field_validator("upstreams")
    @classmethod
    def _parse_upstreams(cls, value: dict[str, str]) -> dict[str, str]:
        return {host.lower(): _parse_origin(origin) for host, origin in value.items()}

    @field_validator("retention")
    @classmethod
    def _check_retention(cls, tables: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        check_rules(tables)
        return tables

    @field_validator("retention_failed")
    @classmethod
    def _check_retention_failed(cls, text: str) -> str:
        return check_duration(text)

    @field_validator("retention_budget")
    @classmethod
    def _check_retention_budget(cls, text: str | None) -> str | None:
        return text if text is None else check_size(text)

    @field_validator("reverse", "upstream_proxy", "store_url")
    @classmethod
    def _parse_origin_setting(cls, value: str | None) -> str | None:
        return value if value is None else _parse_origin(value)

    @model_validator(mode="before")
    @classmethod
    def _read_setting_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: _read_secret(name, Path(str(file)))
            for name in ("token", "api_token")
            if (file := values.get(f"{name}_file")) and not values.get(name)
        }
        if file := values.get("redact_names_file"):
            names = read_names(_read_text("redact_names_file", Path(str(file)), "names, one a line"))
            if not names:
                raise ValueError(
                    f"redact_names_file: {file} holds no names: write one per line, or leave the setting out"
                )
            found["redact_names"] = (*values.get("redact_names", ()), *names)
        return values | found

    @field_validator("redact_names")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if (name := find_unfit_name(names)) is not None:
            raise ValueError(
                f"{name!r} cannot be looked for: a name has {MIN_LETTERS} to {MAX_LETTERS} letters; write the whole name, or leave it out"
            )
        if len(names) > MAX_NAMES:
            raise ValueError(f"{len(names)} names are more than the {MAX_NAMES} that can be looked for: list fewer")
        return names

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
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
        return self

    @property
    def host_modes(self) -> dict[str, Mode]:
        """The mode of each host that has its own."""
        return {**dict.fromkeys(self.allowed_hosts, "passthrough"), **self.modes}


def _read_secret(name: str, path: Path) -> str:
    return _read_text(f"{name}_file", path, "the token alone").strip()


def _read_text(name: str, path: Path, content: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{name}: cannot read {path}: {why}; name a file that holds {content}") from error


def _parse_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"{text!r} is not an origin such as https://host:port")
    return text.rstrip("/")


def default_data_directory() -> Path:
    """Return this user's data directory. Root's is outside /root, because Postgres runs as another user."""
    if os.geteuid() == 0:
        return Path("/var/lib/playhead")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "playhead"


def load_settings(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """Load the settings. Raises Failure that names the file and line, variable or flag of an invalid value."""
    named = config or os.environ.get("PLAYHEAD_CONFIG")
    path = Path(named or "playhead.toml")
    file = _read_toml(path) if named or path.exists() else {}
    given = {name: value for name, value in flags.items() if value is not None}
    _check_variable_names(os.environ)

    class LayeredSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: Source,
            env_settings: Source,
            *_others: Source,
            **_named: Source,
        ) -> tuple[Source, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=file)

    try:
        return LayeredSettings(**given, config=path if file else None)
    except ValidationError as error:
        raise _settings_failure(error, given, path) from error
    except SettingsError as error:
        name = str(error).split('"')[1].upper()
        raise Failure(
            f"PLAYHEAD_{name} is not valid JSON: environment variables hold lists and tables as JSON, such as"
            f""" PLAYHEAD_UPSTREAMS='{{"api.example.com": "http://127.0.0.1:9000"}}'"""
        ) from error


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
        is_known = setting == name.lower() or setting in (*Settings.model_fields, *_OTHER_VARIABLES)
        if not is_known and (near := _nearest_name(setting, 0.8)):
            raise Failure(f"{name} has no effect: did you mean PLAYHEAD_{near.upper()}?")


def _nearest_name(name: str, cutoff: float, known: Iterable[str] = Settings.model_fields) -> str | None:
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


def _settings_failure(error: ValidationError, given: Mapping[str, Any], path: Path) -> Failure:
    """Describe the first validation error and where its value is set."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if not where:
        return Failure(_error_reason(first, where))
    name = where[0]
    if name in given:
        return WrongFlag(f"--{name.replace('_', '-')}: {_error_reason(first, where)}")
    variable = f"PLAYHEAD_{name.upper()}"
    if any(os.environ.get(known) for known in os.environ if known.partition("__")[0] == variable):
        return Failure(f"{variable}: {_error_reason(first, where)}")
    return Failure(f"{path}: setting {'.'.join(where)}: {_error_reason(first, where)}")


def _error_reason(wrong: ErrorDetails, where: Sequence[str]) -> str:
    if wrong["type"] == "extra_forbidden":
        known = _KNOWN_MEMBERS.get(where[0], Settings).model_fields
        near = _nearest_name(where[-1], 0.6, known)
        return f"there is no such setting; did you mean {'.'.join((*where[:-1], near))}?" if near else UNKNOWN_SETTING
    if where == ["profile"]:
        return "each profile is a table of its own, under [[profile]] in double brackets"
    if where == ["retention"] and wrong["type"] != "value_error":
        return "each rule is a table of its own, under [[retention]] in double brackets"
    if where == ["witness"]:
        return "each witness is a table of its own, under [[witness]] in double brackets"
    if where == ["export"]:
        return "each target is a table of its own, under [[export]] in double brackets"
    reason = wrong["msg"].removeprefix("Value error, ")
    if wrong["type"] in _EXPECTED_TYPES:
        reason = f"Input should be {_EXPECTED_TYPES[wrong['type']]}"
    shown = "" if where and (where[0] in _SECRET_SETTINGS or "headers" in where) else f"{wrong['input']!r} "
    return reason.replace("Input should be", f"{shown}should be", 1)


_KNOWN_MEMBERS: dict[str, type[BaseModel]] = {
    "tunnel": TunnelSettings,
    "export": ExportSettings,
    "witness": WitnessSettings,
    "timestamp": TimestampSettings,
    "objects": ObjectSettings,
}
"""Settings that are tables, and their members."""

_SECRET_SETTINGS = ("token", "api_token", "database_url")
