"""What the tests of all packages share."""

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.support.cpu import CpuReport
from tests.support.forks import Forks, forked_workers
from tests.support.postgres import database, database_url, memory_directory, module_database_url, postgres_server
from tests.support.shells import started_playhead, started_programs

__all__ = ["database", "database_url", "module_database_url", "postgres_server"]

# What is slow on a busy machine is not wrong.
settings.register_profile("playhead", deadline=None)
# The same examples each time, and half of Hypothesis's usual number, which takes 40 s of CPU less. The soak looks for others.
settings.register_profile("check", settings.get_profile("playhead"), derandomize=True, max_examples=50)
settings.register_profile("quick", settings.get_profile("check"), max_examples=15)
settings.register_profile("soak", settings.get_profile("playhead"), max_examples=5000)
settings.load_profile("playhead")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", choices=["lane", "mitmproxy"], help="the wire engine of every Playhead that a test starts"
    )
    parser.addoption("--cpu", type=Path, metavar="FILE", help="append what each test module costs to this file")


def pytest_configure(config: pytest.Config) -> None:
    # Tables are as wide as they are, unless a test says how wide its terminal is. The readline that pytest imports tells all
    # children 80, where os.environ does not see it.
    os.environ.pop("COLUMNS", None)
    os.unsetenv("COLUMNS")
    # Where nothing may be written, each worker and each process of a test would compile what it imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Tests that draw at random have generators of their own. To seed the common one three times for each test takes as long as a
    # small test. (As `--randomly-dont-reset-seed`, which pytest refuses where somebody leaves the plugin out.)
    config.option.randomly_reset_seed = False
    sys.dont_write_bytecode = False
    # A store server that is kept ready for the next command would outlive its test.
    os.environ["PLAYHEAD_STORE_IDLE"] = "0"
    # Recorded commands have it as well, so that forks of processes that have imported something may stand for them.
    os.environ["PYTHONHASHSEED"] = "0"
    # A shell starts what runs in its background with Ctrl-C ignored, and all that a test starts would ignore it as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, end_early)
        signal.signal(signal.SIGTERM, end_early)
    if engine := config.getoption("engine"):
        os.environ["PLAYHEAD_ENGINE"] = engine
    is_alone = not config.getoption("numprocesses", 0) or config.option.collectonly
    if (cpu := config.getoption("cpu")) and (hasattr(config, "workerinput") or is_alone):
        config.pluginmanager.register(CpuReport(cpu.absolute()))
    # The collector would take a quarter of the time of the imports and the collection of tests, and look in vain.
    gc.disable()


def end_early(number: int, frame: object) -> None:
    """End as after Ctrl-C, of which a terminal tells the workers as well. `./check` ends the tests after either."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if number == signal.SIGTERM:
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGINT)
    raise KeyboardInterrupt


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Have the workers collect tests that are imported already."""
    if (session.config.getoption("numprocesses", 0) or 0) < 2 or session.config.option.collectonly:
        return (yield)
    call = session.config.invocation_params
    with forked_workers(call.dir, list(map(str, call.args))):
        return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") and session.config.option.durations is None:
        send_only_what_is_shown(session.config.pluginmanager)
    gc.freeze()
    # As often as by default it takes a fifth of the CPU, and frees little: an SDK that a test imports is traversed again and again.
    gc.set_threshold(20_000, 20, 100)
    gc.enable()


def send_only_what_is_shown(plugins: pytest.PytestPluginManager) -> None:
    """Have a worker of xdist leave out what its controller receives and does not show: two thirds of a passed test's events.

    To send and to receive an event takes as long as a fifth of a small test.
    """
    (worker,) = (one for one in plugins.get_plugins() if type(one).__name__ == "WorkerInteractor")
    send_event = worker.sendevent

    def send(name: str, **event: Any) -> None:
        report = event["data"] if name == "testreport" else None
        is_silent = report and report["when"] != "call" and report["outcome"] == "passed" and not report["sections"]
        if name not in {"logstart", "logfinish"} and not is_silent:
            send_event(name, **event)

    worker.sendevent = send


QUICK: Final = (
    "bench",
    "calls",
    "replay",
    "proxy/lane",
    "proxy/mitm",
    "proxy/recording",
    "proxy/terminal",
    "proxy/trust",
    "proxy/wire",
)
"""Folders of tests that start no processes; all others are slow as a whole, but for the layout's."""

JUDGES: Final = (
    "calls/test_cloud_sdks.py",
    "calls/test_mcp.py",
    "calls/test_openai_sdks.py",
    "calls/test_sdk_fields.py",
    "calls/test_sdks.py",
    "replay/reframing/test_cloud.py",
    "replay/reframing/test_openai.py",
    "replay/test_sdks.py",
)
"""Modules of these folders in which official SDKs judge: to import one takes each worker seconds."""

TESTS: Final = Path(__file__).parent

TOGETHER: Final = (TESTS / "frameworks", TESTS / "peers")
"""Folders whose modules share what takes long to start: a worker runs all tests of one, one after another."""

LONG: Final = 120
"""The usual time limit of a test, in seconds. Tests with a longer one are started first."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what `./check --quick` leaves out as a whole."""
    if config.option.markexpr != "not slow" or not collection_path.is_relative_to(TESTS):
        return None
    place = collection_path.relative_to(TESTS).as_posix()
    if place in JUDGES:
        return True
    is_needed = place.startswith((*QUICK, "test_layout")) or any(folder.startswith(f"{place}/") for folder in QUICK)
    return None if is_needed or place == "." else True


FORKS: Final = Forks()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Start Playhead's processes as forks, unless the test asks for interpreters of their own."""
    if item.get_closest_marker("own_interpreter"):
        return (yield)
    with FORKS.in_use():
        return (yield)


@pytest.fixture(scope="session")
def forks() -> Forks:
    """What starts Playhead's processes as forks; not in use for tests that ask for interpreters of their own."""
    return FORKS


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """What to put first on the PATH of a shell, so that it starts `playhead` and agents in Python as forks as well."""
    with started_programs(FORKS) as place:
        yield place


@pytest.fixture(scope="session")
def python(programs: Path) -> str:
    """What runs an agent's file in an interpreter that has imported `urllib.request` and SDKs: a fork of such a one."""
    return str(programs / "python")


@pytest.fixture(scope="session")
def forking_playhead() -> Iterator[Path]:
    """A `playhead` for programs that are not Playhead's: what it starts is a fork in their namespaces."""
    with started_playhead(FORKS) as program:
        yield program


def pytest_unconfigure() -> None:
    FORKS.close()


def is_in_quick_folder(path: Path) -> bool:
    place = path.relative_to(TESTS).as_posix()
    return place.startswith((*QUICK, "test_layout")) and place not in JUDGES


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what `./check --quick` leaves out: whole folders, and whatever needs a Postgres. Start with the longest tests."""
    is_quick = {path: is_in_quick_folder(path) for path in {item.path for item in items}}
    for item in items:
        if not is_quick[item.path] or "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    yield
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = order_for_workers(items, workers)


def order_for_workers(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Put the modules with the longest tests at the beginnings of what each worker starts with, in turns.

    Else one of them may be the last test, for which all other workers wait. xdist's `worksteal` gives each worker an equal
    part of the list. Modules in which official SDKs judge go to one worker, so that each SDK is imported once, and so do those of
    a folder of TOGETHER; the tests of the page go to another, which starts a browser and a store server with runs for them.
    """
    longest: dict[Path, list[pytest.Item]] = {}
    judging: list[pytest.Item] = []
    looking: list[pytest.Item] = []
    others: list[pytest.Item] = []
    judges = {TESTS / name for name in JUDGES}
    paths = {item.path for item in items}
    together = {path: folder for folder in TOGETHER for path in paths if path.is_relative_to(folder)}
    for item in items:
        limit = item.get_closest_marker("timeout")
        if item.path in together:
            longest.setdefault(together[item.path], []).append(item)
        elif limit is not None and limit.args[0] > LONG:
            longest.setdefault(item.path, []).append(item)
        elif item.path in judges:
            judging.append(item)
        elif not {"browser", "page_server"}.isdisjoint(getattr(item, "fixturenames", ())):
            looking.append(item)
        else:
            others.append(item)
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    parts[0] += judging
    parts[-1] += looking
    for module in longest.values():
        min(parts, key=len).extend(module)
    for number, part in enumerate(parts):
        free = len(items) * (number + 1) // workers - len(items) * number // workers - len(part)
        part += others[: max(0, free)]
        del others[: max(0, free)]
    return [item for part in parts for item in part] + others


@pytest.fixture(scope="session", autouse=True)
def _spread_directories(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have ext4 make each test's directory in another part of the disk, as it does those of a root directory (chattr(1), T).

    Beside the last tests' directories, each new file has it read all inodes that were in use a moment ago: up to 0.7 ms of CPU.
    """
    if sys.platform != "linux":
        return
    directory = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY)
    flags = bytearray(8)
    with suppress(OSError):
        fcntl.ioctl(directory, FS_IOC_GETFLAGS, flags)
        fcntl.ioctl(
            directory, FS_IOC_SETFLAGS, (int.from_bytes(flags, sys.byteorder) | FS_TOPDIR).to_bytes(8, sys.byteorder)
        )
    os.close(directory)


FS_IOC_GETFLAGS: Final = 0x80086601
FS_IOC_SETFLAGS: Final = 0x40086602
FS_TOPDIR: Final = 0x00020000


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that does not exist yet, where Postgres can reach it also when it drops from root to another user.

    pytest's own `tmp_path` lies under a directory that nobody else may enter.
    """
    with reachable_directory() as place:
        yield place / "d"


@pytest.fixture(scope="module")
def module_data() -> Iterator[Path]:
    """The same, for a service that a whole module shares."""
    with reachable_directory() as place:
        yield place / "d"


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A directory through which other users may pass."""
    # A file system of a disk takes ten times the CPU of memory to make and remove files.
    place = Path(tempfile.mkdtemp(prefix="playhead-test-", dir=memory_directory()))
    if os.geteuid() == 0:
        place.chmod(0o711)
    yield place
    shutil.rmtree(place, ignore_errors=True)
