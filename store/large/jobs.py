"""The messages between the store server and its helper processes, one JSON line each."""

import uuid

import msgspec

from calls.redaction.settings import RedactionSettings
from store.access.grants import Grant
from store.anchors.targets import AnchorTargets
from store.objects.target import ObjectTarget
from store.pricing.own_prices import NO_PRICES, OwnPrices


class HelperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a helper process, which is the first message."""

    database_url: str
    store_server: uuid.UUID | None = None
    """To whose chains it appends."""

    public_keys: tuple[bytes, ...] = ()
    """The public halves of the keys that sign its checkpoints."""

    checkpoints: str | None = None
    """The directory with the newest checkpoint of each project."""

    anchors: AnchorTargets = AnchorTargets()
    """Whose answers about its checkpoints are trusted."""
    objects: ObjectTarget | None = None
    """Object storage for large bodies."""

    redaction_key: bytes
    memory_limit: int
    """Bytes of private memory."""

    mode: str = "record"
    replays: str | None = None
    profiles_toml: str | None = None
    redaction: RedactionSettings = RedactionSettings()
    own_prices: OwnPrices = NO_PRICES
    claims: str | None = None
    """The directory of the claims of runs; None if every client may write into every run."""

    run_versions: str | None = None
    """The file in which workers see which runs have changed, if there is one."""


class StoringJob(msgspec.Struct, frozen=True, kw_only=True):
    """Store one large exchange from the file of its events."""

    file: str
    source: str
    is_cut_off: bool | None = False
    """Whether the proxy worker died before the exchange ended. None: it did if the file does not end with its end."""

    underived: str | None = None
    """Why no call is to be derived, if an earlier attempt failed; the evidence is stored anyway."""


class RenderJob(msgspec.Struct, frozen=True, kw_only=True):
    """Answer a request of the API whose bodies are too large for the store server, into a file."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: str | None
    """The file of the request's body."""

    to: str
    """The file that the answer's body is written to."""

    grant: Grant
    """What the request may do, and the project that it asks about."""

    settled: bool | None = None
    """Whether everything acknowledged is stored; None if the client has not asked to wait for that."""


class JudgeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Judge a session in mode `auto`, by its file (`store.generations.auto_session_file`)."""

    file: str


class JudgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The run of the new generation, or why there is none; neither if no request went live."""

    run: str | None = None
    why: str | None = None


class RenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an answer of the API, whose body is in the file."""

    status: int
    headers: list[tuple[str, str]]


class HelperJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of one kind; the others are None."""

    store: StoringJob | None = None
    render: RenderJob | None = None
    judge: JudgeJob | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job, or a progress report."""

    failed: str | None = None
    """Why the job failed; None if it did not."""

    is_unavailable: bool = False
    """Whether it failed because Postgres is unavailable; the same job may work later."""

    rendering: RenderResult | None = None
    judgement: JudgeResult | None = None
    is_over: bool = True
    """False in a progress report; then the file has the beginning of the answer."""

    objects: dict[str, int] = {}
    """What the helper process has counted of object storage since its last reply (`BodyObjects.counts`)."""

    objects_trouble: str | None = None
    """Why the helper process writes nothing to object storage."""

    peak: int = 0
    """The most resident memory, in bytes, that the helper process has had."""
