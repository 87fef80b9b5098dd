"""The configuration of the store server: written by the process that starts it, read from stdin by `store.__main__`."""

import msgspec


class StoreServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One JSON line. Sizes are bytes, times nanoseconds since the Unix epoch."""

    data: str
    database_url: str | None = None
    listen: str = "127.0.0.1"
    port: int = 0
    mode: str = "record"
    profiles_toml: str | None = None
    redact_personal_data: bool = False
    redact_names: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    """What the API accepts beside the token of the data directory."""

    open_api: bool = False
    """Answer whoever reaches the API on loopback, without a token."""

    shared_runs: bool = False
    """Let every client write into claimed runs."""

    started: int = 0
    checks: str | None = None
    """The function that checks the overrides and forks of a request, as MODULE:FUNCTION: it belongs to a package above this one."""

    waits: bool = False
    """Whether to serve, not ready, while a database that was given cannot be used; else we end."""

    temporary: bool = False
    """Whether a command started us for itself. Where it ends first, or is killed, we go on for others that use us."""

    helper_memory: int = 512 << 20
    """Bytes of private memory that each of the three helper processes may have."""

    @property
    def may_wait(self) -> bool:
        """Whether the database may be prepared later: our own cannot be mended from outside."""
        return self.waits and self.database_url is not None
