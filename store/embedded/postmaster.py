"""Keep one postmaster alive as long as somebody uses it.

`store.embedded.postgres` runs this file as a program of its own, with nothing but the standard library. It forks: the parent
waits until the server answers and exits; the child stays and owns the postmaster, so that it reaps it, starts it again
when something kills it, and stops it when the last client has let go of `clients.lock`. Clients hold that lock shared;
the kernel drops it even when they are killed. Should this process be killed itself, the postmaster is told by the
kernel (Linux) and shuts down.
"""

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL = 0.2
START_TIMEOUT = 300.0
"""Long, because recovery after a crash replays the log first."""

STOP_TIMEOUT = 60.0
LONGEST_PAUSE = 5.0
LOG_LIMIT = 16 << 20
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PostmasterJob:
    """What to run, where and as whom."""

    bindir: str
    base: str
    socket_dir: str
    settings: dict[str, str] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    """Arguments of `subprocess.Popen` that drop root's rights; empty for a plain user."""

    def ready(self) -> bool:
        """Whether the server takes connections."""
        if not Path(self.socket_dir, ".s.PGSQL.5432").exists():
            return False
        ask = [f"{self.bindir}/pg_isready", "-q", "-h", self.socket_dir, "-U", "playhead", "-d", "postgres", "-t", "5"]
        return subprocess.run(ask, env=bare_environment(), check=False).returncode == 0

    def command(self) -> list[str]:
        fixed = {"listen_addresses": "", "unix_socket_directories": self.socket_dir, "unix_socket_permissions": "0700"}
        options = [option for name, value in {**fixed, **self.settings}.items() for option in ("-c", f"{name}={value}")]
        return [f"{self.bindir}/postgres", "-D", f"{self.base}/data", *options]


def forget_the_dead(pid_file: Path) -> None:
    """Remove the lock file of a postmaster that was killed and that nobody reaped, as in a container whose init does not.

    Postgres takes a zombie for a living one and would not start. Called with the supervisor's lock, which every process
    of a former postmaster of ours has inherited: whoever still lives was started by somebody else, and stays.
    """
    try:
        pid = pid_file.read_text().split()[0]
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return
    if state == "Z":
        pid_file.unlink()


def bare_environment() -> dict[str, str]:
    """Our environment without the variables by which libpq and the server would listen to the user's own Postgres."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def lock(path: str, how: int) -> int | None:
    """A descriptor that holds the lock on a file, or None when somebody else does."""
    held = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


class Supervisor:
    """The owner of one postmaster."""

    def __init__(self, job: PostmasterJob) -> None:
        self.job = job
        self.told = False
        self.stopping = False
        signal.signal(signal.SIGTERM, self.stop_soon)

    def stop_soon(self, *_: object) -> None:
        self.stopping = True

    def run(self, say: int) -> None:
        """Serve until nobody is left. Writes to `say` once the server answers."""
        own = self.take_over()
        if own is None:
            self.tell(say)
            return
        pause = POLL
        while not self.over():
            postmaster = self.start(own)
            if self.came_up(postmaster):
                self.tell(say)
                pause = POLL
                self.watch(postmaster)
            stop(postmaster)
            if not self.told:
                return
            if not self.over():
                # Killed under its clients: its orphans need a moment to let go of the shared memory.
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def take_over(self) -> int | None:
        """The supervisor's lock, once a former postmaster (which inherited it) is gone; None when another one serves."""
        deadline = time.monotonic() + START_TIMEOUT
        while (own := lock(f"{self.job.base}/supervisor.lock", fcntl.LOCK_EX)) is None:
            if self.job.ready():
                return None
            if time.monotonic() > deadline:
                raise TimeoutError("the former postmaster does not go away")
            time.sleep(POLL)
        return own

    def start(self, own: int) -> subprocess.Popen[bytes]:
        forget_the_dead(Path(self.job.base, "data", "postmaster.pid"))
        forget_the_dead(Path(self.job.socket_dir, ".s.PGSQL.5432.lock"))
        return subprocess.Popen(
            self.job.command(),
            cwd="/",
            env=bare_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[own],
            preexec_fn=die_with(os.getpid()),
            **self.job.identity,
        )

    def came_up(self, postmaster: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_TIMEOUT
        while postmaster.poll() is None and time.monotonic() < deadline and not self.stopping:
            if self.job.ready():
                return True
            time.sleep(0.02)
        return False

    def watch(self, postmaster: subprocess.Popen[bytes]) -> None:
        """Return when the postmaster has ended or should."""
        while postmaster.poll() is None and not self.over():
            time.sleep(POLL)

    def over(self) -> bool:
        """Whether to stop. Once no client was seen the lock stays ours: who comes now waits until we are gone."""
        if not self.stopping:
            self.stopping = lock(f"{self.job.base}/clients.lock", fcntl.LOCK_EX) is not None
        return self.stopping

    def tell(self, say: int) -> None:
        if not self.told:
            self.told = True
            os.write(say, b"ready")
            os.close(say)


def die_with(parent: int) -> Any:
    """Ask the kernel to shut the postmaster down, fast and clean, should its supervisor be killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def stop(postmaster: subprocess.Popen[bytes]) -> None:
    """Shut down with a checkpoint; harder if that takes for ever. One that has ended already is only reaped."""
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        postmaster.send_signal(how)
        try:
            postmaster.wait(STOP_TIMEOUT)
            return
        except subprocess.TimeoutExpired:
            continue


def open_log(path: Path) -> int:
    """The log, begun afresh when it has grown large; the one before is kept."""
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.rename(path.with_suffix(".log.old"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(job: PostmasterJob) -> int:
    heard, say = os.pipe()
    if os.fork():
        os.close(say)
        # Ends without a word when the child dies first.
        with os.fdopen(heard, "rb") as pipe:
            return 0 if pipe.read() == b"ready" else 1
    os.close(heard)
    log = open_log(Path(job.base, "postgres.log"))
    for stream in (1, 2):
        os.dup2(log, stream)
    Supervisor(job).run(say)
    return 0


if __name__ == "__main__":
    sys.exit(main(PostmasterJob(**json.loads(sys.argv[1]))))
