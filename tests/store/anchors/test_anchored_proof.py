"""What vouches for a checkpoint is checked in the database, travels in bundles, and is checked there offline."""

import base64
import contextlib
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calls.proof.checkpoint import VerifierKey
from proxy.cli import playhead
from proxy.errors import Failure
from store.anchors.anchor_check import AnchorTrust
from store.anchors.timestamp import InvalidTimestamp, check_timestamp, read_roots, stated_time
from store.bundle.sealed_lines import seal_line
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof.bundle_proof import load_bundle_proof, verify_bundle
from store.proof.verdict import Verification
from store.proof.verification import RunVerifier
from store.query.call_reader import CallReader
from tests.store.anchors.servers import WITNESS_TIME, OpensslAuthority, SpecWitness, serving
from tests.store.anchors.test_anchorer import LOG_KEY, ORIGIN, make_anchorer, seal
from tests.store.running_store import PROFILES, SIGNING_KEYS, open_store
from tests.store.samples import call, tool_exchange

RUN = "night-run"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredRun:
    """A run whose checkpoint a witness and an authority vouch for."""

    database: Database
    copies: Path
    bundle: bytes
    witness: VerifierKey
    roots: str

    async def verify(self, trust: AnchorTrust) -> Verification:
        """Verify it in the database."""
        loader, keys = CallReader(self.database, call), SIGNING_KEYS.verifier_keys("default")
        found = await RunVerifier(self.database, "default", loader, keys, self.copies, trust).verify(RUN)
        assert found is not None
        return found

    def verify_bundle(
        self, *witnesses: VerifierKey, roots: str | None = None, bundle: bytes | None = None
    ) -> Verification:
        """Verify it as a bundle."""
        return verify_bundle((bundle or self.bundle).splitlines(keepends=True), [LOG_KEY, *witnesses], roots)

    async def execute(self, statement: str) -> None:
        """Do what a superuser could."""
        async with self.database.connection() as connection:
            await connection.execute(statement)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    try:
        return OpensslAuthority(tmp_path_factory.mktemp("authority"))
    except FileNotFoundError:
        pytest.skip("there is no openssl on this machine")


@pytest.fixture
async def anchored_run(database: Database, tmp_path: Path, authority: OpensslAuthority) -> AnchoredRun:
    witness = SpecWitness({ORIGIN: LOG_KEY})
    async with open_store(tmp_path / "spool", database) as running_store:
        copies = tmp_path / "checkpoints"
        await BatchWriter(database, profile=PROFILES.digest).write_batch(
            [tool_exchange(0, run=RUN), tool_exchange(1, run=RUN)]
        )
        # The run is covered by a checkpoint that nobody is asked about, and by later ones.
        assert (await running_store.api.get(f"/v1/runs/{RUN}/verify")).json()["verdict"] == "verified"
        await seal(database, copies, 5)
        with serving(witness.answer) as url, serving(authority.answer) as authority_url:
            anchorer, _ = make_anchorer(database, witness.target(url), timestamp=authority.target(authority_url))
            await anchorer.ask_due()
            assert not anchorer.troubles("default")
        await seal(database, copies, 6)
        bundle = (await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content
    return AnchoredRun(
        database=database, copies=copies, bundle=bundle, witness=witness.verifier_key, roots=authority.roots
    )


async def test_both_vouch_for_a_run_in_the_database_and_in_its_bundle(anchored_run: AnchoredRun) -> None:
    trust = AnchorTrust([anchored_run.witness], anchored_run.roots)
    for found in (
        await anchored_run.verify(trust),
        anchored_run.verify_bundle(anchored_run.witness, roots=anchored_run.roots),
    ):
        assert (found.verdict, found.findings) == ("verified", [])
        states = {one.kind: one for one in found.seals[0].anchors}
        assert all(one.is_checked and one.at for one in states.values())
        assert states["witness"].at == WITNESS_TIME * 10**9
        assert states.keys() == {"witness", "timestamp"}


async def test_without_keys_they_are_shown_and_not_checked(anchored_run: AnchoredRun) -> None:
    for found in (await anchored_run.verify(AnchorTrust()), anchored_run.verify_bundle()):
        assert found.verdict == "verified"
        assert [(one.kind, one.is_checked) for one in found.seals[0].anchors] in (
            [("witness", False), ("timestamp", False)],
            [("timestamp", False), ("witness", False)],
        )


def test_a_witness_or_root_that_is_required_must_have_signed(
    anchored_run: AnchoredRun, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = VerifierKey(anchored_run.witness.name, LOG_KEY.public_key, "witness")
    found = anchored_run.verify_bundle(other)
    assert [(one.change, one.detail) for one in found.findings] == [
        ("unsigned", f"the witness {other.name} has not signed it")
    ]
    roots = OpensslAuthority(tmp_path_factory.mktemp("other")).roots
    found = anchored_run.verify_bundle(roots=roots)
    assert [one.detail for one in found.findings] == [
        "its timestamp is invalid: no trusted root vouches for its signature"
    ]


def with_chain(bundle: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The bundle with its chain changed by somebody who knows the format, and without the store server's signature."""
    lines = bundle.splitlines(keepends=True)
    last = json.loads(lines[-1])
    change(last["proof"]["chains"][0])
    del last["check"], last["signed"]
    return b"".join([*lines[:-1], seal_line(json.dumps(last).encode())])


def test_what_vouches_cannot_be_removed_or_replaced_in_a_bundle(anchored_run: AnchoredRun) -> None:
    def drop_cosignature(chain: dict[str, Any]) -> None:
        chain["checkpoint"] = "".join(chain["checkpoint"].splitlines(keepends=True)[:-1])

    def drop_timestamp(chain: dict[str, Any]) -> None:
        del chain["timestamps"]

    def damage_timestamp(chain: dict[str, Any]) -> None:
        token = bytearray(base64.b64decode(chain["timestamps"][0]))
        token[-5] ^= 1
        chain["timestamps"] = [base64.b64encode(token).decode()]

    for change in (drop_cosignature, drop_timestamp, damage_timestamp):
        bundle = with_chain(anchored_run.bundle, change)
        assert anchored_run.verify_bundle(bundle=bundle).verdict == "verified"
        found = anchored_run.verify_bundle(anchored_run.witness, roots=anchored_run.roots, bundle=bundle)
        assert [one.change for one in found.findings] == ["unsigned"], change


async def test_a_change_of_what_vouches_is_found_in_the_database(anchored_run: AnchoredRun) -> None:
    trust = AnchorTrust([anchored_run.witness], anchored_run.roots)
    for kind in ("witness", "timestamp"):
        column = f"UPDATE anchors SET content = set_byte(content, 60, get_byte(content, 60) # 1) WHERE kind = '{kind}'"
        await anchored_run.execute(column)
        assert (await anchored_run.verify(trust)).verdict == "failed"
        await anchored_run.execute(column)
    assert (await anchored_run.verify(trust)).verdict == "verified"
    await anchored_run.execute("DELETE FROM checkpoints WHERE size = (SELECT max(size) FROM anchors)")
    (finding,) = {one.detail for one in (await anchored_run.verify(trust)).findings if "witness" in one.detail}
    assert "which is missing" in finding


def test_the_command_line_shows_and_requires_them(
    anchored_run: AnchoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setenv("PLAYHEAD_DATA", str(data))
    file, roots = tmp_path / "run.jsonl", tmp_path / "roots.pem"
    file.write_bytes(anchored_run.bundle)
    roots.write_text(anchored_run.roots)
    plain = ("verify", str(file), "--key", str(LOG_KEY))
    strict = (*plain, "--witness", str(anchored_run.witness), "--tsa-root", str(roots))
    outcome = CliRunner().invoke(playhead, list(strict))
    assert outcome.exit_code == 0, outcome.output
    assert f"cosigned by {anchored_run.witness.name}, 2026-11-23T" in outcome.output
    assert "timestamp 20" in outcome.output
    assert "not checked" not in outcome.output
    outcome = CliRunner().invoke(playhead, list(plain))
    assert outcome.output.count("(not checked: give --") == 2
    outcome = CliRunner().invoke(playhead, [*plain, "--witness", str(LOG_KEY)])
    assert (outcome.exit_code, "takes the key of a witness" in outcome.output) == (2, True)
    outcome = CliRunner().invoke(playhead, [*plain, "--tsa-root", str(file)])
    assert isinstance(outcome.exception, Failure)
    assert "is not a PEM file with certificates" in str(outcome.exception)
    assert not data.exists(), "to verify a file leaves nothing behind"


def test_openssl_checks_the_timestamp_of_a_bundle(anchored_run: AnchoredRun, tmp_path: Path) -> None:
    """As docs/proof.md says."""
    chain = json.loads(anchored_run.bundle.splitlines()[-1])["proof"]["chains"][0]
    text, _, signatures = chain["checkpoint"].rpartition("\n\n")
    origin = text.partition("\n")[0]
    own = "".join(line for line in signatures.splitlines(keepends=True) if line.split(" ")[1] == origin)
    (tmp_path / "note").write_text(f"{text}\n\n{own}")
    (tmp_path / "token").write_bytes(base64.b64decode(chain["timestamps"][0]))
    (tmp_path / "roots.pem").write_text(anchored_run.roots)
    command = ("openssl", "ts", "-verify", "-data", "note", "-in", "token", "-CAfile", "roots.pem")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_no_damage_of_a_timestamp_is_an_error_of_ours(anchored_run: AnchoredRun) -> None:
    chain = json.loads(anchored_run.bundle.splitlines()[-1])["proof"]["chains"][0]
    token, roots = base64.b64decode(chain["timestamps"][0]), read_roots(anchored_run.roots)
    for place in range(0, len(token), 3):
        damaged = token[:place] + bytes([token[place] ^ 1 << place % 8]) + token[place + 1 :]
        with contextlib.suppress(InvalidTimestamp):
            stated_time(damaged)
        with pytest.raises(InvalidTimestamp):
            check_timestamp(damaged, b"another note", roots)


async def test_a_run_that_nobody_vouches_for_has_none(database: Database, tmp_path: Path) -> None:
    await seal(database, tmp_path, 1)
    proof = await load_bundle_proof(database, "default", "run-1")
    assert proof is not None
    assert "timestamps" not in proof.end["chains"][0]
