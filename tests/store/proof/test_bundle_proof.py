"""A bundle proves by itself that it is as it was recorded, and whoever changes it is found out, also if he knows the format."""

import copy
import hashlib
import json
import random
import re
import subprocess
import sys
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import playhead
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from calls.events import Gap
from store.bundle.bundle import BundleWriter, Entry, read_bundle
from store.bundle.sealed_lines import seal_line
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof import bundle_proof
from store.proof.bundle_proof import NoProof, verify_bundle
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys
from store.proof.verdict import Verification
from store.query.runs import Runs
from tests.store.exchanges import effect_batch, exchange
from tests.store.running_store import PROFILES, SIGNING_KEYS, open_store
from tests.store.samples import NOON, SECOND, tool_exchange
from tests.store.test_trace_format import validator
from tests.support.postgres import STORE_SERVER

KEYS = SIGNING_KEYS.verifier_keys("default")
RUN = "night-run"
PLAIN = "plain-run"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "proof.md"

type Line = dict[str, Any]


async def record(database: Database, run: str) -> None:
    """Store a small run in two parts."""
    writer = BatchWriter(database, profile=PROFILES.digest)
    await Runs(database).put(run, NOON, "Night run", {"team": "support"})
    first = len(run)
    await writer.write_batch([tool_exchange(first, run=run), tool_exchange(first + 1, run=run)])
    await writer.write_batch([tool_exchange(first + 2, run=run)], [Gap(run, NOON + 9 * SECOND, "the disk was full")])
    await writer.write_batch((), effects=[effect_batch(first, run, NOON), effect_batch(first + 1, run, NOON)])
    await Runs(database).patch(run, ended_at=NOON + 60 * SECOND)


@pytest.fixture
async def bundles(tmp_path: Path, database: Database) -> list[bytes]:
    """The bundles of two runs, that of the first without its proof, and that of a run about which nothing was said."""
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        for run in (RUN, "other"):
            await record(database, run)
        await BatchWriter(database, profile=PROFILES.digest).write_batch([tool_exchange(40, run=PLAIN)])
        names = (f"{RUN}/bundle", "other/bundle", f"{RUN}/bundle?proof=false", f"{PLAIN}/bundle")
        found = [(await running_store.api.get(f"/v1/runs/{name}")).content for name in names]
        assert (await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content == found[0]
        verified = (await running_store.api.get(f"/v1/runs/{RUN}/verify")).json()
        assert (verified["verdict"], verified["proven"]) == ("verified", 6)
        await check_checkpoint(running_store.api)
        return found


async def check_checkpoint(api: Any) -> None:
    """The checkpoint is that of our keys, and is shown to continue an earlier one."""
    newest = (await api.get("/v1/checkpoint?since=1")).json()
    assert (newest["origin"], newest["keys"]) == (SIGNING_KEYS.origin("default"), [str(key) for key in KEYS])
    assert (newest["size"], len(newest["consistency"])) == (3, 2)
    assert (await api.get("/v1/checkpoint?since=99")).status_code == 422


def verify(content: bytes) -> Verification:
    """Verify a bundle with our keys."""
    return verify_bundle(content.splitlines(keepends=True), KEYS)


def seal(lines: Sequence[Line]) -> bytes:
    """Write lines as somebody who knows the format: with the right numbers and digests."""
    written: list[bytes] = []
    for number, line in enumerate(lines, 1):
        members = {name: value for name, value in line.items() if name != "check"}
        if "n" in members:
            members["n"] = number
        if "end" in members:
            members["digest"] = f"sha256:{hashlib.sha256(b''.join(written)).hexdigest()}"
            members["exchanges"] = sum("exchange" in each for each in lines)
            members["gaps"] = sum("gap" in each for each in lines)
            members["effects"] = sum("effects" in each and "n" in each for each in lines)
        for side in ("request", "response"):
            body = (members.get("exchange") or {}).get(side, {}).get("body")
            if body and "text" in body and not {"prefix", "suffix"} & body.keys():
                body["digest"] = f"sha256:{hashlib.sha256(body['text'].encode()).hexdigest()}"
        written.append(seal_line(json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()))
    return b"".join(written)


def parse_lines(content: bytes) -> list[Line]:
    """The lines of a bundle."""
    return [json.loads(line) for line in content.splitlines()]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in a JSON value that is no object or list."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, name))
    else:
        yield path


def with_change(lines: list[Line], path: tuple[Any, ...]) -> list[Line]:
    """The lines with another value at one place."""
    lines = copy.deepcopy(lines)
    *parents, last = path
    holder: Any = lines
    for name in parents:
        holder = holder[name]
    match holder[last]:
        case bool() as old:
            holder[last] = not old
        case int() | float() as old:
            holder[last] = old + 1
        case str() as old if old:
            middle = len(old) // 2
            holder[last] = old[:middle] + ("7" if old[middle] != "7" else "3") + old[middle + 1 :]
        case _:
            holder[last] = "x"
    return lines


async def test_a_bundle_verifies_with_the_key_of_its_store_server_only(bundles: list[bytes]) -> None:
    found = verify(bundles[0])
    assert (found.verdict, found.findings, found.proven) == ("verified", [], 6)
    stranger = SigningKeys(STORE_SERVER, (Ed25519PrivateKey.generate(),)).verifier_keys("default")
    assert {one.change for one in verify_bundle(bundles[0].splitlines(keepends=True), stranger).findings} == {
        "unsigned"
    }
    with pytest.raises(NoProof):
        verify(bundles[2])
    for line in parse_lines(bundles[0]):
        validator("bundle").validate(line)
    shown = [read_bundle(content.splitlines(keepends=True)) for content in (bundles[0], bundles[2])]
    assert shown[0] == shown[1]


async def test_every_changed_byte_value_and_line_of_a_bundle_is_found(bundles: list[bytes]) -> None:
    content, lines = bundles[0], parse_lines(bundles[0])
    assert seal(lines).count(b"\n") == len(lines)
    found = verify(seal(lines))
    assert (found.verdict, found.findings) == ("verified", [])
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert verdict(changed) != "verified", f"byte {at}"
    # Digests that `seal` makes anew are not changed by it.
    made_anew = {"check", "n", "exchanges", "gaps"}
    ends = [(len(lines) - 1, "effects")]
    for path in places(lines):
        if made_anew & set(path) - {"exchange", "gap"} or path[-1] == "digest" or path in ends:
            continue
        assert verdict(seal(with_change(lines, path))) != "verified", path
    for number in range(1, len(lines) - 1):
        assert_change(lines[:number] + lines[number + 1 :], "removed")
        assert verdict(seal([*lines[: number + 1], *lines[number:]])) != "verified"
    assert_change([lines[0], lines[2], lines[1], *lines[3:]], "reordered")
    without_proof = {name: value for name, value in lines[1].items() if name != "proof"}
    assert_change([lines[0], without_proof, *lines[2:]], "removed")


def verdict(content: bytes) -> str:
    """The verdict on a bundle; `no proof` if it has none."""
    try:
        return verify(content).verdict
    except NoProof:
        return "no proof"


def assert_change(lines: list[Line], change: str) -> None:
    """The first finding in these lines is such a change."""
    assert verify(seal(lines)).findings[0].change == change


async def test_a_thousand_reorderings_removals_and_splices_are_found(bundles: list[bytes]) -> None:
    lines, other = parse_lines(bundles[0]), parse_lines(bundles[1])
    inner, foreign = lines[1:-1], other[1:-1]
    chooser = random.Random(6962)
    for number in range(1000):
        mixed = list(inner)
        kind = chooser.choice(["reorder", "remove", "splice", "replace"])
        match kind:
            case "reorder":
                while mixed == inner:
                    chooser.shuffle(mixed)
            case "remove":
                mixed = (
                    [each for each in inner if chooser.random() < 0.5] if number % 2 else inner[: chooser.randrange(3)]
                )
            case "splice":
                mixed.insert(chooser.randrange(len(mixed) + 1), chooser.choice(foreign))
            case _:
                mixed[chooser.randrange(len(mixed))] = chooser.choice(foreign)
        end = lines[-1] if chooser.random() < 0.8 else other[-1]
        if mixed == inner and end is lines[-1]:
            continue
        mixed.sort(key=lambda line: "gap" in line)
        if mixed == inner and end is lines[-1]:
            continue
        assert verdict(seal([lines[0], *mixed, end])) != "verified", (number, kind)


def test_the_program_of_the_page_agrees(bundles: list[bytes], tmp_path: Path) -> None:
    found = re.search(r"```python\n(# verify\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    program = tmp_path / "verify.py"
    program.write_text(found[1])
    (tmp_path / "playhead.key").write_text(f"{KEYS[0]}\n")
    lines = parse_lines(bundles[0])
    text_place = next(
        path for path in places(lines) if path[-1] == "text" and "response" in path and "exchange" in path
    )
    url_place = next(path for path in places(lines) if path[-1] == "url")
    text, url, note = (with_change(lines, path) for path in (text_place, url_place, (0, "run", "started_at")))
    variants = {
        "good": bundles[0],
        "unsigned": seal(without_signature(lines)),
        "text": seal(text),
        "url": seal(url),
        "times": seal(note),
        "removed": seal([lines[0], *lines[2:]]),
        "path": seal(with_change(lines, (len(lines) - 1, "proof", "chains", 0, "path", 0))),
    }
    # Somebody without the key leaves out the signature over what is derived.
    lines = without_signature(lines)
    variants |= {
        "hidden": seal(with_hidden_line(lines, 2)),
        "hidden gap": seal(with_hidden_line(lines, next(at for at, line in enumerate(lines) if "gap" in line))),
        "repeated": seal([*lines[:2], *lines[1:]]),
        "reordered": seal([lines[0], lines[2], lines[1], *lines[3:]]),
        **{f"run {name}": seal(with_run(lines, **{name: "x"})) for name in ("id", "name", "labels", "parent")},
        "captive": seal(with_run(lines, isolation="captive")),
        "plain": bundles[3],
        "plain captive": seal(with_run(without_signature(parse_lines(bundles[3])), isolation="captive")),
        "plain run": seal(with_run(without_signature(parse_lines(bundles[3])), id="other")),
    }
    assert "playhead" not in cast("str", found[1]).replace("playhead.key", "").replace("verifies Playhead", "").lower()
    codes = {}
    for name, content in variants.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content)
        command = [sys.executable, str(program), f"{name}.jsonl", "playhead.key"]
        codes[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode
    assert {name for name, code in codes.items() if code == 0} == {"good", "unsigned", "plain"}
    assert {name for name, content in variants.items() if verdict(content) == "verified"} == {
        "good",
        "unsigned",
        "plain",
    }


def without_signature(lines: list[Line]) -> list[Line]:
    """The lines without the store server's signature over what is derived."""
    return [{name: value for name, value in line.items() if name != "signed"} for line in lines]


def with_run(lines: list[Line], **facts: str) -> list[Line]:
    """The lines with something else said about the run."""
    return [{**lines[0], "run": {**lines[0]["run"], **facts}}, *lines[1:]]


def with_hidden_line(lines: list[Line], at: int) -> list[Line]:
    """The lines without one, whose record is where those of erased exchanges are."""
    lines = copy.deepcopy(lines)
    taken = lines.pop(at)
    proof = taken["proof"]
    kind = next(kind for kind in ("exchange", "gap") if kind in taken)
    record = {name: proof[name] for name in ("place", "head", "request", "response") if name in proof}
    record |= {"kind": kind, "id": proof["id"] if kind == "gap" else taken[kind]["id"]}
    records = lines[-1]["proof"]["chains"][proof["chain"]]["records"]
    records.append(record)
    records.sort(key=lambda each: each["place"])
    return lines


async def test_a_run_about_which_nothing_was_said_cannot_be_given_a_name_or_isolation(bundles: list[bytes]) -> None:
    lines = without_signature(parse_lines(bundles[3]))
    assert verify(seal(lines)).verdict == "verified"
    details = {}
    for name, value in (("id", "other"), ("name", "x"), ("parent", "x"), ("isolation", "captive")):
        (finding,) = verify(seal(with_run(lines, **{name: value}))).findings
        assert (finding.change, finding.element) == ("altered", "run")
        details[name] = finding.detail
    said = "it has a name, labels, a parent or isolation that no record is about"
    assert details == dict.fromkeys(("name", "parent", "isolation"), said) | {
        "id": f"its id is other, and what it has was recorded in {PLAIN}"
    }


async def test_a_bundle_carries_the_envelope_that_the_api_shows_and_its_signature_covers_it(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await record(database, RUN)
        bundle = (await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content
        shown = (await running_store.api.get(f"/v1/runs/{RUN}/envelope")).json()
        plain = (await running_store.api.get(f"/v1/runs/{RUN}/bundle?proof=false")).content
    lines = [json.loads(line) for line in bundle.splitlines()]
    assert {"run": RUN} | lines[-1]["envelope"] == shown
    assert shown["times"]["first"].startswith("20")
    validator("bundle").validate(lines[-1])
    assert "envelope" not in json.loads(plain.splitlines()[-1])
    (tmp_path / "run.jsonl").write_bytes(bundle)
    assert {"run": RUN} | dict(playhead.load(tmp_path / "run.jsonl").envelope()) == shown
    (tmp_path / "plain.jsonl").write_bytes(plain)
    with pytest.raises(playhead.Unknown, match="has no envelope"):
        playhead.load(tmp_path / "plain.jsonl").envelope()
    lines[-1]["envelope"]["steps"] += 1
    (finding,) = verify(seal(lines)).findings
    assert (finding.change, finding.element) == ("altered", "bundle")


async def test_a_run_of_another_store_server_verifies_with_the_keys_of_both(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    others = SigningKeys(uuid.uuid4(), (Ed25519PrivateKey.generate(),))
    other = Database(database_url, others.server)
    await other.prepare()
    try:
        await BatchWriter(other, profile=PROFILES.digest).write_batch([tool_exchange(0, run=RUN)])
        await Sealer(other, others, tmp_path / "others").seal("default")
    finally:
        await other.close()
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await record(database, "own")
        content = (await running_store.api.get(f"/v1/runs/{RUN}/bundle")).content
        both = [*KEYS, *others.verifier_keys("default")]
        trust = {"run": [RUN, "own"], "key": [str(key) for key in both]}
        answer = await running_store.api.get("/v1/verifications", params=trust)
        assert answer.status_code == 200, answer.text
        found = answer.json()["items"]
        alone = (await running_store.api.get("/v1/verifications", params={"run": [RUN]})).json()["items"]
        tree = (await running_store.api.get("/v1/verify", params={"key": trust["key"]})).json()
        refused = await running_store.api.get("/v1/verifications", params=trust | {"key": ["x"]})
    verified = verify_bundle(content.splitlines(keepends=True), both)
    assert (verified.verdict, verified.findings, verified.is_signed) == ("verified", [], True)
    (finding,) = verify_bundle(content.splitlines(keepends=True), others.verifier_keys("default")).findings
    assert (finding.change, finding.element) == ("unsigned", "bundle")
    assert f"{SIGNING_KEYS.origin('default')} has exported it" in finding.detail
    assert {one["run"]: one["verdict"] for one in found} == {RUN: "verified", "own": "verified"}
    assert tree["verdict"] == "verified"
    assert [(one["verdict"], "give its key" in one["findings"][0]["detail"]) for one in alone] == [("failed", True)]
    assert (refused.status_code, "playhead signing-key" in refused.text) == (422, True)


def test_a_chain_that_nobody_signed_proves_no_erasure_in_a_bundle(bundles: list[bytes]) -> None:
    """Who has no key takes an exchange out, and adds a chain that says that it was erased."""
    lines = [json.loads(line) for line in bundles[0].splitlines()]
    taken = lines.pop(2)
    proof = lines[-1]["proof"]
    record = {name: taken["proof"][name] for name in ("place", "head", "request", "response") if name in taken["proof"]}
    chain = proof["chains"][taken["proof"]["chain"]]
    chain["records"].append(record | {"kind": "exchange", "id": taken["exchange"]["id"]})
    stranger = f"{chain['chain'].partition('/')[0]}/{STORE_SERVER}1"
    erased = {"place": 0, "kind": "erased", "id": taken["exchange"]["id"], "part": "whole", "at": "1", "began": "1"}
    proof["chains"].append({"chain": stranger, "records": [erased]})
    del lines[-1]["signed"]
    found = verify(seal(lines))
    assert (found.verdict, found.is_signed) == ("unproven", False)


async def test_readiness_says_that_nothing_new_is_proven_and_names_no_project(
    tmp_path: Path, database: Database
) -> None:
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        await record(database, RUN)
        await running_store.api.get("/v1/verify")
        assert "proof" not in (await running_store.api.get("/readyz")).json()
        async with database.connection() as connection:
            await connection.execute("UPDATE tree_tiles SET hashes = $1", bytes(32))
        await record(database, "other")
        await running_store.api.get("/v1/verify")
        answer = await running_store.api.get("/readyz")
        gauges = (await running_store.api.get("/metrics")).text
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.json()["proof"].startswith("nothing new is proven in 1 project: ")
    assert "default" not in answer.text
    assert "playhead_store_unsigned_projects 1\n" in gauges


def test_a_bundle_may_be_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an exchange, its commitments are kept; requests to which later lines refer go into a file."""
    monkeypatch.setattr(bundle_proof, "REQUESTS_IN_MEMORY", 1 << 20)
    size, count = 500_000, 40

    def long_lines() -> Iterator[bytes]:
        writer = BundleWriter()
        yield writer.head({"id": RUN}, PROFILES.digest)
        for number in range(count):
            question, answer = (f"{word} {number} ".encode() * (size // 10) for word in ("ask", "say"))
            yield writer.exchange(Entry(exchange=exchange(question, answer, n=number), call=None))
        yield writer.end()

    tracemalloc.start()
    try:
        with pytest.raises(NoProof):
            verify_bundle(long_lines(), KEYS)
        assert tracemalloc.get_traced_memory()[1] < count * size / 2
    finally:
        tracemalloc.stop()
