"""The configuration of the store server, which the process that starts it writes and `store.server` reads from stdin."""

import msgspec

from calls.redaction.settings import RedactionSettings
from store.anchors.targets import AnchorTargets
from store.log_format import LogFormat
from store.objects.target import ObjectTarget
from store.otlp.target import ExportTarget
from store.pricing.own_prices import NO_PRICES, OwnPrices
from store.retention.rules import RetentionPolicy


class StoreServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration, as one JSON line. Sizes are bytes, times nanoseconds since the Unix epoch."""

    data: str
    database_url: str | None = None
    listen: str = "127.0.0.1"
    port: int = 0
    listener: int | None = None
    """The descriptor of a socket that listens there already, which the process was started with."""

    lock: int | None = None
    """The descriptor of the data directory's lock, if it was started with it."""

    mode: str = "record"
    profiles_toml: str | None = None
    redaction: RedactionSettings = RedactionSettings()
    tokens: tuple[str, ...] = ()
    """Further tokens that the API accepts, beside the token of the data directory."""

    open_api: bool = False
    """Whether the API, on loopback, answers without a token."""

    shared_runs: bool = False
    """Whether every client may write into claimed runs."""

    preload_secret: str | None = None
    """What the workers of this `up` show when they load recordings ahead, so that nobody else's export is noted as that."""

    versions_socket: str | None = None
    """Where workers ask which versions runs have (`store.feed.stored_versions`)."""

    started: int = 0
    waits: bool = False
    """Whether to serve while the configured database cannot be used, without being ready; otherwise the server ends."""

    temporary: bool = False
    """Whether a single command started the server. If it ends, the server runs on while other commands use it."""

    idle_timeout: float = 0.0
    """Seconds without a user after which such a server ends."""

    exports: tuple[ExportTarget, ...] = ()
    """Where the runs that end are sent."""

    retention: RetentionPolicy = RetentionPolicy()
    """How long runs are kept."""

    anchors: AnchorTargets = AnchorTargets()
    """Who is asked to vouch for checkpoints."""

    own_prices: OwnPrices = NO_PRICES
    """What costs are calculated by before the price tables."""

    fork_agent: str | None = None
    """The URL that starts an agent for a fork."""

    objects: ObjectTarget | None = None
    """Object storage for large bodies."""

    log_format: LogFormat = "text"
    helper_memory: int = 512 << 20
    """Bytes of private memory of each of the three helper processes at most."""

    @property
    def runs_retention(self) -> bool:
        """Whether it removes by itself what the policy lets go. One that was started to answer a command, such as one that asks for a
        plan, removes only what it is asked to."""
        return not self.temporary

    @property
    def may_wait(self) -> bool:
        """Whether the database may be prepared later. An embedded one cannot be corrected from outside."""
        return self.waits and self.database_url is not None
