"""What tamper evidence adds to ingest: `python -m bench.proof [--rounds N] [--calls N] [--json]`.

The same spools are drained by an ingester with chains and by one without, in turns, each into a database of its own on one Postgres. CPU is
that of this process and of Postgres together, from the spool to the committed rows; signing checkpoints is included.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.figures import Spread, cpu_with_children, machine, print_json
from bench.filled import fill
from bench.ingest import WORKLOADS
from calls.derive import derive_call
from store.active_profiles import load_profiles
from store.database.connection import Database
from store.embedded.postgres import EmbeddedServer, ensure_server
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Ingester
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys

SERVER = uuid.uuid4()
PATIENCE = 600.0


async def measure(spool: Path, database: Database, postgres: int, checkpoints: Path) -> float:
    """Drain a copy of a spool; microseconds of CPU of a call."""
    spools = spool.parent / f"drained-{uuid.uuid4().hex}"
    await asyncio.to_thread(shutil.copytree, spool, spools / spool.name)
    profiles = load_profiles(None)
    writer = BatchWriter(database, profile=profiles.digest)
    ingester = Ingester(spools, writer, partial(derive_call, profiles=profiles))
    before, began = cpu_with_children(postgres), time.process_time()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ingester.run())
        assert await ingester.wait_until_settled(PATIENCE)
        if database.store_server is not None:
            await Sealer(database, SigningKeys(SERVER, (Ed25519PrivateKey.generate(),)), checkpoints).seal("default")
        ingester.stop()
        await running
    used = time.process_time() - began + cpu_with_children(postgres) - before
    await asyncio.to_thread(shutil.rmtree, spools)
    return used * 1e6


async def open_database(server: EmbeddedServer, name: str, store_server: uuid.UUID | None) -> Database:
    """A new database with our tables."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    database = Database(server.dsn.replace("///postgres?", f"///{name}?"), store_server)
    await database.prepare()
    return database


async def compare(root: Path, rounds: int, calls: int) -> Mapping[str, Mapping[str, Spread]]:
    """Measure each workload in turns."""
    with ensure_server(root / "pg") as server:
        postgres = int((root / "pg" / "data" / "postmaster.pid").read_text().split()[0])
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in WORKLOADS}
        for number in range(rounds + 1):
            for name, samples in WORKLOADS.items():
                spool = root / f"{name}-{number}"
                await fill(spool, samples(number * calls, calls))
                pair = []
                order = (None, SERVER) if number % 2 else (SERVER, None)
                for store_server in order:
                    kind = f"{name}_{number}_{'with' if store_server else 'without'}"
                    database = await open_database(server, kind, store_server)
                    pair.append(await measure(spool, database, postgres, root / f"checkpoints-{kind}") / calls)
                    await database.close()
                without, with_proof = pair if number % 2 else pair[::-1]
                if number:  # the first round warms up
                    found[name].append((without, with_proof))
    return {
        name: {
            "without_us": Spread.of(without for without, _ in pairs),
            "with_us": Spread.of(with_proof for _, with_proof in pairs),
            "ratio": Spread.of(with_proof / without for without, with_proof in pairs),
        }
        for name, pairs in found.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What tamper evidence adds to ingest.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        Path(name).chmod(0o711)  # as root, Postgres runs as another user
        found = asyncio.run(compare(Path(name), options.rounds, options.calls))
    if options.json:
        print_json({"machine": machine(), "found": found})
        return
    print(f"{'workload':10} {'us a call without':>28} {'with':>28} {'ratio':>22}")
    for workload, spreads in found.items():
        figures = f"{spreads['without_us']:.0f}", f"{spreads['with_us']:.0f}", f"{spreads['ratio']:.3f}"
        print(f"{workload:10} {figures[0]:>28} {figures[1]:>28} {figures[2]:>22}")


if __name__ == "__main__":
    main()
