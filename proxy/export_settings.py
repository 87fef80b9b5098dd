"""The setting `[[export]]`: a server that receives the runs that end, as traces of OpenTelemetry."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import urlsplit

from proxy.errors import Failure
from proxy.setting_values import (
    Reader,
    Secret,
    one_of,
    optional,
    read_flag,
    read_secret,
    read_text,
    setting,
    table_of,
    with_checks,
)
from store.otlp.spans.names import DEFAULT_VERSION
from store.otlp.target import ExportTarget, Semconv, SpanOptions

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_endpoint(value: str) -> str:
    """Return a URL to which spans can be sent. Raises ValueError."""
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_url = urlsplit(""), False
    if not is_url or parts.query or parts.fragment or not value.isprintable() or " " in value:
        raise ValueError(f"{value!r} is not a URL such as http://127.0.0.1:6006, to which /v1/traces is added")
    if parts.username is not None:
        raise ValueError("an endpoint cannot hold a user and a password: write them into the header Authorization")
    return value.rstrip("/")


def _fill_in(name: str, value: str, environment: Mapping[str, str]) -> str:
    for variable in _VARIABLE.findall(value):
        if not environment.get(variable):
            raise Failure(
                f"the header {name} of an [[export]] needs the environment variable {variable}, which is not set:"
                " set it where Playhead is started, or take it out of the header"
            )
    filled = _VARIABLE.sub(lambda match: environment[match[1]], value)
    try:
        _check_header_value(name, filled)
    except ValueError as error:
        raise Failure(f"an [[export]] in playhead.toml: {error}") from error
    return filled


def _check_header_value(name: str, value: str) -> None:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the value of the header {name} has characters that no header can have; use printable ASCII")


def _check_headers(headers: dict[str, Secret]) -> dict[str, Secret]:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header; write for example Authorization")
        _check_header_value(name, value.get_secret_value())
    return headers


def _check_project(project: str) -> str:
    if not 1 <= len(project) <= 200:
        raise ValueError("a project has 1 to 200 characters: write its name in the target, or leave it out")
    return project


_read_project: Final[Reader[str]] = with_checks(read_text, _check_project)
_read_semconv: Final[Reader[Semconv]] = one_of(*get_args(Semconv.__value__))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """One target. Its headers may name environment variables as `${NAME}`, so that no secret stands in the file."""

    endpoint: str = setting(with_checks(read_text, check_endpoint))
    headers: dict[str, Secret] = setting(with_checks(table_of(read_secret), _check_headers), factory=dict)
    content: bool = setting(read_flag, False)
    project: str | None = setting(optional(_read_project), None)
    semconv: Semconv = setting(_read_semconv, DEFAULT_VERSION)
    labels: dict[str, str] = setting(table_of(read_text), factory=dict)

    def target(self, environment: Mapping[str, str]) -> ExportTarget:
        """Return the target, with the values of the variables that its headers name. Raises Failure."""
        headers = {name: _fill_in(name, value.get_secret_value(), environment) for name, value in self.headers.items()}
        options = SpanOptions(content=self.content, semconv=self.semconv, project=self.project)
        return ExportTarget(endpoint=self.endpoint, headers=headers, options=options, labels=self.labels)


def export_targets(settings: tuple[ExportSettings, ...]) -> tuple[ExportTarget, ...]:
    """Return all targets, with variables of this process's environment. Raises Failure."""
    return tuple(one.target(os.environ) for one in settings)
