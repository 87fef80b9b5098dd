"""`playhead calibrate` and `playhead rekey` as a person types them."""

import asyncio
import json
import os
import pty
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calls.model import Exchange
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from tests.calls.comparison.test_calibrate import agent, exchange
from tests.calls.sample_requests import TICKETS, json_request
from tests.support.h1 import Message, origin
from tests.support.service import command, running


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    code: int
    out: str
    err: str


async def run_playhead(place: Path, *words: str | Path, stdin: int | None = asyncio.subprocess.DEVNULL) -> EndedCommand:
    process = await asyncio.create_subprocess_exec(
        *command(*map(str, words)),
        cwd=place,
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return EndedCommand(code=process.returncode or 0, out=out.decode(), err=err.decode())


def bundle(place: Path, run: str, exchanges: Sequence[Exchange]) -> Path:
    entries = tuple(Entry(exchange=one) for one in exchanges)
    file = place / f"{run}.jsonl"
    file.write_bytes(b"".join(bundle_lines(Bundle(run={"id": run}, profiles=load_profiles().digest, entries=entries))))
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with two recordings of the same work, and a configuration that says something already."""
    bundle(tmp_path, "a", agent(1))
    bundle(tmp_path, "b", agent(2))
    (tmp_path / "playhead.toml").write_text("# Ours.\n[tunnel]\nhosts = ['pinned.example.com'] # never\n")
    return tmp_path


async def test_two_bundles_are_compared_and_nothing_is_written_unasked(place: Path) -> None:
    before = (place / "playhead.toml").read_text()
    done = await run_playhead(place, "calibrate", "a.jsonl", "b.jsonl")
    assert done.code == 0, "with these rules all agree"
    assert "6 pairs of the same work: 0 with one key, 6 apart" in done.out
    assert "With these rules: 6 and 6 calls, 6 pairs of the same work: 6 with one key, 0 apart" in done.out
    assert "$.gateway_trace" in done.out
    assert "looks like a uuid" in done.out
    assert "run it again with --write" in done.err
    assert (place / "playhead.toml").read_text() == before


async def test_with_consent_the_rules_are_written_and_the_recordings_agree(place: Path) -> None:
    before = (place / "playhead.toml").read_text()
    done = await run_playhead(place, "calibrate", "a.jsonl", "b.jsonl", "--write", "--json")
    report = json.loads(done.out)
    assert (report["before"]["agree"], report["after"]["agree"], report["written"]) == (0, 6, "playhead.toml")
    after = (place / "playhead.toml").read_text()
    assert after.startswith(before)
    assert after.endswith(report["proposed"])
    again = json.loads((await run_playhead(place, "calibrate", "a.jsonl", "b.jsonl", "--json")).out)
    assert (again["before"]["agree"], again["fields"], again["proposed"], again["written"]) == (6, [], None, None)


@pytest.mark.parametrize(("said", "profiles"), [(b"y\n", 2), (b"n\n", 0), (b"\n", 0)])
async def test_at_a_terminal_the_person_is_asked(place: Path, said: bytes, profiles: int) -> None:
    person, terminal = pty.openpty()
    try:
        os.write(person, said)
        done = await run_playhead(place, "calibrate", "a.jsonl", "b.jsonl", stdin=terminal)
    finally:
        os.close(person)
        os.close(terminal)
    assert "Add this to playhead.toml? [y/N]" in done.err
    assert len(tomllib.loads((place / "playhead.toml").read_text()).get("profile", [])) == profiles


async def test_recordings_that_stay_apart_are_exit_code_1(place: Path) -> None:
    bundle(place, "c", [exchange(json_request(TICKETS, {"q": "What is the weather?"}))])
    bundle(place, "d", [exchange(json_request(TICKETS, {"q": "What is the time?"}))])
    done = await run_playhead(place, "calibrate", "c.jsonl", "d.jsonl")
    assert done.code == 1
    assert "nothing suggests that it does not matter" in done.out


async def test_a_bundle_that_is_not_there_is_named(place: Path) -> None:
    done = await run_playhead(place, "calibrate", "a.jsonl", "missing.jsonl")
    assert done.code == 125
    assert "there is no bundle missing.jsonl" in done.err


RULES = """
[[profile]]
name = "tickets/1"
extends = "rest/1"
match = { host = "tickets.example.com" }
transient = ["$.ref"]
"""


@pytest.mark.slow
async def test_runs_are_compared_with_bundles_and_stored_calls_are_keyed_again(
    data: Path, tmp_path: Path, database_url: str
) -> None:
    answers: list[Any] = [{"found": 1}, {"found": 2}]
    file = bundle(
        tmp_path,
        "a",
        [exchange(json_request(TICKETS, {"q": 1, "ref": n}), report, n) for n, report in enumerate(answers)],
    )
    async with running(data, "--database-url", database_url):
        assert (await run_playhead(tmp_path, "import", file, "--data", data)).code == 0
        compared = await run_playhead(tmp_path, "calibrate", "a", file, "--data", data)
        assert "2 pairs of the same work: 2 with one key, 0 apart" in compared.out
        config = tmp_path / "other.toml"
        config.write_text(RULES)
        refused = await run_playhead(tmp_path, "rekey", "a", "--data", data, "--config", config)
        assert refused.code == 125
        assert "restart `playhead up`" in refused.err
    with_rules = ("--data", str(data), "--config", str(data.with_suffix(".toml")))
    async with running(data, "--database-url", database_url, config=RULES):
        dry = await run_playhead(tmp_path, "rekey", "--all", "--dry-run", *with_rules)
        assert dry.code == 1, "they would collide"
        assert "run a: steps 1, 2 had keys of their own and now share one, with 2 different answers" in dry.out
        assert "2 calls in 1 run: 2 would have another key, 0 the same" in dry.out
        report = json.loads((await run_playhead(tmp_path, "rekey", "last", "--json", *with_rules)).out)
        assert (report["changed"], report["collide"], report["items"][0]["run"]) == (2, 1, "a")
        again = await run_playhead(tmp_path, "rekey", "a", *with_rules)
        assert (again.code, again.out.strip()) == (0, "2 calls in 1 run: 0 have another key, 2 the same")


@pytest.mark.parametrize("words", [("rekey",), ("rekey", "--all", "a")])
async def test_what_is_to_be_keyed_again_must_be_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = await run_playhead(tmp_path, *words)
    assert done.code == 2
    assert "name runs, or give --all alone." in done.err


AGENT = """
import json, urllib.request, uuid
for question in ("a", "b"):
    asked = json.dumps({"q": question, "ref": str(uuid.uuid4())}).encode()
    head = {"content-type": "application/json"}
    request = urllib.request.Request("https://tickets.example.com/v2/search", asked, head)
    print(urllib.request.urlopen(request).read().decode())
"""


@pytest.mark.slow
async def test_an_agent_that_makes_up_ids_is_replayed_after_its_recordings_were_compared(
    data: Path, tmp_path: Path, database_url: str, python: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    config = tmp_path / "playhead.toml"
    running_store = ("--data", str(data), "--database-url", database_url)
    agent = ("--", python, "agent.py")

    def answer(asked: Message) -> Message:
        body = json.dumps({"found": json.loads(asked.body)["q"] * 3}).encode()
        return Message(status=200, headers=(("content-type", "application/json"),), body=body)

    async with origin(answer) as url:
        config.write_text(f'[upstreams]\n"tickets.example.com" = "{url}"  # a stand-in\n')
        for run in ("one", "two"):
            done = await run_playhead(tmp_path, "record", *running_store, "--run", run, *agent)
            assert (done.code, done.out) == (0, '{"found": "aaa"}\n{"found": "bbb"}\n'), done.err
    missed = await run_playhead(tmp_path, "replay", *running_store, "one", *agent)
    assert missed.code != 0
    compared = await run_playhead(tmp_path, "calibrate", *running_store, "one", "two", "--write")
    assert compared.code == 0, compared.out + compared.err
    assert "# a stand-in" in config.read_text()
    right = await run_playhead(tmp_path, "replay", *running_store, "one", *agent)
    assert (right.code, right.out) == (0, '{"found": "aaa"}\n{"found": "bbb"}\n'), right.err
