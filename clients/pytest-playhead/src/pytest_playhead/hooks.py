"""The plugin as pytest sees it: options, marker, fixtures, and what is done around each test."""

from __future__ import annotations

import inspect
import os
import sys
from importlib.util import find_spec
from shlex import quote
from typing import TYPE_CHECKING, Any

import pytest

from playhead import Run
from playhead.binding import answer_from_test
from pytest_playhead.beside import BesideFailed
from pytest_playhead.isolation import (
    ISOLATIONS,
    captive_interpreter,
    failure_from_before,
    inherited_socket,
    reason_not_to_start_again,
    start_again,
)
from pytest_playhead.suite import COMMAND, RECORD_MODES, Suite, Test, WrongMark

if TYPE_CHECKING:
    from collections.abc import Generator

SUITE = pytest.StashKey[Suite]()
TEST = pytest.StashKey[Test]()

QUIET = ("_pytest.", "pytest_playhead", "pytest_asyncio", "anyio", "pytest_recording", "pytest_mock")
"""Whose fixtures ask nobody when they clean up."""

MARKER = (
    "playhead(file=None, allow_unused=False, allow_failed=False, allowed_hosts=()): answer what this test asks from its"
    " recording. file: where it lies, from the test's directory; allow_unused: it may ask less than was recorded;"
    " allow_failed: it is about an answer such as 429 or 500; allowed_hosts: who may be asked for real."
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Options with the names and meanings that users of VCR and pytest-recording know."""
    group = parser.getgroup("playhead", "recordings of what tests ask (Playhead)")
    parser.addini("playhead", "set the proxy before anything is imported (true or false)", type="bool", default=False)
    parser.addini("playhead_record_mode", "what --record-mode is where it is not given", default="none")
    parser.addini("playhead_block_network", "as --block-network", type="bool", default=False)
    parser.addini("playhead_isolation", "what --isolation is where it is not given", default="auto")
    parser.addini("playhead_allowed_hosts", "as --allowed-hosts", type="args", default=[])
    group.addoption(
        "--playhead-command", metavar="CMD", help="How Playhead is started. Default: PLAYHEAD_COMMAND, or playhead."
    )
    group.addoption(
        "--isolation",
        choices=ISOLATIONS,
        default=None,
        help="With --block-network: run pytest in a network of its own, from which nothing leaves. auto: where the system"
        " allows it (default). require: or fail. off: only refuse what Python opens in this process.",
    )
    if find_spec("pytest_recording") and not pluginmanager.is_blocked("recording"):
        # It has options of these names already, and they mean the same.
        return
    group.addoption(
        "--record-mode",
        choices=RECORD_MODES,
        default=None,
        help="none: only answer (default). once: record what has no recording. new_episodes: record what is missing."
        " all: record anew, keep the old one if that fails. rewrite: remove the old one first.",
    )
    group.addoption(
        "--block-network", action="store_true", default=None, help="Also unmarked tests may ask only this machine."
    )
    group.addoption(
        "--allowed-hosts", default=None, metavar="HOSTS", help="Who may be asked for real: a.example,*.b.example"
    )
    group.addoption(
        "--disable-recording", action="store_true", default=False, help="Ignore the marks: ask everybody for real."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Where it is asked for, set the proxy before a conftest can make a client."""
    known = early_config.known_args_namespace
    asked = getattr(known, "record_mode", None) or _blocks_network(early_config)
    idle = known.help or known.collectonly or known.version or getattr(known, "disable_recording", False)
    if (asked or early_config.getini("playhead")) and not idle and not _hands_out(early_config):
        suite = _suite(early_config)
        suite.early = True
        _isolate(early_config, suite)
        _started(suite)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let each of xdist's workers on this machine have a network of its own."""
    suite = config.stash[SUITE]
    if suite.block and not suite.off and suite.isolation != "off" and sys.platform == "linux":
        for spec in specs:
            if spec.popen and not spec.python:
                spec.python = captive_interpreter(suite.command, suite.root)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist has no header in which to say that it is not captive."""
    if reason := getattr(node, "workeroutput", {}).get("playhead_not_captive"):
        node.config.stash[SUITE].not_captive = reason


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and what of the options is known only now."""
    config.addinivalue_line("markers", MARKER)
    if SUITE not in config.stash:
        _suite(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say it where the world is about to be asked: in a build nobody sits there to see that it is."""
    suite = config.stash[SUITE]
    if suite.not_captive:
        return f"playhead: {_not_isolated(suite.not_captive)}"
    if suite.cut or suite.off:
        return None
    ci = "CI is set, and " if os.environ.get("CI", "").lower() not in ("", "0", "false") else ""
    return f"playhead: {ci}marked tests may ask for real what is not recorded (--record-mode={suite.mode})"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if SUITE in config.stash:
        config.stash[SUITE].stop()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests are marked: set the proxy before the first one runs."""
    config = session.config
    suite = config.stash[SUITE]
    if suite.not_captive and hasattr(config, "workeroutput"):
        config.workeroutput["playhead_not_captive"] = suite.not_captive
    if config.option.collectonly or _hands_out(config):
        return
    if not suite.off and any(item.get_closest_marker("playhead") for item in session.items):
        _started(suite)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: what is asked now belongs to no test yet. After the marks that skip it: then it needs no recording."""
    suite = item.config.stash[SUITE]
    try:
        test = suite.test(item)
        suite.enter(test)
    except (BesideFailed, WrongMark) as failure:
        raise pytest.fail.Exception(f"playhead: {failure}", pytrace=False) from None
    if test is not None:
        item.stash[TEST] = test
        if suite.cut and not test.path.is_file():
            typed = f"pytest {quote(test.typed)} --record-mode=once"
            pytest.fail(f"playhead: there is no recording {test.shown}\nmake it: {typed}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that passed fails all the same where its replay was not right, or its recording cannot be kept."""
    test = item.stash.get(TEST, None)
    if test is None:
        return (yield)
    suite = item.config.stash[SUITE]
    result = yield
    # What cleans up after a test may still ask.
    right = _asked(suite.standing, test) if _cleans_up(item) else _asked(suite.end, test, passed=True)
    if not right:
        pytest.fail(f"playhead: the test passed, and yet it is not right: {_first(test)}", pytrace=False)
    test.passed = True
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The guard stands until the last fixture is gone."""
    try:
        return (yield)
    finally:
        item.config.stash[SUITE].leave()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Explain a failure where the recording has something to say about it."""
    report = yield
    test = item.stash.get(TEST, None)
    suite = item.config.stash[SUITE]
    if report.failed and report.when != "teardown" and test is not None:
        _look(suite, test)
    words = test.words if test is not None else _refused(suite) if report.failed else ""
    if report.failed and words and (test is not None or suite.block):
        report.sections.append(("playhead", words))
    if test is not None and test.note:
        # An attribute of its own travels from xdist's workers with the report.
        report.playhead = test.note  # type: ignore[attr-defined]
        test.note = ""
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was recorded."""
    reports = [each for group in terminalreporter.stats.values() for each in group]
    notes = [note for each in reports if (note := getattr(each, "playhead", None))]
    suite = terminalreporter.config.stash[SUITE]
    if suite.not_captive and _hands_out(terminalreporter.config):
        notes.append(_not_isolated(suite.not_captive))
    if notes:
        terminalreporter.section("playhead")
        for note in notes:
            terminalreporter.line(note)


@pytest.fixture(autouse=True)
def playhead_recording(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """A marked test's recording is open from here on: after fixtures of wider scopes, before its own."""
    test = request.node.stash.get(TEST, None)
    if test is None:
        yield
        return
    suite = request.config.stash[SUITE]
    _asked(suite.begin, test)
    answer_from_test(suite.calls)
    yield
    answer_from_test(None)
    if not _asked(suite.end, test, passed=test.passed) and test.passed:
        pytest.fail(f"playhead: the test passed, and yet it is not right: {_first(test)}", pytrace=False)


@pytest.fixture
def playhead_run(request: pytest.FixtureRequest, playhead_recording: None) -> Run:  # noqa: ARG001 - what is asked belongs to it
    """What the test has asked so far: `playhead_run.calls.tools == ["search_tickets", "add_note"]`."""
    if request.node.stash.get(TEST, None) is None:
        pytest.fail("playhead_run tells of a test that is marked: @pytest.mark.playhead", pytrace=False)
    return Run(request.node.nodeid, request.config.stash[SUITE].calls)


def _suite(config: pytest.Config) -> Suite:
    known = config.known_args_namespace
    hosts = getattr(known, "allowed_hosts", None)
    suite = Suite(
        mode=getattr(known, "record_mode", None) or config.getini("playhead_record_mode"),
        block=_blocks_network(config),
        allowed=tuple(filter(None, hosts.split(",") if hosts else config.getini("playhead_allowed_hosts"))),
        command=known.playhead_command or os.environ.get("PLAYHEAD_COMMAND") or COMMAND,
        root=config.rootpath,
        here=config.invocation_params.dir,
        off=bool(getattr(known, "disable_recording", False)),
        isolation=known.isolation or config.getini("playhead_isolation"),
    )
    if suite.isolation not in ISOLATIONS:
        raise pytest.UsageError(f"playhead_isolation is {suite.isolation!r}; it is one of {', '.join(ISOLATIONS)}")
    if suite.mode not in RECORD_MODES:
        raise pytest.UsageError(f"playhead_record_mode is {suite.mode!r}; it is one of {', '.join(RECORD_MODES)}")
    config.stash[SUITE] = suite
    return suite


def _blocks_network(config: pytest.Config) -> bool:
    known = config.known_args_namespace
    return bool(getattr(known, "block_network", None) or config.getini("playhead_block_network"))


def _hands_out(config: pytest.Config) -> bool:
    """Whether xdist's workers run the tests, and not this process."""
    known = config.known_args_namespace
    many = getattr(known, "numprocesses", None) or getattr(known, "tx", None)
    return bool(many) and "PYTEST_XDIST_WORKER" not in os.environ


def _isolate(config: pytest.Config, suite: Suite) -> None:
    """Be captive, or know why not. Starts this process again; what it inherits then says that it is the second time."""
    connection, failure = inherited_socket(), failure_from_before()
    try:
        if connection is not None:
            suite.use(connection)
        elif suite.block and suite.isolation != "off":
            suite.not_captive = failure or reason_not_to_start_again(config)
            if suite.not_captive is None:
                start_again(config, suite.command, suite.root)
    except BesideFailed as error:
        raise pytest.UsageError(str(error)) from error
    if suite.not_captive and suite.isolation == "require":
        raise pytest.UsageError(
            f"pytest cannot be isolated here: {suite.not_captive}; --isolation auto runs it all the same"
        )


def _not_isolated(reason: str) -> str:
    return f"not isolated: {reason}. Only what Python opens in this process is refused"


def _refused(suite: Suite) -> str:
    try:
        return "\n\n".join(suite.refused())
    except BesideFailed as failure:
        return str(failure)


def _started(suite: Suite) -> None:
    try:
        suite.start()
    except BesideFailed as failure:
        raise pytest.UsageError(str(failure)) from failure


def _asked(ask: Any, *what: Any, **more: Any) -> Any:
    try:
        return ask(*what, **more)
    except BesideFailed as failure:
        raise pytest.fail.Exception(f"playhead: {failure}", pytrace=False) from None


def _look(suite: Suite, test: Test) -> None:
    """What the replay has to say of a test that failed by itself, or in a fixture."""
    try:
        suite.standing(test)
    except BesideFailed as failure:
        test.words = str(failure)


def _first(test: Test) -> str:
    return test.words.partition("\n")[0].rstrip(":") or "it was interrupted"


def _cleans_up(item: pytest.Item) -> bool:
    """Whether a fixture of this test may still ask when the test is over."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = (each[-1] for each in getattr(info, "name2fixturedefs", {}).values() if each)
    return any(
        each.scope == "function"
        and not str(each.func.__module__).startswith(QUIET)
        and (
            inspect.isgeneratorfunction(each.func)
            or inspect.isasyncgenfunction(each.func)
            or "request" in each.argnames
        )
        for each in definitions
    )
