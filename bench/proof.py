"""Measure what tamper evidence adds to ingest: `python -m bench.proof [--rounds N] [--calls N] [--workloads agent]
[--json]`.

The same spools are drained by an ingester with chains and by one without, in turns, each into a database of its own on
one Postgres. Prints the CPU of this process and Postgres for a call, from the spool to the committed rows and including
the signing of checkpoints, and the ratio.
"""

import argparse
import asyncio
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.figures import Spread, cpu_with_children, machine, print_json
from bench.fill_spool import fill
from bench.ingest import WORKLOADS
from calls.derive import derive_call
from calls.keys.element_memory import ElementMemory
from store.active_profiles import load_profiles
from store.database.connection import Database
from store.embedded.postgres import EmbeddedServer, ensure_server
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Ingester
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys

SERVER = uuid.uuid4()
KEYS = SigningKeys(SERVER, (Ed25519PrivateKey.generate(),))
PATIENCE = 600.0
BOOTSTRAP = 4000


async def measure(spool: Path, database: Database, postgres: int, checkpoints: Path) -> float:
    """Drain a copy of a spool; return the microseconds of CPU of a call."""
    spools = spool.parent / f"drained-{uuid.uuid4().hex}"
    await asyncio.to_thread(shutil.copytree, spool, spools / spool.name)
    profiles = load_profiles(None)
    memory = ElementMemory()
    writer = BatchWriter(database, profile=profiles.digest, split=memory.take_elements)
    ingester = Ingester(spools, writer, partial(derive_call, profiles=profiles, memory=memory))
    before, began = cpu_with_children(postgres), time.process_time()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ingester.run())
        assert await ingester.wait_until_settled(PATIENCE)
        if database.store_server is not None:
            await Sealer(database, KEYS, checkpoints).seal("default")
        ingester.stop()
        await running
    used = time.process_time() - began + cpu_with_children(postgres) - before
    await asyncio.to_thread(shutil.rmtree, spools)
    return used * 1e6


async def open_database(server: EmbeddedServer, name: str, store_server: uuid.UUID | None) -> Database:
    """Open a new database with Playhead's tables."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    database = Database(server.dsn.replace("///postgres?", f"///{name}?"), store_server)
    await database.prepare()
    return database


async def compare(root: Path, rounds: int, calls: int, workloads: Sequence[str]) -> Mapping[str, Mapping[str, Spread]]:
    """Measure each workload in many short turns, with and without, so that other work on the machine affects both of a
    pair.
    """
    with ensure_server(root / "pg") as server:
        postgres = int((root / "pg" / "data" / "postmaster.pid").read_text().split()[0])
        pairs_by_workload: dict[str, list[tuple[float, float]]] = {name: [] for name in workloads}
        for name in workloads:
            samples = WORKLOADS[name]
            databases = {
                store_server: await open_database(
                    server, f"{name}_{'with' if store_server else 'without'}", store_server
                )
                for store_server in (None, SERVER)
            }
            for number in range(rounds + 1):
                spool = root / f"{name}-{number}"
                await fill(spool, samples(number * calls, calls))
                used = {}
                for store_server in (None, SERVER) if number % 2 else (SERVER, None):
                    used[store_server] = await measure(spool, databases[store_server], postgres, root / name) / calls
                await asyncio.to_thread(shutil.rmtree, spool)
                if number:  # the first round warms up
                    pairs_by_workload[name].append((used[None], used[SERVER]))
            for database in databases.values():
                await database.close()
    return {
        name: {
            "without_us": Spread.of(without for without, _ in pairs),
            "with_us": Spread.of(with_proof for _, with_proof in pairs),
            "ratio": Spread.of(with_proof / without for without, with_proof in pairs),
            "mean_ratio": interval(pairs),
        }
        for name, pairs in pairs_by_workload.items()
    }


def interval(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Return the ratio of the sums, and its 95 % bootstrap interval over the rounds."""
    chooser = random.Random(1)
    ratios = sorted(
        sum(with_proof for _, with_proof in some) / sum(without for without, _ in some)
        for some in (chooser.choices(pairs, k=len(pairs)) for _ in range(BOOTSTRAP))
    )
    whole = sum(with_proof for _, with_proof in pairs) / sum(without for without, _ in pairs)
    return Spread(whole, ratios[BOOTSTRAP * 25 // 1000], ratios[BOOTSTRAP * 975 // 1000])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What tamper evidence adds to ingest.")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        Path(name).chmod(0o711)  # as root, Postgres runs as another user
        found = asyncio.run(compare(Path(name), options.rounds, options.calls, options.workloads))
    if options.json:
        print_json({"machine": machine(), "found": found})
        return
    print(
        f"{'workload':10} {'us a call without':>28} {'with':>28} {'median of ratios':>22} {'ratio of sums (95 %)':>22}"
    )
    for workload, spreads in found.items():
        without, with_proof = f"{spreads['without_us']:.0f}", f"{spreads['with_us']:.0f}"
        ratio, mean = f"{spreads['ratio']:.3f}", f"{spreads['mean_ratio']:.3f}"
        print(f"{workload:10} {without:>28} {with_proof:>28} {ratio:>22} {mean:>22}")


if __name__ == "__main__":
    main()
