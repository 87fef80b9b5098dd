"""The proof that travels in a bundle (docs/proof.md): make it, and check a bundle with nothing but a public key.

The line of an exchange, gap or batch of effects has its place in a chain, its commitments and their salts. The last line has the other records of the
chains, the leaf of each, its path to a signed checkpoint, and the path from the checkpoint before it.
"""

import base64
import hashlib
import json
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

import asyncpg
import msgspec

from calls.codec.canonical import canonical_json
from calls.events import EffectBatch, Gap
from calls.model import Exchange, UnknownFormat
from calls.proof.checkpoint import Checkpoint, InvalidNote, VerifierKey, parse_note
from calls.proof.records import FIRST_LINK, ChainRecord, leaf_bytes, next_link, record_members
from calls.proof.tree import consistency_path, inclusion_path, is_consistent, is_included, leaf_hash
from store.anchors.anchor_check import AnchorTrust, check_note
from store.anchors.rows import best_anchored_size, load_anchors
from store.bundle.bundle import LARGEST_IN_MEMORY, BadBundle, BundleHead, BundleTooLarge, Entry, RequestFile, read_parts
from store.database.connection import Database
from store.ingest.insert_rows import gap_id
from store.proof.chain import chain_name, decode_records
from store.proof.commitments import PARTS, SALT, salt_of
from store.proof.run_check import ExchangeEvidence, RunCheck, exchange_evidence, sealed_problem
from store.proof.sealing import newest_checkpoint
from store.proof.tiles import load_nodes
from store.proof.verdict import SealState, Verification, conclude

type Members = dict[str, Any]

NOT_SIGNED: Final = ("check", "signed")
"""The members of a bundle's last line that its signature is not about."""


@dataclass(slots=True)
class BundleProof:
    """What is written into the bundle of a run."""

    end: Members
    """The proof in the last line."""

    lines: dict[str, msgspec.Raw] = field(default_factory=dict)
    """The proofs of exchanges, gaps and batches of effects as JSON, by their ids: a long run has many."""

    gaps: list[str] = field(default_factory=list)
    """The ids of the gaps, in the order of their lines."""


async def load_bundle_proof(database: Database, project: str, run: str) -> BundleProof | None:
    """Load the proof of a run; None for one that was stored without."""
    async with database.connection() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        found = await connection.fetchrow(RUN, project, run)
        rows = await connection.fetch(CHAINS, project, found["incarnation"]) if found else []
        if found is None or not rows:
            return None
        salts = {row["id"]: row["salt"] for row in await connection.fetch(SALTS, project, run)}
        gaps = [str(row["id"]) for row in await connection.fetch(GAPS, project, run)]
        proof = BundleProof({"project": project, "chains": []}, gaps=gaps)
        if found["salt"] is not None:
            proof.end["run_salts"] = _salts_to_json(found["salt"])
        for row in rows:
            await _add_chain(connection, project, found["incarnation"], row["server"], salts, proof)
        return proof


async def _add_chain(
    connection: asyncpg.Connection,
    project: str,
    incarnation: uuid.UUID,
    server: uuid.UUID,
    salts: Mapping[uuid.UUID, bytes | None],
    proof: BundleProof,
) -> None:
    chain = chain_name(incarnation, server)
    number = len(proof.end["chains"])
    records: list[Members] = []
    place = 0
    records_in_lines: dict[str, tuple[int, ChainRecord]] = {}
    for row in await connection.fetch(RECORDS, project, incarnation, server):
        for record in decode_records(row["records"]):
            members = _without_chain(record_members(chain, place, record))
            if (
                record.kind in ("exchange", "gap", "effects")
                and (record_salts := salts.get(uuid.UUID(record.id))) is not None
            ):
                # An exchange that left the run and came back has two records; the line has the later one.
                if (earlier := records_in_lines.pop(record.id, None)) is not None:
                    records.append(_without_chain(record_members(chain, *earlier)))
                # No bundle has the id of a gap.
                own = ("place", "head", "request", "response", *(("id",) if record.kind == "gap" else ()))
                line: Members = {name: members[name] for name in own if name in members}
                proven = {"chain": number, **line, "salts": _salts_to_json(record_salts)}
                proof.lines[record.id] = msgspec.Raw(msgspec.json.encode(proven))
                records_in_lines[record.id] = (place, record)
            else:
                records.append(members)
            place += 1
    records.sort(key=lambda members: members["place"])
    entry: Members = {"chain": chain, "records": records}
    leaf = await connection.fetchrow(LAST_LEAF, project, incarnation, server)
    if leaf is not None:
        entry |= await _seal_members(connection, project, server, leaf)
    proof.end["chains"].append(entry)


async def _seal_members(connection: asyncpg.Connection, project: str, server: uuid.UUID, leaf: Any) -> Members:
    newest = await newest_checkpoint(connection, project, server)
    # The first one that most vouch for: what is newer proves no more of this run.
    anchored = await best_anchored_size(connection, project, server, leaf["place"])
    beyond = leaf["place"] if anchored is None else anchored - 1
    covering = await connection.fetchrow(COVERING, project, server, beyond)
    if newest is None or covering is None:
        return {}
    anchors = await load_anchors(connection, project, server, covering["size"])
    load = partial(load_nodes, connection, project, server, newest["size"])
    path = await load(partial(inclusion_path, leaf["place"], covering["size"]))
    members: Members = {
        "leaf": {"place": leaf["place"], "size": leaf["size"], "head": leaf["head"].hex()},
        "path": [each.hex() for each in path],
        "checkpoint": covering["note"] + "".join(one.content.decode() for one in anchors if one.kind == "witness"),
    }
    if timestamps := [one.content for one in anchors if one.kind == "timestamp"]:
        members["timestamps"] = [base64.b64encode(each).decode() for each in timestamps]
    before = await connection.fetchrow(BEFORE, project, server, covering["size"])
    if before is not None:
        path = await load(partial(consistency_path, before["size"], covering["size"]))
        members["before"] = {"checkpoint": before["note"], "path": [each.hex() for each in path]}
    return members


def signed_text(origin: str, last_line: Mapping[str, Any]) -> str:
    """Return the text that the exporting store server signs: that the bundle, to its last line, is what it has written."""
    stated = {name: value for name, value in last_line.items() if name not in NOT_SIGNED}
    return f"{origin}\nbundle {hashlib.sha256(canonical_json(stated)).hexdigest()}\n"


class _MalformedProof(Exception):
    """The proof in a bundle is malformed."""


MALFORMED: Final = (_MalformedProof, LookupError, TypeError, ValueError, AttributeError)
"""What a malformed proof raises."""

REQUESTS_IN_MEMORY: Final = 64 << 20
"""Bytes of the requests to which later lines may refer; more of them are kept in a file."""


def verify_bundle(lines: Iterable[bytes], keys: Collection[VerifierKey], roots: str | None = None) -> Verification:
    """Check a bundle against its own proof and the keys that are trusted. Raises `NoProof` where it has none.

    Each witness among the keys must have signed its checkpoint, and with `roots`, certificates as PEM, an authority that they vouch for
    must say when it existed. Damage is a finding. Raises `BundleTooLarge`, which says nothing about who wrote it, and no other `BadBundle`.
    """
    trust = _Trust(
        [key for key in keys if key.kind == "log"], AnchorTrust([key for key in keys if key.kind == "witness"], roots)
    )
    check, reader = RunCheck(), _BundleReader()
    try:
        reader.read(lines)
    except BundleTooLarge:
        raise
    except BadBundle as error:
        check.add_finding("altered", f"line {error.line}", f"the bundle is damaged here: {error.why}")
        return conclude(check, [])
    if reader.last is None or "proof" not in reader.last:
        raise NoProof
    try:
        seals = _check_parts(reader, trust, check)
    except MALFORMED as error:
        check.add_finding("altered", "proof", f"it is malformed: {error}")
        return conclude(check, [])
    return replace(conclude(check, seals), is_signed="signed" in reader.last)


class _Trust(NamedTuple):
    """Whose word counts."""

    keys: Sequence[VerifierKey]
    anchors: AnchorTrust


class NoProof(Exception):
    """The bundle has no proof: it was exported without one, or its run was stored without one."""


class _ProvenEntry(NamedTuple):
    """What is kept of an exchange: a bundle may be larger than memory."""

    line: int
    evidence: ExchangeEvidence
    record: "_PlacedRecord | None"


class _PlacedRecord(NamedTuple):
    """A record, and where it is."""

    chain: int
    place: int
    record: ChainRecord


@dataclass(slots=True)
class _BundleReader:
    """The parts of a bundle with the proofs on their lines."""

    head: BundleHead | None = None
    entries: list[_ProvenEntry] = field(default_factory=list)
    malformed: Exception | None = None
    """What was wrong with the first proof on the line of an exchange that could not be read."""

    gaps: list[tuple[int, Gap, Members | None]] = field(default_factory=list)
    effects: list[tuple[int, EffectBatch, Members | None]] = field(default_factory=list)
    last: Members | None = None

    def read(self, lines: Iterable[bytes]) -> None:
        """Read all lines. Raises `BadBundle`."""
        number = 0
        for number, (part, line) in enumerate(_read_with_lines(lines), 1):
            members: Members = json.loads(line)
            match part:
                case BundleHead():
                    self.head = part
                case Entry():
                    self._add_entry(number, part.exchange, members.get("proof"))
                case Gap():
                    self.gaps.append((number, part, members.get("proof")))
                case EffectBatch():
                    self.effects.append((number, part, members.get("proof")))
                case None:
                    self.last = members

    def _add_entry(self, number: int, exchange: Exchange, line: Members | None) -> None:
        try:
            record = _placed_record("exchange", exchange.id, line)
            self.entries.append(_ProvenEntry(number, exchange_evidence(exchange, _salts_from_json(line)), record))
        except MALFORMED as error:
            self.malformed = self.malformed or error


def _read_with_lines(lines: Iterable[bytes]) -> Iterator[tuple[BundleHead | Entry | Gap | EffectBatch | None, bytes]]:
    """Yield each part of a bundle with its line; None with the last line."""
    passed: list[bytes] = []

    def note() -> Iterator[bytes]:
        for line in lines:
            passed.append(line)
            yield line

    try:
        with tempfile.SpooledTemporaryFile(REQUESTS_IN_MEMORY) as requests:
            for part in read_parts(note(), LARGEST_IN_MEMORY, RequestFile(requests)):
                yield part, passed.pop()
    except UnknownFormat as error:
        raise BadBundle(1, str(error)) from None
    yield None, passed.pop()


def _check_parts(reader: _BundleReader, trust: _Trust, check: RunCheck) -> list[SealState]:
    assert reader.head is not None
    assert reader.last is not None
    if reader.malformed is not None:
        raise reader.malformed
    proof = reader.last["proof"]
    chains = [_Chain(entry["chain"], entry) for entry in proof["chains"]]
    records = [entry.record for entry in reader.entries]
    records += [_placed_record("gap", _gap_id(gap, line), line) for _, gap, line in reader.gaps]
    records += [_placed_record("effects", batch.id, line) for _, batch, line in reader.effects]
    for one in records:
        if one is not None:
            chains[one.chain].add(one.place, one.record)
    seals = [seal for chain in chains if (seal := _check_chain(chain, proof["project"], trust, check))]
    check.unsealed_chains = len(chains) - len(seals)
    previous = (-1, "")
    for number, evidence, _ in reader.entries:
        if (evidence.started_at, evidence.id) < previous:
            check.add_finding("reordered", f"line {number}", "its exchange began before that of the line above it")
        previous = (evidence.started_at, evidence.id)
        check.add_evidence(evidence, f"line {number}")
    for _, gap, line in reader.gaps:
        check.add_gap(_gap_id(gap, line), gap, None, _salts_from_json(line), has_evidence=False)
    for _, batch, line in reader.effects:
        check.add_effects(batch, _salts_from_json(line))
    _check_run(reader.head, proof, check)
    check.finish()
    if not check.findings:
        _check_signature(reader.last, trust, check)
    return seals


def _check_run(head: BundleHead, proof: Members, check: RunCheck) -> None:
    run = dict(head.run)
    salts = bytes.fromhex("".join(proof["run_salts"])) if "run_salts" in proof else None
    check.add_facts(run, salts)


@dataclass(slots=True)
class _Chain:
    """A chain of the bundle, whose records are collected from its lines."""

    name: str
    entry: Members
    records: dict[int, ChainRecord] = field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        for members in self.entry["records"]:
            self.add(members["place"], _record_from_json(members))

    def add(self, place: int, record: ChainRecord) -> None:
        if place in self.records:
            raise _MalformedProof(f"two records have the place {place} in the chain {self.name}")
        self.records[place] = record


def _placed_record(kind: str, name: str, line: Members | None) -> _PlacedRecord | None:
    if line is None:
        return None
    return _PlacedRecord(line["chain"], line["place"], _record_from_json({**line, "kind": kind, "id": name}))


def _check_chain(chain: _Chain, project: str, trust: _Trust, check: RunCheck) -> SealState | None:
    name = chain.name
    link, links, size = FIRST_LINK, dict[int, bytes](), 0
    while (record := chain.records.get(size)) is not None:
        link = next_link(link, name, size, record)
        size += 1
        links[size] = link
    if missing := [place for place in chain.records if place > size]:
        check.add_finding("removed", f"record {size} of chain {name}", f"record {min(missing)} follows")
        return None
    check.add_records(chain.records[place] for place in range(size))
    chain.origin = f"playhead/{name.partition('/')[2]}/{project}"
    leaf = chain.entry.get("leaf")
    if leaf is None:
        return None
    head = bytes.fromhex(leaf["head"])
    if problem := sealed_problem([(leaf["size"], head)], links, size):
        check.add_finding(problem[0], f"chain {name}", problem[1])
        return None
    return _check_leaf(chain, leaf["place"], leaf_bytes(name, leaf["size"], head), size - leaf["size"], trust, check)


def _check_leaf(
    chain: _Chain, place: int, content: bytes, unsealed: int, trust: _Trust, check: RunCheck
) -> SealState | None:
    """Check that the leaf is in a tree whose root a trusted key has signed, and that this tree continues an earlier one."""
    entry = chain.entry
    checkpoint = _signed_checkpoint(entry["checkpoint"], chain.origin, trust, check)
    if checkpoint is None:
        return None
    path = [bytes.fromhex(each) for each in entry["path"]]
    if not is_included(leaf_hash(content), place, checkpoint.size, path, checkpoint.root):
        check.add_finding(
            "altered", f"chain {chain.name}", "its head is not in the tree that the checkpoint has signed"
        )
        return None
    if before := entry.get("before"):
        earlier = _signed_checkpoint(before["checkpoint"], chain.origin, trust, check)
        path = [bytes.fromhex(each) for each in before["path"]]
        if earlier is not None and not is_consistent(
            earlier.size, earlier.root, checkpoint.size, checkpoint.root, path
        ):
            check.add_finding("altered", "checkpoint", "its tree does not continue that of the checkpoint before it")
            return None
    timestamps = [base64.b64decode(each, validate=True) for each in entry.get("timestamps", ())]
    anchors = list(check_note(parse_note(entry["checkpoint"]), timestamps, trust.anchors))
    for anchor in anchors:
        if anchor.problem is not None:
            check.add_finding("unsigned", "checkpoint", anchor.problem)
    return SealState(
        chain=chain.name,
        origin=chain.origin,
        size=checkpoint.size,
        signed_at=None,
        note=entry["checkpoint"],
        unsealed=unsealed,
        anchors=anchors,
    )


def _signed_checkpoint(note: str, origin: str, trust: _Trust, check: RunCheck) -> Checkpoint | None:
    try:
        parsed = parse_note(note)
        checkpoint = parsed.checkpoint
    except InvalidNote as error:
        check.add_finding("altered", "checkpoint", str(error))
        return None
    # A key is known by its bytes: one that was noted for another project of the same store server signs this one, too.
    keys = [VerifierKey(origin, key.public_key) for key in trust.keys]
    if checkpoint.origin != origin or not any(parsed.is_signed_by(key) for key in keys):
        check.add_finding("unsigned", "checkpoint", f"none of the trusted keys has signed it for {origin}")
        return None
    return checkpoint


def _check_signature(last: Members, trust: _Trust, check: RunCheck) -> None:
    """Check what the store server signed that wrote the bundle: also what is derived from exchanges, such as their calls.

    It need not be one that has recorded something of the run, if several share a database or its key was lost meanwhile.
    """
    if (note := last.get("signed")) is None:
        return
    try:
        parsed = parse_note(note)
    except InvalidNote as error:
        check.add_finding("altered", "bundle", f"its signature is malformed: {error}")
        return
    origin = parsed.text.partition("\n")[0]
    keys = [VerifierKey(origin, key.public_key) for key in trust.keys]
    if not any(parsed.is_signed_by(key) for key in keys):
        detail = (
            f"none of the trusted keys has signed it; {origin} has exported it: give the key of this store server, too"
        )
        check.add_finding("unsigned", "bundle", detail)
    elif parsed.text != signed_text(origin, last):
        detail = "its evidence fits, but something that is derived from it (calls, keys, the run's times) was changed"
        check.add_finding("altered", "bundle", detail)


def _gap_id(gap: Gap, line: Members | None) -> str:
    return str(gap_id(gap)) if line is None else str(line["id"])


def _without_chain(members: Members) -> Members:
    return {name: value for name, value in members.items() if name != "chain"}


def _record_from_json(members: Mapping[str, Any]) -> ChainRecord:
    read_hash: Callable[[str], bytes | None] = lambda name: bytes.fromhex(members[name]) if name in members else None  # noqa: E731
    read_time: Callable[[str], int | None] = lambda name: int(members[name]) if name in members else None  # noqa: E731
    return ChainRecord(
        kind=members["kind"],
        id=members.get("id", ""),
        head=read_hash("head"),
        request=read_hash("request"),
        response=read_hash("response"),
        at=read_time("at"),
        began=read_time("began"),
        part=members.get("part"),
        rule=members.get("rule"),
    )


def _salts_to_json(salts: bytes) -> list[str]:
    """The salts of the parts as hexadecimal text; empty for a part that does not exist or whose salt was forgotten."""
    parts = (salt_of(salts, part) for part in range(min(PARTS, len(salts) // SALT)))
    return [salt.hex() if salt else "" for salt in parts]


def _salts_from_json(line: Members | None) -> bytes | None:
    if line is None:
        return None
    return b"".join(bytes.fromhex(cast("str", salt)) or bytes(SALT) for salt in line["salts"])


RUN = "SELECT incarnation, salt FROM runs WHERE project = $1 AND id = $2"

CHAINS = "SELECT server FROM chains WHERE project = $1 AND incarnation = $2 ORDER BY server"

RECORDS = """
SELECT records FROM chain_records WHERE project = $1 AND incarnation = $2 AND server = $3 ORDER BY first
"""

SALTS = """
SELECT id, salt FROM exchanges WHERE project = $1 AND run = $2 UNION ALL SELECT id, salt FROM gaps WHERE project = $1 AND run = $2
UNION ALL SELECT id, salt FROM effects WHERE project = $1 AND run = $2
"""

LAST_LEAF = """
SELECT place, size, head FROM tree_leaves WHERE project = $1 AND incarnation = $2 AND server = $3 ORDER BY place DESC LIMIT 1
"""

GAPS = "SELECT id FROM gaps WHERE project = $1 AND run = $2 ORDER BY happened_at, id"

COVERING = """
SELECT size, note FROM checkpoints WHERE project = $1 AND server = $2 AND size > $3 ORDER BY size LIMIT 1
"""

BEFORE = """
SELECT size, note FROM checkpoints WHERE project = $1 AND server = $2 AND size < $3 ORDER BY size DESC LIMIT 1
"""
