"""Check a run in the database against its chains, the tree, a checkpoint, and the keys that signed it."""

import itertools
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import asyncpg
import msgspec

from calls.events import Gap
from calls.model import Exchange
from calls.proof.checkpoint import VerifierKey
from calls.proof.records import FIRST_LINK, ChainRecord, fold_links, leaf_bytes
from calls.proof.tree import ReadNode, inclusion_path, leaf_hash
from store.anchors.anchor_check import AnchorState, AnchorTrust
from store.bundle.statement import RUN_FACTS
from store.database.blobs import BodyUnavailable, CorruptData, Unavailability
from store.database.connection import Database
from store.database.rows import effect_batch
from store.proof.chain import chain_name, decode_records, is_last_of_run
from store.proof.run_check import Change, RunCheck, sealed_problem
from store.proof.signing_keys import log_origin
from store.proof.tiles import load_nodes
from store.proof.tree_check import CheckedTree, TreeChecker
from store.proof.verdict import SealState, Verification, conclude
from store.query.exchange_reader import ReadableExchanges

BATCH: Final = 50
"""Exchanges that are loaded at a time."""


class ExchangeLoader(Protocol):
    """Loads exchanges by their ids."""

    async def readable_exchanges(self, ids: Collection[str], /) -> ReadableExchanges:
        """Raises `CorruptData`."""

    async def exchange_without_bodies(self, id: str, /) -> tuple[Exchange, Any] | None:  # noqa: A002 - what it is
        """Raises `CorruptData`."""


class _Chain(NamedTuple):
    """A chain of a run."""

    server: uuid.UUID
    name: str
    size: int
    links: Mapping[int, bytes]
    """Its link after each row of records, by the size that it had then."""

    leaves: Sequence[Mapping[str, Any]]


class RunVerifier:
    """Checks runs of a project.

    `keys` are the public keys that are trusted, `copies` the directory of this server's checkpoints, `trust` whose word counts beside.
    """

    def __init__(
        self,
        database: Database,
        project: str,
        loader: ExchangeLoader,
        keys: Collection[VerifierKey],
        copies: Path | None,
        trust: AnchorTrust = AnchorTrust(),  # noqa: B008 - it is immutable
    ) -> None:
        self._database = database
        self._project = project
        self._loader = loader
        self._keys = keys
        self._trees = TreeChecker(project, keys, database.store_server, copies, trust)

    async def verify(self, run: str) -> Verification | None:
        """Check a run; None if there is none of this id."""
        return (await self.verify_many([run])).get(run)

    async def verify_many(self, runs: Sequence[str]) -> dict[str, Verification]:
        """Check runs together, which takes a fraction of the time; unknown ones are left out."""
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            rows = {row["id"]: row for row in await connection.fetch(RUNS, self._project, runs)}
            checks = {run: RunCheck() for run in rows}
            chains = await self._load_chains(connection, {row["incarnation"]: checks[run] for run, row in rows.items()})
            trees = await self._check_trees(connection, chains)
            seals = {
                run: self._check_seals(chains[row["incarnation"]], trees, checks[run]) for run, row in rows.items()
            }
            stored = await connection.fetch(SALTS, self._project, list(rows))
            gaps = await connection.fetch(GAPS, self._project, list(rows))
            effects = await connection.fetch(EFFECTS, self._project, list(rows))
        steps: defaultdict[str, int] = defaultdict(int)
        for some in itertools.batched(stored, BATCH):
            await self._check_exchanges(some, steps, checks)
        for gap in gaps:
            stated = Gap(gap["run"], gap["happened_at"], gap["reason"], gap["exchange"], gap["count"])
            checks[gap["run"]].add_gap(str(gap["id"]), stated, gap["evidence"], gap["salt"], has_evidence=True)
        for one in effects:
            check_effects(one, one["run"], checks[one["run"]])
        for run, row in rows.items():
            facts = {name: row[name] for name in RUN_FACTS} | {"labels": msgspec.json.decode(row["labels"])}
            checks[run].add_run(facts, row["salt"], row["started_at"], row["ended_at"])
            checks[run].finish()
        return {run: conclude(check, seals[run]) for run, check in checks.items()}

    async def verify_project(self, server: uuid.UUID, contradictions: Sequence[str] = ()) -> Verification:
        """Check that every run that was sealed is there, or has a record of its erasure. It does not look into the runs.

        `contradictions` are what witnesses of another history have answered.
        """
        check = RunCheck()
        for contradiction in contradictions:
            check.add_finding("truncated", "checkpoint", contradiction)
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            tree = await self._trees.check(connection, server)
            check.findings += tree.findings if tree else ()
            if tree is None or (checkpoint := tree.checkpoint) is None:
                return conclude(check, [])
            await self._check_leaves(connection, server, checkpoint.size, check)
            for row in await connection.fetch(LOST_CHAINS, self._project, server, MOST_LOST):
                detail = "it was sealed, and is missing or shorter"
                check.add_finding("removed", f"chain {chain_name(row['incarnation'], server)}", detail)
            for row in await connection.fetch(RUNLESS_CHAINS, self._project, server):
                self._check_erased_run(chain_name(row["incarnation"], server), row["ends"] or (), check)
            check.unproven += await connection.fetchval(CHAINLESS_RUNS, self._project)
            unsealed = await connection.fetchval(UNSEALED_CHAINS, self._project, server)
        seal = SealState(
            chain="",
            origin=checkpoint.origin,
            size=checkpoint.size,
            signed_at=tree.newest["signed_at"],
            note=tree.newest["note"],
            unsealed=unsealed,
            anchors=_add_anchors(tree, 0, check),
        )
        check.proven = checkpoint.size
        return conclude(check, [seal])

    def _check_erased_run(self, chain: str, ends: Sequence[Any], check: RunCheck) -> None:
        """Check that a run that is gone was erased, by the last records of all its chains."""
        erasers = {other for other, records in ends if is_last_of_run(decode_records(records)[-1])}
        if not erasers:
            check.add_finding("removed", f"chain {chain}", "its run is gone, and no erasure is on record")
        elif not any(key.name == log_origin(other, self._project) for key in self._keys for other in erasers):
            # Anybody who can write to the database can write the chain of a store server that nobody knows.
            check.unproven += 1

    async def _check_leaves(
        self, connection: asyncpg.Connection, server: uuid.UUID, size: int, check: RunCheck
    ) -> None:
        """Check that each leaf is the one in the tree."""
        for begin in range(0, size, LEAVES_AT_ONCE):
            end = min(begin + LEAVES_AT_ONCE, size)
            rows = {row["place"]: row for row in await connection.fetch(SOME_LEAVES, self._project, server, begin, end)}
            read_hashes = partial(_leaf_hashes, range(begin, end))
            hashes = await load_nodes(connection, self._project, server, size, read_hashes)
            for place, expected in zip(range(begin, end), hashes, strict=True):
                if (row := rows.get(place)) is None:
                    check.add_finding("removed", f"leaf {place}", "it is in the signed tree, and its row is missing")
                    continue
                content = leaf_bytes(chain_name(row["incarnation"], server), row["size"], row["head"])
                if leaf_hash(content) != expected:
                    check.add_finding("altered", f"leaf {place}", "it is not the one in the signed tree")

    async def _check_exchanges(
        self, rows: Sequence[Mapping[str, Any]], steps: dict[str, int], checks: Mapping[str, RunCheck]
    ) -> None:
        """Check exchanges of several runs, each in step order. `steps` has the last step of each run."""
        loaded = await self._load([str(row["id"]) for row in rows])
        for row in rows:
            name, check = str(row["id"]), checks[row["run"]]
            steps[row["run"]] += 1
            number = steps[row["run"]]
            found = loaded.get(name)
            if isinstance(found, BodyUnavailable):
                await self._check_bodiless(name, row, number, found, check)
            elif isinstance(found, Exchange):
                check.add_exchange(found, row["salt"], f"step {number}")
            else:
                check.skip(name)
                check.add_finding("altered", f"exchange {name} (step {number})", f"it cannot be read: {found}")

    async def _check_bodiless(
        self, name: str, row: Mapping[str, Any], number: int, why: BodyUnavailable, check: RunCheck
    ) -> None:
        """Check an exchange whose bodies cannot be had: erased by retention, or an object that is lost or out of reach."""
        if row["is_erased"] and (found := await self._loader.exchange_without_bodies(name)) is not None:
            check.add_bodiless_exchange(found[0], row["salt"], f"step {number}")
            return
        check.skip(name)
        changes: dict[Unavailability, Change] = {"damaged": "altered", "unreachable": "unreachable"}
        change = changes.get(why.kind, "removed")
        check.add_finding(change, f"exchange {name} (step {number})", f"a body cannot be read: {why.reason}")

    async def _load(self, names: Sequence[str]) -> dict[str, Exchange | BodyUnavailable | str]:
        """Load exchanges; of one that cannot be read, why."""
        try:
            found, unavailable = await self._loader.readable_exchanges(names)
            return {**found, **unavailable}
        except (CorruptData, ValueError) as error:
            if len(names) == 1:
                return {names[0]: str(error) or type(error).__name__}
        loaded: dict[str, Exchange | BodyUnavailable | str] = {}
        for name in names:
            loaded |= await self._load([name])
        return loaded

    async def _load_chains(
        self, connection: asyncpg.Connection, checks: Mapping[uuid.UUID, RunCheck]
    ) -> dict[uuid.UUID, list[_Chain]]:
        """Load the chains of runs, by incarnation, and check that each is one from its first record to its end."""
        records: defaultdict[tuple[uuid.UUID, uuid.UUID], list[Any]] = defaultdict(list)
        leaves: defaultdict[tuple[uuid.UUID, uuid.UUID], list[Any]] = defaultdict(list)
        incarnations = list(checks)
        for row in await connection.fetch(CHAIN_RECORDS, self._project, incarnations):
            records[row["incarnation"], row["server"]].append(row)
        for row in await connection.fetch(LEAVES, self._project, incarnations):
            leaves[row["incarnation"], row["server"]].append(row)
        ends = {
            (row["incarnation"], row["server"]): row
            for row in await connection.fetch(CHAINS, self._project, incarnations)
        }
        chains: dict[uuid.UUID, list[_Chain]] = {incarnation: [] for incarnation in incarnations}
        for place in sorted(records.keys() | ends.keys() | leaves.keys()):
            incarnation, server = place
            check, name = checks[incarnation], chain_name(incarnation, server)
            own, links = _read_chain(name, records[place], check)
            check.add_records(own)
            _check_end(name, len(own), links, ends.get(place), check)
            chains[incarnation].append(_Chain(server, name, len(own), links, leaves[place]))
        return chains

    async def _check_trees(
        self, connection: asyncpg.Connection, chains: Mapping[uuid.UUID, Sequence[_Chain]]
    ) -> dict[uuid.UUID, CheckedTree | None]:
        """Check the tree of each store server, and load the paths of the leaves from it."""
        places: defaultdict[uuid.UUID, list[int]] = defaultdict(list)
        for chain in itertools.chain.from_iterable(chains.values()):
            places[chain.server] += [leaf["place"] for leaf in chain.leaves]
        trees = {server: await self._trees.check(connection, server) for server in sorted(places)}
        for server, tree in trees.items():
            if tree is not None and tree.checkpoint is not None:
                size = tree.checkpoint.size
                await tree.nodes.prepare(
                    partial(inclusion_path, place, size) for place in places[server] if place < size
                )
        return trees

    def _check_seals(
        self, chains: Sequence[_Chain], trees: Mapping[uuid.UUID, CheckedTree | None], check: RunCheck
    ) -> list[SealState]:
        seals = [self._check_seal(chain, trees[chain.server], check) for chain in chains]
        check.unsealed_chains += seals.count(None)
        return [seal for seal in seals if seal is not None]

    def _check_seal(self, chain: _Chain, tree: CheckedTree | None, check: RunCheck) -> SealState | None:
        """Check that the chain leads to its leaves, and these to a signed checkpoint."""
        if problem := sealed_problem([(leaf["size"], leaf["head"]) for leaf in chain.leaves], chain.links, chain.size):
            check.add_finding(problem[0], f"chain {chain.name}", problem[1])
        if tree is None:
            if chain.leaves:
                detail = f"the chain {chain.name} was sealed, and there is no checkpoint"
                check.add_finding("removed", "checkpoint", detail)
            return None
        check.findings += tree.findings
        if (checkpoint := tree.checkpoint) is None or not chain.leaves:
            return None
        for leaf in chain.leaves:
            if not tree.is_included(leaf_hash(leaf_bytes(chain.name, leaf["size"], leaf["head"])), leaf["place"]):
                detail = "it, or the tree beside it, is not what the checkpoint has signed"
                check.add_finding("altered", f"leaf {leaf['place']} of {checkpoint.origin}", detail)
                return None
        last = chain.leaves[-1]
        return SealState(
            chain=chain.name,
            origin=checkpoint.origin,
            size=checkpoint.size,
            signed_at=tree.newest["signed_at"],
            note=tree.newest["note"],
            unsealed=chain.size - last["size"],
            anchors=_add_anchors(tree, last["place"], check),
        )


def _add_anchors(tree: CheckedTree, beyond: int, check: RunCheck) -> Sequence[AnchorState]:
    """Return what others say about checkpoints over a size, whose trees the newest one must continue."""
    anchors = [state for size, state in tree.anchors if size > beyond]
    for problem in (state.problem for state in anchors):
        if problem is not None and problem not in [finding.detail for finding in check.findings]:
            check.add_finding("altered", "checkpoint", problem)
    return anchors


def check_effects(row: Mapping[str, Any], run: str, check: RunCheck) -> None:
    """Check a stored batch of effects."""
    name = str(row["id"])
    try:
        check.add_effects(effect_batch(row, run), row["salt"])
    except (CorruptData, ValueError) as error:
        check.skip(name)
        check.add_finding("altered", f"effects {name}", f"they cannot be read: {error}")


def _read_chain(
    name: str, rows: Sequence[Mapping[str, Any]], check: RunCheck
) -> tuple[list[ChainRecord], dict[int, bytes]]:
    """Read the records of a chain, and its link after each row by the size that it had then."""
    records: list[ChainRecord] = []
    links: dict[int, bytes] = {}
    link = FIRST_LINK
    for number, row in enumerate(rows):
        if row["first"] != len(records):
            place = min(len(records), row["first"])
            check.add_finding(
                "removed", f"record {place} of chain {name}", f"the next one there is record {row['first']}"
            )
            break
        try:
            new = decode_records(row["records"])
        except msgspec.DecodeError as error:
            check.add_finding("altered", f"record {len(records)} of chain {name}", f"it cannot be read: {error}")
            break
        size, following = fold_links(name, new, link, len(records))
        if following != row["link"]:
            is_later = any(_continues(name, other, link, len(records)) for other in rows[number + 1 :])
            detail = "a later record was there" if is_later else "it differs from what was appended"
            check.add_finding("reordered" if is_later else "altered", f"record {len(records)} of chain {name}", detail)
            break
        records += new
        link = links[size] = following
    return records, links


def _continues(name: str, row: Mapping[str, Any], link: bytes, place: int) -> bool:
    """Whether the records of a row are those that follow a link."""
    try:
        return bool(fold_links(name, decode_records(row["records"]), link, place)[1] == row["link"])
    except msgspec.DecodeError:
        return False


def _check_end(
    name: str, size: int, links: Mapping[int, bytes], end: Mapping[str, Any] | None, check: RunCheck
) -> None:
    if any(f"chain {name}" in finding.element for finding in check.findings):
        return
    if end is None:
        check.add_finding("removed", f"chain {name}", "its end is missing in the table of chains")
    elif end["size"] > size:
        check.add_finding("truncated", f"chain {name}", f"it has {size} records, and {end['size']} were appended")
    elif end["size"] != size or links.get(size, FIRST_LINK) != end["head"]:
        check.add_finding("altered", f"chain {name}", "its end is not the one in the table of chains")


def _leaf_hashes(places: range, read_node: ReadNode) -> list[bytes]:
    return [read_node(0, place) for place in places]


LEAVES_AT_ONCE: Final = 1024
MOST_LOST: Final = 100
"""Missing chains that are listed."""

SOME_LEAVES = """
SELECT place, incarnation, size, head FROM tree_leaves
WHERE project = $1 AND server = $2 AND place >= $3 AND place < $4
"""

LOST_CHAINS = """
SELECT DISTINCT tree_leaves.incarnation FROM tree_leaves LEFT JOIN chains
    ON chains.project = $1 AND chains.server = $2 AND chains.incarnation = tree_leaves.incarnation
WHERE tree_leaves.project = $1 AND tree_leaves.server = $2 AND (chains.size IS NULL OR chains.size < tree_leaves.size) LIMIT $3
"""

# With the last records of all chains of the run: any store server may have erased it.
RUNLESS_CHAINS = """
SELECT chains.incarnation, ends FROM chains
LEFT JOIN runs ON runs.project = $1 AND runs.incarnation = chains.incarnation
CROSS JOIN LATERAL (
    SELECT array_agg(ROW(server, records)) AS ends FROM (
        SELECT DISTINCT ON (server) server, records FROM chain_records
        WHERE project = $1 AND chain_records.incarnation = chains.incarnation ORDER BY server, first DESC
    ) AS last
) AS gathered
WHERE chains.project = $1 AND chains.server = $2 AND runs.id IS NULL
"""

# An earlier version stored them, or somebody inserted them.
CHAINLESS_RUNS = """
SELECT count(*) FROM runs
WHERE project = $1 AND NOT EXISTS (SELECT FROM chains WHERE chains.project = $1 AND chains.incarnation = runs.incarnation)
    AND EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = runs.id)
"""

UNSEALED_CHAINS = "SELECT count(*) FROM chains WHERE project = $1 AND server = $2 AND is_unsealed"

RUNS = """
SELECT incarnation, salt, started_at, ended_at, id, name, labels::text, parent, forked_at, isolation
FROM runs WHERE project = $1 AND id = ANY ($2::text[])
"""

CHAIN_RECORDS = """
SELECT incarnation, server, first, records, link FROM chain_records
WHERE project = $1 AND incarnation = ANY ($2::uuid[]) ORDER BY incarnation, server, first
"""

CHAINS = "SELECT incarnation, server, size, head FROM chains WHERE project = $1 AND incarnation = ANY ($2::uuid[])"

LEAVES = """
SELECT incarnation, server, place, size, head FROM tree_leaves
WHERE project = $1 AND incarnation = ANY ($2::uuid[]) ORDER BY incarnation, server, place
"""

SALTS = """
SELECT id, run, salt, request_digest IS NULL AS is_erased FROM exchanges
WHERE project = $1 AND run = ANY ($2::text[]) ORDER BY run, started_at, id
"""

EFFECTS = """
SELECT id, run, observed_at, process, number, count, items, salt FROM effects
WHERE project = $1 AND run = ANY ($2::text[]) ORDER BY run, process, number, id
"""

GAPS = """
SELECT id, run, happened_at, reason, exchange, evidence, count, salt FROM gaps
WHERE project = $1 AND run = ANY ($2::text[]) ORDER BY run, happened_at, id
"""
