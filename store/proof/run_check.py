"""Check what a run has against the records of its chains, and name the first element that does not fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from calls.events import EffectBatch, Gap
from calls.model import EMPTY_BODY, Body, Exchange
from calls.proof.records import ChainRecord, commit
from store.bundle.statement import effects_statement, exchange_statement, gap_statement, run_statement
from store.database.rows import body_digest
from store.proof.commitments import are_salts_of, salt_of
from store.proof.evidence import has_bodies

type Change = Literal["altered", "removed", "inserted", "reordered", "truncated", "unsigned", "unreachable"]
"""What was done to an element. A chain is truncated if its last records are missing; a checkpoint is unsigned if none of the known keys
has signed it. What is unreachable could not be compared, because object storage does not answer."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An element that does not fit its proof."""

    change: Change
    element: str
    """Which one, for example `exchange 0199…`."""

    detail: str


@dataclass(frozen=True, slots=True)
class Erasure:
    """Something that was erased, and when, in nanoseconds since the Unix epoch."""

    id: str
    part: str
    at: int | None
    rule: str | None = None
    """The rule of retention by which it was erased."""


@dataclass(frozen=True, slots=True)
class ExchangeEvidence:
    """What of an exchange is compared with its record: some hundred bytes, however long its bodies are."""

    id: str
    run: str
    started_at: int
    commitments: tuple[bytes | None, ...] | None
    """Those of its head, request and response under its salts: None for a body that is empty, and empty without a salt. None without
    any salts."""

    has_right_salts: bool
    """Whether it has a salt for each part that it has, and no other."""


def exchange_evidence(exchange: Exchange, salts: bytes | None) -> ExchangeEvidence:
    """Compute what of an exchange is compared with its record."""
    if salts is None:
        return ExchangeEvidence(exchange.id, exchange.run, exchange.started_at, None, has_right_salts=False)
    commitments = (
        _commitment(salts, 0, exchange_statement(exchange)),
        _body_commitment(salts, 1, exchange.request.body),
        _body_commitment(salts, 2, exchange.response.body if exchange.response else EMPTY_BODY),
    )
    has_right_salts = are_salts_of(salts, True, *has_bodies(exchange))
    return ExchangeEvidence(exchange.id, exchange.run, exchange.started_at, commitments, has_right_salts)


@dataclass(slots=True)
class RunCheck:
    """Compares one run with its records. Add all chains first, then what the run has, then `finish`."""

    findings: list[Finding] = field(default_factory=list)
    erasures: list[Erasure] = field(default_factory=list)
    proven: int = 0
    """Exchanges, gaps and batches of effects that fit their records."""

    unproven: int = 0
    """Those that have neither a record nor a salt: an earlier version stored them, or somebody inserted them."""

    unsealed_chains: int = 0
    """Chains of which no checkpoint covers anything: anybody may have written them."""

    _has_records: bool = False
    _unmatched_records: dict[str, ChainRecord] = field(default_factory=dict)
    """Records of what the run should have and was not added yet."""

    _removed_names: list[str] = field(default_factory=list)
    """What was moved or erased by another chain than the one that recorded it."""

    _without_bodies: set[str] = field(default_factory=set)
    """Exchanges whose bodies were erased."""

    _run_records: list[ChainRecord] = field(default_factory=list)
    """The last record about the run in each chain."""

    _ends: list[tuple[int, bool]] = field(default_factory=list)
    """The last end in each chain, and whether something was recorded after it."""

    _began_times: list[int] = field(default_factory=list)
    """When the run began by what was said about it, and when what was moved or erased began."""

    _runs: set[str] = field(default_factory=set)
    """The runs that exchanges, gaps and effects say to be of."""

    _exchange_times: list[int] = field(default_factory=list)
    _gap_times: list[int] = field(default_factory=list)

    def add_finding(self, change: Change, element: str, detail: str) -> None:
        """Add something that does not fit."""
        self.findings.append(Finding(change, element, detail))

    def add_records(self, records: Iterable[ChainRecord]) -> None:
        """Add the records of a chain, in order."""
        run_record: ChainRecord | None = None
        end: int | None = None
        is_reopened = False
        for record in records:
            self._has_records = True
            if record.began is not None:
                self._began_times.append(record.began)
            match record.kind:
                case "exchange" | "gap" | "effects":
                    self._unmatched_records[record.id] = record
                    is_reopened = True
                case "moved":
                    self._remove(record.id)
                case "erased":
                    if record.part == "bodies":
                        self._without_bodies.add(record.id)
                    else:
                        self._remove(record.id)
                    self.erasures.append(Erasure(record.id, record.part or "whole", record.at, record.rule))
                case "run":
                    run_record, is_reopened = record, True
                case "end":
                    end, is_reopened = record.at, False
        if run_record is not None:
            self._run_records.append(run_record)
        if end is not None:
            self._ends.append((end, is_reopened))

    def _remove(self, name: str) -> None:
        if self._unmatched_records.pop(name, None) is None:
            self._removed_names.append(name)

    def add_exchange(self, exchange: Exchange, salts: bytes | None, place: str) -> None:
        """Check an exchange; `place` says where it is, such as `step 3`."""
        self.add_evidence(exchange_evidence(exchange, salts), place)

    def add_evidence(self, evidence: ExchangeEvidence, place: str) -> None:
        """Check an exchange of which only its evidence is there."""
        element = f"exchange {evidence.id} ({place})"
        commitments = evidence.commitments
        record = self._take_record(evidence.id, element, has_salts=commitments is not None)
        if record is None or commitments is None:
            return
        self._runs.add(evidence.run)
        self._exchange_times.append(evidence.started_at)
        names = ("its head", "the body of its request", "the body of its response")
        own = zip(names, commitments, (record.head, record.request, record.response), strict=True)
        wrong = [name for name, commitment, recorded in own if commitment != recorded or commitment == _UNKNOWN]
        if not evidence.has_right_salts:
            wrong.insert(1 if "its head" in wrong else 0, "its salts")
        if wrong:
            verb = "differ" if len(wrong) > 1 or wrong == ["its salts"] else "differs"
            self.add_finding("altered", element, f"{' and '.join(wrong)} {verb} from what was recorded")
        else:
            self.proven += 1

    def add_bodiless_exchange(self, exchange: Exchange, salts: bytes | None, place: str) -> None:
        """Check the head of an exchange whose bodies are not there any more, and that their erasure is on record."""
        element = f"exchange {exchange.id} ({place})"
        is_erased = exchange.id in self._without_bodies
        if (record := self._take_record(exchange.id, element, has_salts=salts is not None)) is None or salts is None:
            return
        self._runs.add(exchange.run)
        self._exchange_times.append(exchange.started_at)
        if not is_erased:
            self.add_finding("removed", element, "its bodies are missing, and no erasure of them is on record")
        elif not _is_committed(salts, 0, exchange_statement(exchange), record.head):
            self.add_finding("altered", element, "its head differs from what was recorded")
        elif not are_salts_of(salts, True, False, False):
            self.add_finding("altered", element, "it has salts of bodies that were erased")
        else:
            self.proven += 1

    def add_gap(
        self, gap_id: str, gap: Gap, evidence: bytes | None, salts: bytes | None, *, has_evidence: bool
    ) -> None:
        """Check a gap. Without `has_evidence`, its evidence is not part of what is checked, as in a bundle."""
        element = f"gap {gap_id}"
        if (record := self._take_record(gap_id, element, has_salts=salts is not None)) is None or salts is None:
            return
        self._runs.add(gap.run)
        self._gap_times.append(gap.happened_at)
        fits = _is_committed(salts, 0, gap_statement(gap), record.head)
        fits = fits and are_salts_of(salts, True, record.request is not None)
        if has_evidence and fits:
            fits = (evidence is None) == (record.request is None) and (
                evidence is None or _is_committed(salts, 1, body_digest(evidence), record.request)
            )
        if fits:
            self.proven += 1
        else:
            self.add_finding("altered", element, "it differs from what was recorded")

    def add_effects(self, batch: EffectBatch, salts: bytes | None) -> None:
        """Check a batch of effects."""
        element = f"effects {batch.id} (process {batch.process}, batch {batch.number})"
        if (record := self._take_record(batch.id, element, has_salts=salts is not None)) is None or salts is None:
            return
        self._runs.add(batch.run)
        self._gap_times.append(batch.observed_at)
        fits = _is_committed(salts, 0, effects_statement(batch), record.head) and are_salts_of(salts, True, True)
        if fits and _is_committed(salts, 1, body_digest(batch.items), record.request):
            self.proven += 1
        else:
            self.add_finding("altered", element, "they differ from what was recorded")

    def skip(self, name: str) -> None:
        """Leave out an exchange that cannot be read: it is there, and reported already."""
        self._unmatched_records.pop(name, None)

    def _take_record(self, name: str, element: str, *, has_salts: bool) -> ChainRecord | None:
        record = self._unmatched_records.pop(name, None)
        if record is None and not has_salts:
            self.unproven += 1
        elif record is None:
            self.add_finding("inserted", element, "no record of its run's chains is about it")
        elif not has_salts:
            self.add_finding("altered", element, "its salt is missing, without which nothing can be compared")
        return record

    def add_run(self, facts: Mapping[str, Any], salts: bytes | None, started_at: int, ended_at: int | None) -> None:
        """Check what is said about the run itself, after everything else was added."""
        self.add_facts(facts, salts)
        if not self._is_complete:
            return
        end = max(self._ends, default=None)
        if ended_at is not None and (end is None or end[0] != ended_at):
            self.add_finding("altered", "run", "its end differs from what was recorded")
        if ended_at is None and end is not None and not any(is_reopened for _, is_reopened in self._ends):
            self.add_finding("altered", "run", "its end was removed")
        # A gap that was moved does not change when its new run began, and erasing may or may not.
        exchanges, gaps = self._exchange_times, self._gap_times
        options = (self._began_times + exchanges + gaps, self._began_times + exchanges, exchanges + gaps, exchanges)
        begins = {min(times) for times in options if times}
        if begins and started_at not in begins:
            self.add_finding("altered", "run", "its beginning differs from that of what it has")

    def add_facts(self, facts: Mapping[str, Any], salts: bytes | None) -> None:
        """Check the name, labels, origin and isolation of the run."""
        if self._run_records:
            statement = run_statement(facts)
            fits = any(salts and _is_committed(salts, 0, statement, record.head) for record in self._run_records)
            if not fits or not are_salts_of(salts or b""):
                self.add_finding(
                    "altered", "run", "its id, name, labels, parent or isolation differ from what was recorded"
                )
        elif salts is not None or (self._is_complete and not _says_nothing(facts)):
            self.add_finding("altered", "run", "it has a name, labels, a parent or isolation that no record is about")
        elif others := self._runs - {facts["id"]}:
            detail = f"its id is {facts['id']}, and what it has was recorded in {min(others)}"
            self.add_finding("altered", "run", detail)

    @property
    def _is_complete(self) -> bool:
        """Whether everything of the run has a record: what was said about it before there were records has none."""
        return self._has_records and not self.unproven

    def finish(self) -> None:
        """Report what has a record and is missing."""
        for name in self._removed_names:
            self._unmatched_records.pop(name, None)
        for name, record in self._unmatched_records.items():
            self.add_finding(
                "removed", f"{record.kind} {name}", "it was recorded, is missing, and no erasure is on record"
            )


def _says_nothing(facts: Mapping[str, Any]) -> bool:
    """Whether nothing was said about a run: it has an id and nothing else."""
    return run_statement(facts) == run_statement({"id": facts["id"], "labels": {}})


_UNKNOWN: Final = b""
"""The commitment of a part without a salt, which fits none."""


def _commitment(salts: bytes, part: int, content: bytes) -> bytes:
    salt = salt_of(salts, part)
    return _UNKNOWN if salt is None else commit(salt, content)


def _body_commitment(salts: bytes, part: int, body: Body) -> bytes | None:
    return None if body == EMPTY_BODY else _commitment(salts, part, body_digest(body.data))


def _is_committed(salts: bytes, part: int, content: bytes, commitment: bytes | None) -> bool:
    return commitment not in (None, _UNKNOWN) and _commitment(salts, part, content) == commitment


def sealed_problem(
    sizes: Sequence[tuple[int, bytes]], links: Mapping[int, bytes], size: int
) -> tuple[Change, str] | None:
    """Compare a chain with its leaves in the tree, (size, head) each; `links` has the links of the chain by its size then."""
    for sealed_size, head in sizes:
        if sealed_size > size:
            return "truncated", f"it has {size} records, and {sealed_size} were sealed"
        if links.get(sealed_size) != head:
            return "altered", f"its first {sealed_size} records are not those that were sealed"
    return None
