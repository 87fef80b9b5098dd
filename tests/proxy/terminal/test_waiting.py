"""A terminal is told what a command waits for, once it takes a while; files and CI's logs get only lines about progress."""

import io
import threading

import pytest

from proxy.terminal.waiting import show_waiting


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.written.set()


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_a_line_is_shown_while_it_takes_long_and_cleared_afterwards() -> None:
    screen = Screen(is_terminal=True)
    with show_waiting("starting the store server", screen, delay=0):
        assert screen.written.wait(30)
        assert "playhead: starting the store server …" in screen.getvalue()
    assert screen.getvalue().endswith("\r\033[K")


def test_nothing_is_shown_of_what_is_quick() -> None:
    screen = Screen(is_terminal=True)
    with show_waiting("starting the store server", screen, delay=3600):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("is_terminal", "ci"), [(False, ""), (True, "true")])
def test_nothing_is_shown_in_a_file_or_in_ci(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    screen = Screen(is_terminal=is_terminal)
    with show_waiting("starting the store server", screen, delay=0):
        assert not screen.written.wait(0.01)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("is_terminal", "ci"), [(False, ""), (True, "true")])
def test_a_file_gets_a_line_about_progress_after_two_seconds_and_every_five(
    monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    screen, time = Screen(is_terminal=is_terminal), 100.0
    with show_waiting("starting the proxy worker", screen, now=lambda: time) as change_line:
        for tenths in range(140):
            time = 100 + tenths / 10
            change_line(f"reading run-1: {tenths} calls")
    assert screen.getvalue() == "".join(f"playhead: reading run-1: {tenths} calls\n" for tenths in (20, 70, 120))


def test_the_line_on_a_terminal_shows_the_progress() -> None:
    screen = Screen(is_terminal=True)
    with show_waiting("starting the proxy worker", screen, delay=0) as change_line:
        assert screen.written.wait(30)
        change_line("reading run-1: 1,000 calls")
        assert screen.getvalue().endswith("\rplayhead: reading run-1: 1,000 calls …\033[K")
    with show_waiting("starting the proxy worker", quick := Screen(is_terminal=True), delay=3600) as change_line:
        change_line("reading run-1: 1,000 calls")
    assert quick.getvalue() == ""
