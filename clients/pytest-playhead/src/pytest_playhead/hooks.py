"""Implement pytest's hooks: options, marker, fixtures, and the work around each test."""

from __future__ import annotations

import inspect
import os
import socket
import sys
from importlib.util import find_spec
from shlex import quote
from typing import TYPE_CHECKING, Any

import pytest

from playhead import Run
from playhead.binding import set_test_calls
from playhead.stand_ins import set_answers
from pytest_playhead.fixtures_process import FixturesError
from pytest_playhead.isolation import (
    ISOLATIONS,
    captive_interpreter,
    earlier_failure,
    inherited_socket,
    reason_not_to_restart,
    restart_captive,
)
from pytest_playhead.suite import COMMAND, RECORD_MODES, InvalidMark, MarkedTest, Suite

if TYPE_CHECKING:
    from collections.abc import Generator

SUITE = pytest.StashKey[Suite]()
TEST = pytest.StashKey[MarkedTest]()

MODULES_WITHOUT_REQUESTS = ("_pytest.", "pytest_playhead", "pytest_asyncio", "anyio", "pytest_recording", "pytest_mock")
"""Modules whose fixtures send no requests when they clean up."""

MARKER = (
    "playhead(file=None, allow_unused=False, allow_failed=False, allowed_hosts=(), recording=True, effects=None): answer the requests of this test from"
    " its recording. file: path of the recording, relative to the test's directory; allow_unused: the test may send fewer"
    " requests than recorded; allow_failed: record answers such as 429 or 500 as well; allowed_hosts: hosts whose requests"
    " go live, unrecorded; effects=True: the time, random numbers and the like come from the recording, too; recording=False: the test gives its answers itself, with playhead.answer(...)."
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options, with names and meanings as in VCR and pytest-recording."""
    group = parser.getgroup("playhead", "recordings of the requests of tests (Playhead)")
    parser.addini("playhead", "set the proxy before anything is imported (true or false)", type="bool", default=False)
    parser.addini("playhead_record_mode", "default of --record-mode", default="none")
    parser.addini("playhead_block_network", "default of --block-network", type="bool", default=False)
    parser.addini("playhead_effects", "record the effects of marked tests as well", type="bool", default=False)
    parser.addini("playhead_isolation", "default of --isolation", default="auto")
    parser.addini("playhead_allowed_hosts", "default of --allowed-hosts", type="args", default=[])
    group.addoption(
        "--playhead-command",
        metavar="CMD",
        help="The command that starts Playhead. Default: PLAYHEAD_COMMAND, or playhead.",
    )
    group.addoption(
        "--isolation",
        choices=ISOLATIONS,
        default=None,
        help="With --block-network: run pytest in its own network namespace, which no connection leaves. auto: if the"
        " system allows it (default). require: fail otherwise. off: only refuse connections that Python opens in this"
        " process.",
    )
    if find_spec("pytest_recording") and not pluginmanager.is_blocked("recording"):
        # It already adds options of these names, with the same meanings.
        return
    group.addoption(
        "--record-mode",
        choices=RECORD_MODES,
        default=None,
        help="none: only replay (default). once: record tests without a recording. new_episodes: record missing calls."
        " all: record again, and keep the old recording if that fails. rewrite: remove the old recording first.",
    )
    group.addoption(
        "--block-network",
        action="store_true",
        default=None,
        help="Let unmarked tests connect only to this machine as well.",
    )
    group.addoption(
        "--allowed-hosts",
        default=None,
        metavar="HOSTS",
        help="Hosts whose requests go live, unrecorded: a.example,*.b.example",
    )
    group.addoption(
        "--disable-recording", action="store_true", default=False, help="Ignore the marks: all requests go live."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set the proxy before a conftest can create a client, if the options need that."""
    known = early_config.known_args_namespace
    is_needed = getattr(known, "record_mode", None) or _blocks_network(early_config)
    idle = known.help or known.collectonly or known.version or getattr(known, "disable_recording", False)
    if (is_needed or early_config.getini("playhead")) and not idle and not _is_xdist_controller(early_config):
        suite = _create_suite(early_config)
        suite.is_early = True
        _isolate(early_config, suite)
        _start_suite(suite)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Start each xdist worker of this machine in its own network namespace, or have them share one Playhead process."""
    suite = config.stash[SUITE]
    if suite.is_disabled or config.option.collectonly:
        return
    if suite.blocks_network and suite.isolation != "off" and sys.platform == "linux":
        for spec in specs:
            if spec.popen and not spec.python:
                spec.python = captive_interpreter(suite.command, suite.root)
    elif hasattr(socket, "AF_UNIX"):
        suite.share_process()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Note why an xdist worker is not captive. It has no report header of its own."""
    if reason := getattr(node, "workeroutput", {}).get("playhead_not_captive"):
        node.config.stash[SUITE].not_captive_reason = reason


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and read the options."""
    config.addinivalue_line("markers", MARKER)
    if SUITE not in config.stash:
        _create_suite(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say in the header if tests may go live or are not isolated, because in CI nobody watches them."""
    suite = config.stash[SUITE]
    if suite.not_captive_reason:
        return f"playhead: {_not_isolated_message(suite.not_captive_reason)}"
    if suite.is_replay_only or suite.is_disabled:
        return None
    ci = "CI is set, and " if os.environ.get("CI", "").lower() not in ("", "0", "false") else ""
    return f"playhead: {ci}unrecorded requests of marked tests go live (--record-mode={suite.mode})"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the process and restore the environment."""
    if SUITE in config.stash:
        config.stash[SUITE].stop()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Set the proxy before the first test runs, if any test is marked."""
    config = session.config
    suite = config.stash[SUITE]
    if suite.not_captive_reason and hasattr(config, "workeroutput"):
        config.workeroutput["playhead_not_captive"] = suite.not_captive_reason
    if config.option.collectonly or _is_xdist_controller(config):
        return
    if not suite.is_disabled and any(item.get_closest_marker("playhead") for item in session.items):
        _start_suite(suite)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare a test before its fixtures. This runs after the marks that skip tests, which then need no recording."""
    suite = item.config.stash[SUITE]
    try:
        test = suite.marked_test(item)
        suite.enter(test)
    except (FixturesError, InvalidMark) as failure:
        raise pytest.fail.Exception(f"playhead: {failure}", pytrace=False) from None
    if test is not None:
        item.stash[TEST] = test
        if suite.is_replay_only and test.mark.recording and not test.path.is_file():
            command = f"pytest {quote(test.relative_id)} --record-mode=once"
            own = "or give its answers in the test: @pytest.mark.playhead(recording=False), docs/pytest.md"
            pytest.fail(
                f"playhead: there is no recording {test.relative_path}\nrecord it: {command}\n{own}", pytrace=False
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed if its replay was not right, or if its recording cannot be kept."""
    test = item.stash.get(TEST, None)
    if test is None:
        return (yield)
    suite = item.config.stash[SUITE]
    result = yield
    # Fixtures that clean up after the test may still send requests.
    right = (
        _call_or_fail(suite.is_right_so_far, test)
        if _has_cleanup(item)
        else _call_or_fail(suite.end, test, has_passed=True)
    )
    if not right:
        pytest.fail(f"playhead: the test passed, but Playhead failed it: {_first_line(test)}", pytrace=False)
    test.has_passed = True
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Disarm the guard after the last fixture."""
    try:
        return (yield)
    finally:
        item.config.stash[SUITE].leave()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the replay to the report of a failed test."""
    report = yield
    test = item.stash.get(TEST, None)
    suite = item.config.stash[SUITE]
    if report.failed and report.when != "teardown" and test is not None:
        _explain_failure(suite, test)
    words = test.explanation if test is not None else _refusals(suite) if report.failed else ""
    if report.failed and words and (test is not None or suite.blocks_network):
        _add_section(report, words)
    if test is not None and test.note:
        # A separate attribute of the report is transferred from xdist workers.
        report.playhead = test.note  # type: ignore[attr-defined]
        test.note = ""
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was recorded."""
    reports = [each for group in terminalreporter.stats.values() for each in group]
    notes = [note for each in reports if (note := getattr(each, "playhead", None))]
    suite = terminalreporter.config.stash[SUITE]
    if suite.not_captive_reason and _is_xdist_controller(terminalreporter.config):
        notes.append(_not_isolated_message(suite.not_captive_reason))
    if notes:
        terminalreporter.section("playhead")
        for note in notes:
            terminalreporter.line(note)


@pytest.fixture(autouse=True)
def playhead_recording(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Open the recording of a marked test, after fixtures of wider scopes and before its own."""
    test = request.node.stash.get(TEST, None)
    if test is None:
        yield
        return
    suite = request.config.stash[SUITE]
    _call_or_fail(suite.begin, test, request)
    set_test_calls(suite.calls)
    set_answers(lambda answer: _call_or_fail(suite.add_answer, answer))
    yield
    set_test_calls(None)
    set_answers(None)
    if not _call_or_fail(suite.end, test, has_passed=test.has_passed) and test.has_passed:
        pytest.fail(f"playhead: the test passed, but Playhead failed it: {_first_line(test)}", pytrace=False)


@pytest.fixture
def playhead_run(request: pytest.FixtureRequest, playhead_recording: None) -> Run:  # noqa: ARG001 - it opens the recording
    """The calls of the test so far: `playhead_run.calls.tools == ["search_tickets", "add_note"]`."""
    if request.node.stash.get(TEST, None) is None:
        pytest.fail("playhead_run needs a marked test: add @pytest.mark.playhead to it", pytrace=False)
    suite = request.config.stash[SUITE]
    return Run(request.node.nodeid, suite.calls, lambda spec: _call_or_fail(suite.check, spec))


def _create_suite(config: pytest.Config) -> Suite:
    known = config.known_args_namespace
    hosts = getattr(known, "allowed_hosts", None)
    suite = Suite(
        mode=getattr(known, "record_mode", None) or config.getini("playhead_record_mode"),
        blocks_network=_blocks_network(config),
        allowed_hosts=tuple(filter(None, hosts.split(",") if hosts else config.getini("playhead_allowed_hosts"))),
        command=known.playhead_command or os.environ.get("PLAYHEAD_COMMAND") or COMMAND,
        root=config.rootpath,
        directory=config.invocation_params.dir,
        is_disabled=bool(getattr(known, "disable_recording", False)),
        has_effects=bool(config.getini("playhead_effects")),
        isolation=known.isolation or config.getini("playhead_isolation"),
    )
    if suite.isolation not in ISOLATIONS:
        raise pytest.UsageError(f"invalid playhead_isolation {suite.isolation!r}: use one of {', '.join(ISOLATIONS)}")
    if suite.mode not in RECORD_MODES:
        raise pytest.UsageError(f"invalid playhead_record_mode {suite.mode!r}: use one of {', '.join(RECORD_MODES)}")
    config.stash[SUITE] = suite
    return suite


def _blocks_network(config: pytest.Config) -> bool:
    known = config.known_args_namespace
    return bool(getattr(known, "block_network", None) or config.getini("playhead_block_network"))


def _is_xdist_controller(config: pytest.Config) -> bool:
    """Whether xdist workers run the tests instead of this process."""
    known = config.known_args_namespace
    many = getattr(known, "numprocesses", None) or getattr(known, "tx", None)
    return bool(many) and "PYTEST_XDIST_WORKER" not in os.environ


def _isolate(config: pytest.Config, suite: Suite) -> None:
    """Restart this process captive, or note why that is not possible. The restarted process inherits a socket."""
    connection, failure = inherited_socket(), earlier_failure()
    try:
        if connection is not None:
            suite.use_connection(connection)
        elif suite.blocks_network and suite.isolation != "off":
            suite.not_captive_reason = failure or reason_not_to_restart(config)
            if suite.not_captive_reason is None:
                restart_captive(config, suite.command, suite.root)
    except FixturesError as error:
        raise pytest.UsageError(str(error)) from error
    if suite.not_captive_reason and suite.isolation == "require":
        raise pytest.UsageError(
            f"pytest cannot be isolated here: {suite.not_captive_reason}; --isolation auto runs it without"
        )


def _not_isolated_message(reason: str) -> str:
    return f"not isolated: {reason}. Only connections that Python opens in this process are refused"


def _add_section(report: pytest.TestReport, words: str) -> None:
    """Add an explanation to what the report says about the failure, or else beside it.

    JUnit XML and the annotations of CI services have nothing of a report's own sections, so whoever reads those would not see it.
    """
    add = getattr(report.longrepr, "addsection", None) or (lambda *section: report.sections.append(section))
    add("playhead", words)


def _refusals(suite: Suite) -> str:
    try:
        return "\n\n".join(suite.unmarked_refusals())
    except FixturesError as failure:
        return str(failure)


def _start_suite(suite: Suite) -> None:
    try:
        suite.start()
    except FixturesError as failure:
        raise pytest.UsageError(str(failure)) from failure


def _call_or_fail(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except FixturesError as failure:
        raise pytest.fail.Exception(f"playhead: {failure}", pytrace=False) from None


def _explain_failure(suite: Suite, test: MarkedTest) -> None:
    """Get the explanation of the replay for a test that failed by itself, or in a fixture."""
    try:
        suite.is_right_so_far(test)
    except FixturesError as failure:
        test.explanation = str(failure)


def _first_line(test: MarkedTest) -> str:
    return test.explanation.partition("\n")[0].rstrip(":") or "it was interrupted"


def _has_cleanup(item: pytest.Item) -> bool:
    """Whether a fixture of this test may still send requests after the test."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = (each[-1] for each in getattr(info, "name2fixturedefs", {}).values() if each)
    return any(
        each.scope == "function"
        and not str(each.func.__module__).startswith(MODULES_WITHOUT_REQUESTS)
        and (
            inspect.isgeneratorfunction(each.func)
            or inspect.isasyncgenfunction(each.func)
            or "request" in each.argnames
        )
        for each in definitions
    )
