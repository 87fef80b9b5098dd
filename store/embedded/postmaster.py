"""Supervise one postmaster as long as it has clients.

`store.embedded.postgres` runs this file as a program of its own, with nothing but the standard library. It forks: the parent
waits until the server answers and exits; the child is the parent process of the postmaster, restarts it if it is killed, and
stops it when the last client has released `clients.lock`. Clients hold that lock shared, and the kernel releases it even if
they are killed. If the supervisor is killed, the kernel signals the postmaster to shut down (Linux).
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_INTERVAL = 0.2
START_TIMEOUT = 300.0
"""Seconds that starting may take; long, because recovery after a crash replays the log first."""

STOP_TIMEOUT = 60.0
MAX_RESTART_PAUSE = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)
STOP_NOW = (signal.SIGQUIT, signal.SIGKILL)
MAX_LOG_SIZE = 16 << 20
PR_SET_PDEATHSIG = 1
LOCK_FILE_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmasterJob:
    """The programs and directories of a postmaster, its settings and its account."""

    bindir: str
    base: str
    socket_dir: str
    settings: dict[str, str] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    """Arguments of `subprocess.Popen` that drop root's privileges; empty for a plain user."""

    def is_ready(self) -> bool:
        """Whether the server accepts connections."""
        if not Path(self.socket_dir, ".s.PGSQL.5432").exists():
            return False
        command = [
            f"{self.bindir}/pg_isready",
            "-q",
            "-h",
            self.socket_dir,
            "-U",
            "playhead",
            "-d",
            "postgres",
            "-t",
            "5",
        ]
        return subprocess.run(command, env=bare_environment(), check=False).returncode == 0

    def command(self) -> list[str]:
        fixed = {"listen_addresses": "", "unix_socket_directories": self.socket_dir, "unix_socket_permissions": "0700"}
        options = [option for name, value in {**fixed, **self.settings}.items() for option in ("-c", f"{name}={value}")]
        return [f"{self.bindir}/postgres", "-D", f"{self.base}/data", *options]


def remove_zombie_lock(pid_file: Path) -> None:
    """Remove the lock file of a killed postmaster that was not reaped, as in a container whose init does not reap.

    Postgres takes a zombie for a running server and would not start. Call this while holding the supervisor's lock, which all
    processes of a former postmaster inherit: so a process that still runs was not started by a supervisor, and is left alone.
    """
    try:
        pid = pid_file.read_text().split()[0]
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return
    if state == "Z":
        pid_file.unlink()


def says_ready(lock_file: Path, pid: int) -> bool:
    """Whether the postmaster with this number accepts connections, by the last line of its lock file (since PostgreSQL 10)."""
    try:
        lines = lock_file.read_text().splitlines()
    except OSError:
        return False
    return len(lines) == LOCK_FILE_LINES and lines[0] == str(pid) and lines[-1].strip() == "ready"


def bare_environment() -> dict[str, str]:
    """The variables of the environment that Postgres's programs need.

    Of the others, some would make libpq and the server use the user's own Postgres. And some are keys: where root starts
    the server, it runs as another account, whose processes can read the environment of one another.
    """
    return {name: value for name, value in os.environ.items() if _POSTGRES_VARIABLE.fullmatch(name)}


_POSTGRES_VARIABLE = re.compile(r"PATH|HOME|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TMPDIR|(?:LD|DYLD)_\w+")


def try_lock(path: str, mode: int, *, create: bool = True) -> int | None:
    """Lock a file and return the handle that holds the lock; None if another process holds it."""
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


class Supervisor:
    """The parent process of one postmaster."""

    def __init__(self, job: PostmasterJob) -> None:
        self.job = job
        self.has_reported = False
        self.is_stopping = False
        self.is_removed = False
        """Whether the directory was removed: nothing is written any more."""

        signal.signal(signal.SIGTERM, self.request_stop)

    def request_stop(self, *_: object) -> None:
        self.is_stopping = True

    def run(self, ready_pipe: int) -> None:
        """Keep the server running until it has no clients. Writes to `ready_pipe` once the server answers."""
        lock = self.take_over()
        if lock is None:
            self.report_ready(ready_pipe)
            return
        try:
            self.keep_running(lock, ready_pipe)
        finally:
            if self.job.socket_dir != self.job.base:
                with contextlib.suppress(OSError):
                    os.rmdir(self.job.socket_dir)

    def keep_running(self, lock: int, ready_pipe: int) -> None:
        """Start the server, again whenever it ends, until it should stop."""
        pause = POLL_INTERVAL
        while not self.should_stop():
            postmaster = self.start_postmaster(lock)
            if self.wait_until_ready(postmaster):
                self.report_ready(ready_pipe)
                pause = POLL_INTERVAL
                self.watch(postmaster)
            stop_postmaster(postmaster, how=self.stop_signals())
            if not self.has_reported:
                return
            if not self.should_stop():
                # The postmaster was killed, and its child processes need a moment to release the shared memory.
                time.sleep(pause)
                pause = min(pause * 2, MAX_RESTART_PAUSE)

    def take_over(self) -> int | None:
        """Acquire the supervisor's lock, which a former postmaster has inherited; None if another supervisor runs a server."""
        deadline = time.monotonic() + START_TIMEOUT
        while (lock := try_lock(f"{self.job.base}/supervisor.lock", fcntl.LOCK_EX)) is None:
            if self.job.is_ready():
                return None
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"a Postgres server that was started earlier still runs on {self.job.base} and does not answer: stop it"
                    f" (its process id is the first line of {self.job.base}/data/postmaster.pid)"
                )
            time.sleep(POLL_INTERVAL)
        return lock

    def start_postmaster(self, lock: int) -> subprocess.Popen[bytes]:
        remove_zombie_lock(Path(self.job.base, "data", "postmaster.pid"))
        remove_zombie_lock(Path(self.job.socket_dir, ".s.PGSQL.5432.lock"))
        return subprocess.Popen(
            self.job.command(),
            cwd="/",
            env=bare_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[lock],
            preexec_fn=stop_with_parent(os.getpid()),
            **self.job.identity,
        )

    def wait_until_ready(self, postmaster: subprocess.Popen[bytes]) -> bool:
        """Wait until the server accepts connections.

        It says so in its lock file, where `pg_ctl start` looks as well: to ask it by `pg_isready` takes two processes each time.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while postmaster.poll() is None and time.monotonic() < deadline and not self.is_stopping:
            if says_ready(Path(self.job.base, "data", "postmaster.pid"), postmaster.pid):
                return True
            time.sleep(0.005)
        return False

    def watch(self, postmaster: subprocess.Popen[bytes]) -> None:
        """Wait until the postmaster has ended or should be stopped."""
        while postmaster.poll() is None and not self.should_stop():
            time.sleep(POLL_INTERVAL)

    def should_stop(self) -> bool:
        """Whether to stop. If no client is left, the clients' lock is kept, so that new clients wait until this has ended."""
        if not self.is_stopping:
            try:
                self.is_stopping = try_lock(f"{self.job.base}/clients.lock", fcntl.LOCK_EX, create=False) is not None
            except FileNotFoundError:
                self.is_stopping = self.is_removed = True
        return self.is_stopping

    def stop_signals(self) -> Sequence[signal.Signals]:
        """The signals that stop the server.

        While it recovers, there is nothing to write to disk. PostgreSQL 18 that is asked for a fast shutdown while it recovers from
        the death of one of its processes never ends.
        """
        return STOP_NOW if self.is_removed or not self.job.is_ready() else STOP_SIGNALS

    def report_ready(self, ready_pipe: int) -> None:
        if not self.has_reported:
            self.has_reported = True
            os.write(ready_pipe, b"ready")
            os.close(ready_pipe)


def stop_with_parent(parent: int) -> Any:
    """Return a function for the child that has the kernel stop it at once if its supervisor is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def set_death_signal() -> None:
        # Not a fast shutdown, which may never end (`Supervisor.stop_signals`).
        prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


def stop_postmaster(postmaster: subprocess.Popen[bytes], *, how: Sequence[signal.Signals]) -> None:
    """Shut down with a checkpoint, or without if that takes too long. A postmaster that has ended is only reaped."""
    for number in how:
        postmaster.send_signal(number)
        try:
            postmaster.wait(STOP_TIMEOUT)
            return
        except subprocess.TimeoutExpired:
            continue


def open_log(path: Path) -> int:
    """Open the log. If it has grown large, rename it and begin another."""
    if path.exists() and path.stat().st_size > MAX_LOG_SIZE:
        path.rename(path.with_suffix(".log.old"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(job: PostmasterJob) -> int:
    read_end, ready_pipe = os.pipe()
    if os.fork():
        os.close(ready_pipe)
        # The pipe is empty if the child dies before the server answers.
        with os.fdopen(read_end, "rb") as pipe:
            return 0 if pipe.read() == b"ready" else 1
    os.close(read_end)
    log = open_log(Path(job.base, "postgres.log"))
    for stream in (1, 2):
        os.dup2(log, stream)
    Supervisor(job).run(ready_pipe)
    return 0


if __name__ == "__main__":
    sys.exit(main(PostmasterJob(**json.loads(sys.argv[1]))))
