"""Checkpoints are cosigned by a witness and timestamped, and whatever one of them answers, the record goes on."""

import asyncio
import base64
from pathlib import Path

import pytest

from calls.proof.checkpoint import parse_note
from store.anchors.anchorer import ASK_EVERY, Anchorer
from store.anchors.rows import load_anchors
from store.anchors.targets import AnchorTargets, TimestampTarget, WitnessTarget
from store.anchors.timestamp import check_timestamp, read_roots
from store.anchors.witness import format_request
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter
from store.proof.sealing import Sealer
from tests.store.anchors.servers import WITNESS_TIME, OpensslAuthority, Reply, SpecWitness, serving
from tests.store.running_store import SIGNING_KEYS
from tests.store.samples import tool_exchange
from tests.support.postgres import STORE_SERVER

ORIGIN = SIGNING_KEYS.origin("default")
LOG_KEY = SIGNING_KEYS.verifier_keys("default")[0]


@pytest.fixture
def witness() -> SpecWitness:
    return SpecWitness({ORIGIN: LOG_KEY})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    try:
        return OpensslAuthority(tmp_path_factory.mktemp("authority"))
    except FileNotFoundError:
        pytest.skip("there is no openssl on this machine")


async def seal(database: Database, directory: Path, number: int) -> str:
    """Store something and sign a checkpoint."""
    await BatchWriter(database).write_batch([tool_exchange(number, run=f"run-{number}")])
    note = await Sealer(database, SIGNING_KEYS, directory).seal("default")
    assert note is not None
    return note


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def make_anchorer(
    database: Database, *witnesses: WitnessTarget, timestamp: TimestampTarget | None = None
) -> tuple[Anchorer, Clock]:
    clock = Clock()
    return Anchorer(database, STORE_SERVER, AnchorTargets(witnesses=witnesses, timestamp=timestamp), clock), clock


async def anchors(database: Database, size: int) -> list[tuple[str, str, int]]:
    """What is stored about the checkpoint of a size."""
    async with database.connection() as connection:
        found = await load_anchors(connection, "default", STORE_SERVER, size)
    return [(one.kind, one.by, one.at) for one in found]


def problem(anchorer: Anchorer) -> str:
    """The one thing that prevents a cosignature."""
    (trouble,) = anchorer.troubles("default").values()
    return trouble.message


async def test_a_witness_signs_each_checkpoint_and_is_shown_that_the_tree_continues(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    with serving(witness.answer) as url:
        anchorer, clock = make_anchorer(database, witness.target(url))
        for size in range(1, 6):
            await seal(database, tmp_path, size)
            await anchorer.ask_due()
            assert await anchors(database, size) == [("witness", witness.name, WITNESS_TIME * 10**9)]
            # Nothing is asked twice, and a source not more often than it may be asked.
            await anchorer.ask_due()
            clock.time += ASK_EVERY
    assert [request.partition(b"\n")[0] for request in witness.requests] == [b"old %d" % known for known in range(5)]


async def test_checkpoints_in_between_are_covered_by_the_newest(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    with serving(witness.answer) as url:
        anchorer, clock = make_anchorer(database, witness.target(url))
        await seal(database, tmp_path, 1)
        await anchorer.ask_due()
        for number in (2, 3, 4):
            await seal(database, tmp_path, number)
            await anchorer.ask_due()
        assert len(witness.requests) == 1
        clock.time += ASK_EVERY
        await anchorer.ask_due()
    assert [bool(await anchors(database, size)) for size in range(1, 5)] == [True, False, False, True]


async def test_a_witness_that_was_shown_more_is_asked_again_from_what_it_knows(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    """As after the answer was lost, or by a new database of witnesses."""
    with serving(witness.answer) as url:
        anchorer, clock = make_anchorer(database, witness.target(url))
        await seal(database, tmp_path, 1)
        await anchorer.ask_due()
        async with database.connection() as connection:
            await connection.execute("DELETE FROM anchors")
        await seal(database, tmp_path, 2)
        clock.time += ASK_EVERY
        await anchorer.ask_due()
        assert [request.partition(b"\n")[0] for request in witness.requests] == [b"old 0", b"old 0", b"old 1"]
        assert await anchors(database, 2)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(200, b"\xff\x00 garbage"), "not a line of a signature"),
        (Reply(200, b""), "not a line of a signature"),
        (Reply(200, b"<html>a proxy's error</html>\n"), "not a line of a signature"),
        (Reply(200, b"x" * 100_000), "answers with more than"),
        (Reply(404), "does not know the log"),
        (Reply(403), "does not trust the key of this log"),
        (Reply(409, b"5\n", "text/x.tlog.size"), "was set back to an earlier state, or somebody else signs"),
        (Reply(409, b"0\n", "text/x.tlog.size"), "that this one does not continue"),
        (Reply(409, b"many\n", "text/x.tlog.size"), "409 without the size that it knows"),
        (Reply(409, b"5\n"), "409 without the size that it knows"),
        (Reply(422), "that this one does not continue"),
        (Reply(500, b"x"), "answers 500; it is asked again"),
    ],
)
async def test_each_wrong_answer_of_a_witness_is_one_clear_sentence(
    database: Database, tmp_path: Path, witness: SpecWitness, reply: Reply, expected: str
) -> None:
    with serving(lambda *_: reply) as url:
        anchorer, clock = make_anchorer(database, witness.target(url))
        await seal(database, tmp_path, 1)
        await anchorer.ask_due()
        assert expected in problem(anchorer)
        assert "\n" not in problem(anchorer)
        assert await anchors(database, 1) == []
    # And it is over once the witness answers.
    clock.time += 10
    with serving(witness.answer) as url:
        anchorer, _ = make_anchorer(database, witness.target(url))
        await anchorer.ask_due()
    assert not anchorer.troubles("default")


async def test_another_key_than_the_one_in_the_settings_is_found_out(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    other = SpecWitness({ORIGIN: LOG_KEY}, key=SIGNING_KEYS.keys[0])
    with serving(other.answer) as url:
        anchorer, _ = make_anchorer(database, witness.target(url))
        await seal(database, tmp_path, 1)
        await anchorer.ask_due()
    assert "has signed with another key" in problem(anchorer)


async def test_a_witness_that_is_down_is_asked_again_after_growing_pauses(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    with serving(witness.answer) as url:
        pass
    anchorer, clock = make_anchorer(database, witness.target(url))
    await seal(database, tmp_path, 1)
    for pause in (2.0, 4.0, 8.0):
        await anchorer.ask_due()
        assert "does not answer" in problem(anchorer)
        turn = anchorer._sources[0].turns["default"]
        assert turn.at - clock.time == pause
        clock.time += pause


async def test_a_database_that_was_set_back_contradicts_its_witness(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    """The owner of the key restores an older state, without the file in the data directory, and goes on."""
    with serving(witness.answer) as url:
        anchorer, clock = make_anchorer(database, witness.target(url))
        for number in (1, 2, 3):
            await seal(database, tmp_path, number)
        await anchorer.ask_due()
        async with database.connection() as connection:
            for table in ("tree_leaves", "tree_tiles", "checkpoints", "chains", "chain_records", "anchors"):
                await connection.execute(f"DELETE FROM {table}")
        other = tmp_path / "other"
        await seal(database, other, 9)
        clock.time += ASK_EVERY
        await anchorer.ask_due()
        assert "has signed 3 leaves" in problem(anchorer)
        for number in (10, 11, 12):
            await seal(database, other, number)
        clock.time += 100
        await anchorer.ask_due()
        assert "that this one does not continue" in problem(anchorer)
        assert all(one.is_contradiction for one in anchorer.troubles("default").values())


async def test_an_authority_states_the_time_of_a_checkpoint(
    database: Database, tmp_path: Path, authority: OpensslAuthority
) -> None:
    with serving(authority.answer) as url:
        anchorer, _ = make_anchorer(database, timestamp=authority.target(url))
        note = await seal(database, tmp_path, 1)
        await anchorer.ask_due()
    assert not anchorer.troubles("default")
    async with database.connection() as connection:
        (anchor,) = await load_anchors(connection, "default", STORE_SERVER, 1)
    assert check_timestamp(anchor.content, note.encode(), read_roots(authority.roots)) == anchor.at


async def test_each_wrong_answer_of_an_authority_is_one_clear_sentence(
    database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, authority: OpensslAuthority
) -> None:
    other = OpensslAuthority(tmp_path_factory.mktemp("other"))
    earlier = b""

    def repeat(path: str, body: bytes) -> Reply:
        nonlocal earlier
        earlier = earlier or authority.answer(path, body).content
        return Reply(200, earlier)

    def refuse(path: str, _body: bytes) -> Reply:
        return authority.answer(path, b"no query")

    cases = [
        (lambda *_: Reply(200, b"garbage"), "not a response of RFC 3161"),
        (lambda *_: Reply(503), "answers 503"),
        (other.answer, "no trusted root vouches for its signature"),
        (refuse, "was refused"),
    ]
    await seal(database, tmp_path, 1)
    for answer, expected in cases:
        with serving(answer) as url:
            anchorer, _ = make_anchorer(database, timestamp=authority.target(url))
            await anchorer.ask_due()
            assert expected in problem(anchorer)
    with serving(repeat) as url:
        anchorer, clock = make_anchorer(database, timestamp=authority.target(url))
        await anchorer.ask_due()
        assert not anchorer.troubles("default")
        await seal(database, tmp_path, 2)
        clock.time += ASK_EVERY
        await anchorer.ask_due()
        assert "it answers another request" in problem(anchorer)


async def test_a_silent_witness_does_not_delay_the_end_of_a_store_server(
    database: Database, tmp_path: Path, witness: SpecWitness
) -> None:
    finished = asyncio.Event()

    async def stay_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not until the client closes: one that is cancelled while it connects may leave its socket to the garbage collector.
        await finished.wait()
        writer.close()

    server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        anchorer, _ = make_anchorer(database, witness.target(f"http://127.0.0.1:{port}"))
        await seal(database, tmp_path, 1)
        async with asyncio.timeout(60):
            await anchorer.finish(0.1)
        finished.set()
    assert await anchors(database, 1) == []


def test_the_request_is_that_of_the_specification() -> None:
    """The example of https://c2sp.org/tlog-witness."""
    hashes = [
        "PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=",
        "jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=",
        "5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=",
        "/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=",
    ]
    note = (
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        "\u2014 example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
        "\u2014 example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=\n"
    )
    expected = "old 20852014\n" + "".join(f"{each}\n" for each in hashes) + "\n" + note
    path = [base64.b64decode(each) for each in hashes]
    assert format_request(20852014, path, note) == expected.encode()
    assert parse_note(note).own_note == note
