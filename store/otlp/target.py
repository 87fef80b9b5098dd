"""Where to send spans, and which."""

from collections.abc import Mapping
from typing import Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

import msgspec

from store.otlp.spans.names import DEFAULT_VERSION, VERSIONS

type Semconv = Literal["1.36", "1.37", "1.40", "2026-11"]

assert get_args(Semconv.__value__) == tuple(VERSIONS)

PATH: Final = "/v1/traces"


class SpanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What spans say."""

    content: bool = False
    """Whether they have prompts, answers, arguments and results."""

    semconv: Semconv = DEFAULT_VERSION
    """The version of the GenAI semantic conventions."""

    project: str | None = None
    """The project of the target under which it files them."""

    @property
    def names(self) -> Mapping[str, str]:
        """The attribute names."""
        return VERSIONS[self.semconv]


class ExportTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that receives the runs that end."""

    endpoint: str
    headers: dict[str, str] = {}
    options: SpanOptions = SpanOptions()
    labels: dict[str, str] = {}
    """Labels that a run must have to be sent."""

    @property
    def url(self) -> str:
        """The URL that takes traces."""
        return traces_url(self.endpoint)

    @property
    def host(self) -> str:
        """The host and port, to name it by."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]


def traces_url(endpoint: str) -> str:
    """Return the URL that takes traces: OTLP's path below the endpoint, unless the endpoint has it."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(PATH) else path + PATH))
