"""Build a recording: a run keyed under the current profiles and indexed, shared by all its replays."""

import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import islice
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from calls.events import EffectBatch
from calls.keys.key import make_key, raw_digest_of_parts
from calls.keys.profile import Profiles
from calls.model import Json, Request
from calls.redaction.redactor import Redactor
from calls.route import route_request, split_url
from calls.websocket_messages import opening_request
from replay.duplex import is_duplex, may_be_duplex
from replay.misses.nearest import NearestCallFinder, comparison_document
from replay.misses.redacted_again import redact_entries
from replay.pinned import ENVIRONMENT_LABEL, HAS_PROXY, PROXY_LABEL, UNRESOLVED_LABEL, parse_environment
from replay.script import RecordedExchange, ScriptIndex, build_index, head_secrets, session_place
from store.bundle.bundle import Bundle
from store.bundle.exchange_summary import ExchangeSummary, summarize_exchange
from store.bundle.rows_bundle import StoredRun
from store.database.blobs import CorruptData

EXCHANGE_SIZE: Final = 4096
"""Bytes that an exchange takes in memory without its bodies."""

PROGRESS_STEP: Final = 1000
"""Calls after which it is said how many are done."""

type ReportProgress = Callable[[str], None]


def count_calls[Call](
    calls: Iterable[Call], work: str, report: ReportProgress | None, total: int | None = None
) -> Iterable[Call]:
    """Return the calls, of which it is reported now and then with how many this work is done."""
    return calls if report is None else _counted_calls(calls, work, report, total)


def _counted_calls[Call](calls: Iterable[Call], work: str, report: ReportProgress, total: int | None) -> Iterator[Call]:
    of_all = "" if total is None else f" of {total:,}"
    for done, call in enumerate(calls):
        if done and done % PROGRESS_STEP == 0:
            report(f"{work}: {done:,}{of_all} calls")
        yield call


@dataclass(kw_only=True)
class Recording:
    """An indexed run. Immutable, except for members computed on first use."""

    run: str
    index: ScriptIndex
    profiles: Profiles
    is_rekeyed: bool
    """True if the run was recorded under other profiles than the current ones."""

    http2_by_authority: Mapping[str, bool]
    """The authorities of all recorded requests, and whether any request to them used HTTP/2."""

    effects: tuple[EffectBatch, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its command had: hash seeds, time zone, locale."""

    unresolved_names: tuple[str, ...] = ()
    """Host names that did not resolve for its command."""

    has_proxy_variables: bool = False
    """Whether its command had proxy variables, as far as the run shows it."""

    started_at: int | None = None
    """When it began: nanoseconds since 1970."""

    size: int
    """The bytes of memory that it takes, roughly."""

    redacted_count: int | None = None
    """How many of its requests were redacted again by the present rules (`redacted_again`); None if none were."""

    has_older_redaction: bool = False
    """Whether that changed any request: it was recorded when other redaction rules were in force."""

    _finder_lock: Lock = field(init=False, repr=False, default_factory=Lock)
    _redaction_lock: Lock = field(init=False, repr=False, default_factory=Lock)
    _redacted_again: "Recording | None" = field(init=False, repr=False, default=None)

    @cached_property
    def digest(self) -> str:
        """The digest of the exchange ids. Positions are interchangeable between recordings of equal digest."""
        ids = "\n".join(entry.id for entry in self.index.entries)
        return hashlib.sha256(ids.encode()).hexdigest()

    def fork_step(self, edited_step: int) -> int:
        """The last step that a fork should answer from the record when the answer at `edited_step` changes.

        It includes the steps that ran concurrently, and the tool calls before the next model call. Otherwise a tool call
        that the same answer requested would be outside the record, and blocked.
        """
        entries = self.index.entries
        start = next((place for place, entry in enumerate(entries) if entry.step == edited_step), None)
        if start is None:
            return edited_step
        summary, last = entries[start].summary, edited_step
        end = summary.started_at + (summary.ended_at or 0)
        for entry in islice(entries, start + 1, None):
            if entry.summary.started_at >= end and _is_model_request(entry.summary):
                break
            last = entry.step
        return last

    @cached_property
    def urls(self) -> frozenset[str]:
        """The URLs of all calls."""
        return frozenset(entry.summary.url for entry in self.index.entries)

    @cached_property
    def duplex_calls(self) -> Mapping[tuple[str, str], tuple[tuple[RecordedExchange, ...], bool]]:
        """The calls that were answered before their request ended, by method and URL, and whether there are no others.

        To find them takes a while, because their bodies are unpacked.
        """
        found: dict[tuple[str, str], tuple[list[RecordedExchange], list[RecordedExchange]]] = {}
        for entry in self.index.entries:
            summary = entry.summary
            if may_be_duplex(summary.method, summary.headers) and not summary.has_client_messages:
                duplex, others = found.setdefault((summary.method, summary.url), ([], []))
                (duplex if _is_duplex(summary) else others).append(entry)
        return {where: (tuple(duplex), not others) for where, (duplex, others) in found.items() if duplex}

    def redacted_again(self, redactor: Redactor) -> "Recording":
        """Return the recording as it is found by requests in which the present rules have replaced what older ones did not.

        All requests are redacted, at the first call, which takes a while. All replays of it have one redactor.
        """
        with self._redaction_lock:
            if self._redacted_again is None:
                entries = self.index.entries
                new_entries, count, body_bytes = redact_entries(entries, redactor, self.profiles)
                new_ones = [new for new, old in zip(new_entries, entries, strict=True) if new is not old]
                self._redacted_again = replace(
                    self,
                    index=build_index(new_entries) if new_ones else self.index,
                    redacted_count=count,
                    has_older_redaction=bool(new_ones),
                    size=self.size + body_bytes + len(new_ones) * EXCHANGE_SIZE,
                )
                if "duplex_calls" in vars(self):
                    _ = self._redacted_again.duplex_calls  # found on this thread, too
            return self._redacted_again

    @property
    def finder(self) -> NearestCallFinder:
        """The finder of nearest calls. It is built at the first miss, on the thread that needs it first."""
        with self._finder_lock:
            return self._finder

    @cached_property
    def _finder(self) -> NearestCallFinder:
        return NearestCallFinder(self.index.entries, self._comparison_document)

    def _comparison_document(self, request: Request) -> Json:
        return comparison_document(opening_request(request), self.profiles)


def _is_duplex(summary: ExchangeSummary) -> bool:
    try:
        return is_duplex(summary.load_exchange())
    except CorruptData:
        return False


def _is_model_request(summary: ExchangeSummary) -> bool:
    request = Request(
        method=summary.method, url=summary.url, http_version=summary.http_version, headers=summary.headers
    )
    return route_request(request).kind == "model"


@contextmanager
def pause_gc() -> Iterator[None]:
    """Build long-lived objects without garbage collection, which would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@pause_gc()
def build_recording(
    bundle: Bundle,
    profiles: Profiles,
    *,
    from_step: int = 1,
    until_step: int | None = None,
    report_progress: ReportProgress | None = None,
) -> Recording:
    """Key and index the exchanges of a run, from `from_step` to `until_step`. It takes a while if the run is long."""
    is_rekeyed = bundle.profiles != profiles.digest
    entries = bundle.entries
    summaries: Iterable[ExchangeSummary]
    summaries = entries.summaries() if isinstance(entries, StoredRun) else map(summarize_exchange, entries)
    run, count = str(bundle.run["id"]), len(entries)
    summaries = count_calls(summaries, f"reading {run}", report_progress, count)
    ordered = sorted(summaries, key=lambda one: (one.started_at, one.id))
    gaps = {
        gap.exchange: f"part of {'it' if gap.exchange else 'its run'} could not be recorded ({gap.reason})"
        for gap in bundle.gaps
    }
    make = partial(_recorded_exchange, profiles, is_rekeyed, profiles.telemetry_profiles, gaps)
    last = len(ordered) if until_step is None else until_step
    numbered = enumerate(count_calls(ordered, f"loading {run}", report_progress, count), 1)
    steps = [make(step, one) for step, one in numbered if from_step <= step <= last]
    labels = bundle.run.get("labels") or {}
    environment = parse_environment(str(labels.get(ENVIRONMENT_LABEL, "")))
    return Recording(
        run=run,
        index=build_index(steps),
        profiles=profiles,
        is_rekeyed=is_rekeyed,
        http2_by_authority=_http2_by_authority(ordered),
        effects=bundle.effects,
        environment=environment,
        unresolved_names=_unresolved_names(str(labels.get(UNRESOLVED_LABEL, "")), ordered),
        has_proxy_variables=_has_proxy_variables(bundle.run, labels, ordered),
        started_at=_start(bundle.run),
        size=held_bytes(bundle) + sum(len(one.items) for one in bundle.effects),
    )


def _unresolved_names(label: str, summaries: Iterable[ExchangeSummary]) -> tuple[str, ...]:
    """Return the names in the label but those with requests: a part of the run that was recorded at another time may have reached them."""
    if not (names := label.split()):
        return ()
    reached = {urlsplit(f"//{_authority(summary.url)}").hostname for summary in summaries}
    return tuple(name for name in names if name not in reached)


def _has_proxy_variables(
    run: Mapping[str, Any], labels: Mapping[str, Any], summaries: Sequence[ExchangeSummary]
) -> bool:
    """Return whether the command had proxy variables: by its label, or because a proxy worker recorded it that was not captive.

    What another program recorded has no evidence of runs, and says nothing about variables.
    """
    if PROXY_LABEL in labels:
        return bool(labels[PROXY_LABEL] == HAS_PROXY)
    if run.get("isolation") in (None, "captive") or not summaries:
        return False
    try:
        return bool(run.get("attribution") or summaries[0].load_exchange().run_evidence)
    except CorruptData:
        return False


def _start(run: Mapping[str, Any]) -> int | None:
    try:
        return int(datetime.fromisoformat(str(run["started_at"])).timestamp() * 1e9)
    except (KeyError, ValueError):
        return None


def held_bytes(bundle: Bundle) -> int:
    """Return how many bytes of memory a bundle takes, roughly."""
    entries = bundle.entries
    if isinstance(entries, StoredRun):
        return entries.size + len(entries) * EXCHANGE_SIZE
    bodies = (
        len(message.body.data)
        for entry in entries
        for message in (entry.exchange.request, entry.exchange.response)
        if message is not None
    )
    return sum(bodies) + len(entries) * EXCHANGE_SIZE


def _recorded_exchange(
    profiles: Profiles,
    is_rekeyed: bool,
    telemetry_profiles: frozenset[str],
    gaps: Mapping[str | None, str],
    step: int,
    summary: ExchangeSummary,
) -> RecordedExchange:
    # A WebSocket is matched by its opening request, whereas its recorded key covers all of its messages.
    if summary.key is None or is_rekeyed or summary.has_client_messages:
        key, profile = _key_and_profile(opening_request(summary.load_exchange().request), profiles)
    else:
        key, profile = summary.key, summary.profile or ""
    return RecordedExchange(
        step=step,
        key=key,
        raw=raw_digest_of_parts(summary.method, summary.url, summary.headers, summary.body_digest),
        summary=summary,
        session=session_place(summary.headers),
        secrets=head_secrets(summary.url, summary.headers),
        actor=summary.actor,
        recorded_key=summary.key,
        gap=gaps.get(summary.id),
        run_gap=gaps.get(None),
        is_telemetry=profile in telemetry_profiles,
    )


def _key_and_profile(request: Request, profiles: Profiles) -> tuple[str, str]:
    result = make_key(request, profiles)
    return result.key, result.profile


def _http2_by_authority(summaries: Iterable[ExchangeSummary]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    # Most requests of a run go to a few URLs.
    for url, is_http2 in dict.fromkeys(
        (summary.url, summary.http_version.startswith("HTTP/2")) for summary in summaries
    ):
        authority = _authority(url)
        found[authority] = found.get(authority, False) or is_http2
    return found


def _authority(url: str) -> str:
    """Return the authority as a Host header has it, without a default port; empty if the URL is invalid."""
    authority, _, _ = split_url(url)
    host = urlsplit(url).hostname if authority else None
    return authority.replace(host, f"[{host}]", 1) if host and ":" in host else authority
