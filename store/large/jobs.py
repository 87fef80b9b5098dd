"""The messages between the store server and its helper processes, one JSON line each."""

import msgspec


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a helper process is told first."""

    database_url: str
    redaction_key: bytes
    memory_limit: int
    """Bytes of private memory."""

    mode: str = "record"
    replays: str | None = None
    profiles_toml: str | None = None
    redact_personal_data: bool = False
    redact_names: tuple[str, ...] = ()
    claims: str | None = None
    """Where the claims of runs are; none where every client may write into every run."""

    checks: str | None = None


class StoringJob(msgspec.Struct, frozen=True, kw_only=True):
    """Store one large exchange from the file of its events."""

    file: str
    source: str
    is_cut_off: bool = False
    """Whether the proxy worker died before the exchange ended."""

    underived: str | None = None
    """Why no call is to be derived, where an earlier try failed; the evidence is stored all the same."""


class RenderJob(msgspec.Struct, frozen=True, kw_only=True):
    """Answer one request of the API, whose bodies are too large for the store server, into a file."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: str | None
    """The request's body."""

    to: str
    settled: bool | None = None
    """Whether everything acknowledged is stored, where the client has asked for that."""


class JudgeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Judge what mode `auto` recorded, as the file of it says (`store.generations.auto_session_file`)."""

    file: str


class JudgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it: the generation of its run, or why it is none; neither where nothing went live."""

    run: str | None = None
    why: str | None = None


class RenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the API, whose body lies in the file."""

    status: int
    headers: list[tuple[str, str]]


class HelperJob(msgspec.Struct, frozen=True, kw_only=True):
    """One of the kinds of jobs."""

    store: StoringJob | None = None
    render: RenderJob | None = None
    judge: JudgeJob | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job."""

    failed: str | None = None
    """Why it was not done."""

    is_unavailable: bool = False
    """Whether it failed because Postgres is away: the same may work later."""

    rendering: RenderResult | None = None
    judgement: JudgeResult | None = None
    is_over: bool = True
    """False while the job goes on: it has come further, and what there is of its answer lies in the file."""

    peak: int = 0
    """The most memory, in bytes, that the helper process has had resident."""
