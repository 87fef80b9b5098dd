"""What people are shown: tables that fit their terminal, and nothing that a terminal obeys."""

import pytest

from proxy.terminal.text import print_table

HEAD = ("RUN", "CALL", "STATUS", "ANSWER")
ROW = (
    "20261122-120000-abcd",
    "POST api.example.com/v1/a/rather/long/path",
    "200",
    "there are three of them, and one is late",
)


def printed_lines(capsys: pytest.CaptureFixture[str], *, advice: bool = False) -> list[str]:
    print_table(HEAD, [ROW], advice=advice)
    return capsys.readouterr().out.splitlines()


def test_a_table_is_as_wide_as_it_needs_to_be_where_no_terminal_shows_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert [cell for cell in ROW if cell not in printed_lines(capsys)[1]] == []


@pytest.mark.parametrize("columns", [100, 80, 64])
def test_a_table_is_cut_to_its_terminal_but_for_what_one_would_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printed_lines(capsys)
    assert max(map(len, lines)) <= columns
    assert lines[1].startswith(ROW[0])
    assert "…" in lines[1]
    assert "ANSWER" in lines[0]


def test_advice_stays_whole_below_its_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, row, *advice = printed_lines(capsys, advice=True)
    assert row.split("  ") == list(ROW[:3])
    assert " ".join(line.strip() for line in advice) == ROW[3]
    monkeypatch.setenv("COLUMNS", "200")
    assert printed_lines(capsys, advice=True)[1].endswith(ROW[3])


def test_a_cell_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [("\x1b[2J\n",)])
    assert capsys.readouterr().out == "A\n\\x1b[2J\\n\n"
