"""What is wrong with a command line is told in a sentence; what a run's calls have to do with each other is shown."""

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from proxy.cli import COMMANDS, HIDDEN, common, files, load_command, main, playhead
from proxy.cli.common import parse_time
from proxy.cli.keep.retention import freed_text
from proxy.cli.look.list_options import fetch_list, has_filters, take_list_query
from proxy.cli.look.lists import _call_row, _run_row, _target
from proxy.commands.export import open_output
from proxy.commands.record import STORE_CHECKS, check_run_id, summary_text
from proxy.doctor.client_probes import client_kind
from proxy.doctor.doctor import ClientFinding, findings_for_command
from proxy.errors import Failure, unwritable_file
from proxy.processes.store_client import Api, NotFound, incomplete_reason, path_segment
from proxy.processes.user_command import require_command
from proxy.terminal.render_run import call_table
from proxy.terminal.text import next_command
from store.datadir import open_data_dir
from store.generations.build import unreplayable_reason
from store.query.rest_shapes import has_call_failed
from tests.store.exchanges import conversation

WHOLE: dict[str, Any] = {
    "kind": "model",
    "dialect": "openai_chat",
    "operation": "chat",
    "model_requested": "gpt-5",
    "model_returned": None,
    "cost_usd": None,
    "method": "POST",
    "host": "weather.example.com",
    "path": "/now",
    "status": 200,
    "complete": True,
    "outcome": "completed",
    "streamed": False,
    "finish_reason": "stop",
    "answer_state": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
    "duration_ms": 7.0,
    "tool_calls": [],
    "text": "It rains.",
    "branch": None,
    "follows": None,
    "executes": None,
    "attempts": 1,
    "exchanges": [],
    "started_at": None,
    "run": "r",
}


def call(step: int, **more: Any) -> dict[str, Any]:
    """A call as the API shows it, which says of each whether it failed."""
    made = {**WHOLE, "id": f"call-{step}", "step": step, **more}
    return {**made, "failed": has_call_failed(made["kind"], made)}


def wrong(*arguments: str) -> str:
    done = CliRunner().invoke(playhead, arguments)
    is_wrapping = not {"record", "replay", "fork", "resume"}.isdisjoint(arguments)
    assert done.exit_code == (125 if is_wrapping else 2), done.output
    return done.output


@pytest.mark.parametrize("option", ["--data", "--config", "--database-url", "--json"])
def test_an_option_before_the_command_is_refused_with_its_place(option: str) -> None:
    assert f"goes behind one: playhead ls {option} …" in wrong(option, "x", "ls")


def test_an_option_that_no_command_has_is_none() -> None:
    assert "No such option" in wrong("--nonsense", "ls")
    assert "No such option" in wrong("--pace", "instant", "ls")
    assert "playhead replay --pace …" in wrong("--pace", "instant", "replay", "last")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("record", "--run", "a b", "--", "true"), "use 1 to 128 of the characters"),
        (("env", "--run", "é"), "use 1 to 128 of the characters"),
        (("env", "--run", ".."), "use 1 to 128 of the characters"),
        (("record", "--run", "last", "--", "true"), "commands read it as the newest run"),
        (("record", "--run=-x", "--", "true"), "commands read it as an option"),
        (("import", "--run", "x.jsonl", "file"), "commands read it as a file"),
    ],
)
def test_a_run_id_that_no_command_could_name_is_a_wrong_command_line(command: Sequence[str], why: str) -> None:
    assert f"cannot be a run id: {why}" in wrong(*command)


@pytest.mark.parametrize("host", ["a b", "https://api.example.com", "api.example.com:443", "a.*.example", ""])
def test_a_host_that_no_request_can_go_to_is_a_wrong_command_line(host: str) -> None:
    assert "is not a host: write api.example.com or *.example.com" in wrong(
        "replay", "--allowed-hosts", f"ok.example,{host}", "r", "true"
    )


@pytest.mark.parametrize("label", ["team", "=support", ""])
def test_a_label_without_a_name_or_a_value_is_a_wrong_command_line(label: str) -> None:
    assert "is not a label: write it as key=value" in wrong("record", "--label", label, "--", "true")


def test_every_way_to_name_a_run_says_what_a_name_can_be() -> None:
    named = [
        parameter
        for command in filter(None, map(load_command, COMMANDS))
        for parameter in command.params
        if isinstance(parameter, click.Option) and "--run" in parameter.opts
    ]
    assert len(named) > 1
    assert {type(parameter.type).__name__ for parameter in named} == {"_RunId"}


def test_a_table_shows_what_leads_to_a_call_and_its_branch() -> None:
    head, rows = call_table(
        [
            call(1, branch=1),
            call(2, kind="tool", branch=1, executes={"call": "call-1", "step": 1, "tool_call": "a"}),
            call(3, branch=2, follows=[{"call": "call-1", "step": 1, "by": ["a"]}]),
            call(4, follows=[{"call": "c", "step": 1, "by": ["a"]}, {"call": "d", "step": 3, "by": ["b"]}]),
        ]
    )
    assert head[:3] == ("STEP", "FROM", "BRANCH")
    assert [row[:3] for row in rows] == [("1", "", "1"), ("2", "1", "1"), ("3", "1", "2"), ("4", "1+3", "")]


def test_an_error_under_200_is_distinguished_from_an_answer_too_large_to_keep() -> None:
    too_large = call(1, complete=False, finish_reason=None)
    broken = call(2, complete=False, finish_reason=None, streamed=True)
    failed = call(3, finish_reason="failed")
    left = call(4, complete=False, finish_reason=None, streamed=True, outcome="client_closed")
    stream_too_large = call(5, complete=False, finish_reason=None, streamed=True, answer_state="unkept")
    refused, partial = call(6, outcome="refused", status=403), call(7, answer_state="partial")
    calls = [too_large, broken, failed, left, stream_too_large, refused, partial, call(8)]
    _, rows = call_table(calls)
    states = [row[2] for row in rows]
    assert states[:5] == [f"200 {word}" for word in ("truncated", "failed", "failed", "client_closed", "truncated")]
    assert states[5:] == ["403 refused", "200 partial", "200"]
    # The list of calls has the same words as the table of a run.
    assert [_call_row(one)[5] for one in calls] == states


@pytest.mark.parametrize(("freed", "text"), [(2000, "freed 2.0 kB"), (0, "freed 0"), (-16_400, "grew by 16.4 kB")])
def test_a_database_that_grew_freed_nothing(freed: int, text: str) -> None:
    assert text in freed_text(freed)


def test_what_is_asked_of_an_mcp_server_is_its_method_and_not_the_address_of_all() -> None:
    more: dict[str, Any] = {"kind": "other", "dialect": "mcp", "host": "mcp.example.com", "path": "/mcp"}
    _, [row, _] = call_table([call(1, operation="tools/list", **more), call(2)])
    assert row[1] == "tools/list at mcp.example.com/mcp"
    assert _target(call(1, operation="tools/list", **more)) == "tools/list at mcp.example.com/mcp"
    assert _target(call(1, **more | {"dialect": "generic"})) == "POST mcp.example.com/mcp"


def test_a_table_has_no_column_of_which_nothing_is_known() -> None:
    assert call_table([call(1), call(2)])[0] == ("STEP", "CALL", "STATUS", "MS", "TOKENS", "COST", "ANSWER")
    linked = [call(1, branch=1), call(2, branch=1, follows=[{"call": "call-1", "step": 1, "by": ["a"]}])]
    assert call_table(linked)[0][:3] == ("STEP", "FROM", "CALL")


FOUND = (
    ClientFinding(client="python openai", verdict="through"),
    ClientFinding(client="node fetch", verdict="missing"),
    ClientFinding(client="wget", verdict="escapes"),
)


@pytest.mark.parametrize(
    ("command", "clients"),
    [
        ((), []),
        (("python", "agent.py"), ["python openai"]),
        (("uv", "run", "agent.py"), ["python openai"]),
        (("/usr/bin/python3.13", "agent.py"), ["python openai"]),
        (("npx", "tsx", "agent.ts"), ["node fetch"]),
        (("wget", "https://host"), ["wget"]),
        (("./of-python", "x"), ["python openai"]),
        (("./of-shell", "x"), []),
        (("./nothing-here", "x"), []),
    ],
)
def test_a_command_is_judged_by_the_clients_that_it_uses(
    command: Sequence[str], clients: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, first in (("of-python", "#!/usr/bin/env -S python3 -u"), ("of-shell", "#!/bin/sh")):
        (tmp_path / name).write_text(f"{first}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert [found.client for found in findings_for_command(command, os.environ, FOUND)] == clients


def test_a_program_that_is_no_script_is_known_by_its_name_only() -> None:
    assert client_kind(("cat",), os.environ) is None


def test_every_command_is_what_the_list_says_and_only_its_own_module_is_imported() -> None:
    for name, (_, short) in COMMANDS.items():
        command = load_command(name)
        assert command is not None
        assert command.get_short_help_str(100) == short
    code = "import sys, proxy.cli; print([name for name in sys.modules if name.startswith(('proxy.cli.', 'store', 'calls'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert load_command("nothing") is None


def test_the_list_has_every_command_of_every_module() -> None:
    modules = {module for module, _ in COMMANDS.values()} | set(HIDDEN.values())
    found = {command.name for module in modules for command in import_module(f"proxy.cli.{module}").COMMANDS}
    assert found == COMMANDS.keys() | HIDDEN.keys()


class Behind(Api):
    """A store server that has not stored everything, and has troubles or none."""

    def __init__(self, *answers: bool, troubles: Sequence[str] = ()) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)
        self.known = list(troubles)

    def get(self, path: str, **query: Any) -> Any:
        assert (path, query) == ("/runs/r", {"settled": "true"})
        return {"settled": self.answers.pop(0)}

    def troubles(self) -> list[str]:
        return self.known


def test_a_record_waits_for_a_store_that_is_slow_and_not_for_one_in_trouble() -> None:
    assert incomplete_reason(Behind(False, False, True), "r", STORE_CHECKS) is None
    assert incomplete_reason(Behind(False, troubles=["No space left"]), "r", STORE_CHECKS) == "No space left"
    assert (
        incomplete_reason(Behind(*[False] * STORE_CHECKS), "r", STORE_CHECKS)
        == "the store server has not processed all of it yet"
    )


RUN = {"id": "r", "gaps": 0, "complete": True}


def test_nothing_was_recorded_is_only_said_where_the_store_has_everything() -> None:
    assert summary_text({**RUN, "waiting": 2}, []).startswith(
        "playhead: recorded r: no call; 2 questions wait for an answer\n"
    )
    assert "recorded nothing under r: no call came through" in summary_text(RUN, [])
    assert summary_text(RUN | {"isolation": "captive"}, []).endswith(
        "recorded nothing under r: the command made no call"
    )
    late = summary_text(RUN, [], "No space left")
    assert "nothing" not in late
    assert "r is not completely stored yet, 0 calls are: No space left" in late


def test_a_run_in_which_something_is_cut_is_not_offered_as_if_it_were_whole() -> None:
    calls = [call(1), call(2, complete=False), call(3, complete=False, outcome="server_closed")]
    assert "incomplete" not in summary_text(RUN, calls[:1])
    summary = summary_text({**RUN, "complete": False}, calls)
    assert "incomplete: step 2 truncated, step 3 server_closed; a body was larger than body_limit\n" in summary
    many = [call(n, complete=False, outcome="server_closed") for n in range(7)]
    assert "step 4 server_closed, and 2 more\n" in summary_text({**RUN, "complete": False}, many)
    # Of its request, no answer shows it.
    only_request = summary_text({**RUN, "complete": False}, calls[:1])
    assert "incomplete: a body was larger than body_limit\n" in only_request


def test_a_file_without_execute_permission_is_distinguished_from_a_missing_command(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("print(1)")
    with pytest.raises(Failure, match="it is not executable; run chmod"):
        require_command([str(script)])
    with pytest.raises(Failure, match="there is no such command"):
        require_command([str(tmp_path / "other.py")])


def test_a_time_is_also_said_as_so_long_ago() -> None:
    assert parse_time("2026-11-21T18:30:00Z") == "2026-11-21T18:30:00Z"
    assert parse_time(None) is None
    since = datetime.fromisoformat(parse_time("7d") or "")
    ago = datetime.now(UTC) - since
    assert timedelta(days=7) <= ago < timedelta(days=7, minutes=5)
    with pytest.raises(click.UsageError, match=r"invalid time 'yesterday': use 90s, .* or an RFC 3339 time"):
        parse_time("yesterday")


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_name_that_would_be_another_path_is_that_of_nothing(name: str) -> None:
    with pytest.raises(NotFound, match="nothing here is called"):
        path_segment(name)
    with pytest.raises(Failure, match="cannot be a run id"):
        check_run_id(name)


def test_a_directory_is_no_file_to_export_to(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="it is a directory; name a file in it"), open_output(tmp_path):
        pass


def test_a_file_in_a_directory_that_is_not_there_says_which(tmp_path: Path) -> None:
    file = tmp_path / "no" / "run.jsonl"
    with pytest.raises(FileNotFoundError) as missing:
        file.touch()
    failure = unwritable_file(file, missing.value, "name another file with -o")
    assert str(failure) == (
        f"cannot write {file}: there is no directory {file.parent}; create it, or name another file with -o"
    )
    with pytest.raises(IsADirectoryError) as directory:
        tmp_path.write_text("")
    assert str(unwritable_file(tmp_path, directory.value, what="the report")) == (
        f"cannot write the report {tmp_path}: Is a directory; name another file"
    )


@pytest.mark.parametrize(("mistyped", "meant"), [("shwo", "show"), ("recrod", "record"), ("forks", "fork")])
def test_a_mistyped_command_names_those_like_it(mistyped: str, meant: str) -> None:
    done = CliRunner().invoke(playhead, [mistyped])
    assert done.exit_code == 2
    assert f"No such command '{mistyped}'" in done.output
    assert f"'{meant}'" in done.output


def test_an_output_that_cannot_be_written_is_reported_in_a_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        line = [sys.executable, "-c", "from proxy.cli import main; main()", "config"]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        125,
        "playhead: cannot write: No space left on device; make room, and try again\n",
    )


def test_a_machine_without_a_temporary_directory_gets_a_sentence() -> None:
    program = """
import tempfile
from proxy.cli import load_command, main

tempfile._candidate_tempdir_list = lambda: ["/proc/none"]
load_command("config").callback = lambda **flags: tempfile.mkdtemp()
main()
"""
    line = [sys.executable, "-c", program, "config"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (
        125,
        "playhead: no directory for temporary files can be written: make /tmp writable (a tmpfs, where the root is read-only), or set TMPDIR\n",
    )


def test_a_reader_of_an_export_may_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_pipe(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    open_data_dir(tmp_path)
    monkeypatch.setattr(files, "query_store", break_pipe)
    done = CliRunner().invoke(playhead, ["export", "--data", str(tmp_path), "night"])
    assert (done.exit_code, done.output) == (1, ""), "as of any command whose reader leaves"
    assert isinstance(done.exception, SystemExit)


def test_a_command_may_be_started_without_streams(tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_text("GET https://tools.example.com/ HTTP/1.1\n\n")
    line = [sys.executable, "-c", "from proxy.cli import main; main()", "explain", "--request", str(request)]
    closed = ["sh", "-c", 'exec "$@" <&- >&-', "sh", *line]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_too_large_is_mended_by_a_setting_and_not_by_recording_it_again() -> None:
    short, *_ = conversation(1)
    assert short.response is not None
    cut = replace(short, response=replace(short.response, body=replace(short.response.body, truncated=True)))
    assert unreplayable_reason(short) is None
    assert "if a body is larger than body_limit, raise that setting" in (unreplayable_reason(cut) or "")


def test_a_call_that_was_tried_again_says_how_often() -> None:
    head, rows = call_table([call(1), call(4, attempts=3)])
    assert [row[head.index("STATUS")] for row in rows] == ["200", "200 (3 tries)"]


def test_what_to_type_next_names_the_same_data_directory() -> None:
    assert next_command("show r") == "playhead show r"
    with click.Context(playhead) as context:
        context.params = {"data": Path("/srv/my data"), "database_url": "postgresql://me:secret@db/x"}
        same = "--data '/srv/my data' --database-url"
        assert next_command("replay r", "-- COMMAND") == f"playhead replay r {same} URL -- COMMAND"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://me@a:5432,b:5432/x?target_session_attrs=any", None),
        ("postgresql:///x?host=/run/pg", None),
        ("postgresql://me:secret@db/x", "URL"),
        ("postgresql://me:sec@ret@db/x", "URL"),
        ("postgresql://me@db/x?password=secret", "URL"),
        ("postgresql://me@db/x?sslpassword=secret", "URL"),
        ("host=db password=secret", "URL"),
    ],
)
def test_what_to_type_next_names_the_same_database_without_its_password(url: str, shown: str | None) -> None:
    with click.Context(playhead) as context:
        context.params = {"database_url": url}
        assert next_command("show r") == f"playhead show r --database-url {shown or shlex.quote(url)}"


def test_a_run_with_a_name_is_listed_with_it() -> None:
    run: dict[str, Any] = {
        "id": "chain:1",
        "name": "ticket 904",
        "labels": {"team": "x"},
        "tokens": {"input_tokens": 1, "output_tokens": 2},
    }
    run |= {"started_at": None, "calls": 2, "complete": True, "models": []}
    for known, unpriced, cost in ((None, 0, "-"), (0.5, 0, "$0.500000"), (12.0, 1, "$12.00+"), (None, 1, "unknown")):
        row = _run_row({**run, "known_cost_usd": known, "unpriced": unpriced})
        assert row == ("chain:1", "", "2", "3", cost, "", "ticket 904 team=x")


class Pages(Api):
    """A store server with ten items, of which it returns at most four at once."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.limits: list[int] = []

    def get(self, path: str, **query: Any) -> Any:
        assert path == "/calls"
        assert query["model"] == ["gpt-5"]
        self.limits.append(query["limit"])
        start = int(query["cursor"] or 0)
        end = min(10, start + min(4, query["limit"]))
        return {"items": list(range(start, end)), "next": str(end) if end < 10 else None}


@pytest.mark.parametrize(("limit", "following"), [(3, "3"), (4, "4"), (9, "9"), (10, None), (99, None)])
def test_a_list_is_read_page_by_page_up_to_the_limit(limit: int, following: str | None) -> None:
    found = fetch_list(Pages(), "/calls", limit, {"model": ["gpt-5"]})
    assert found == {"items": list(range(min(limit, 10))), "next": following}


def test_ls_and_calls_have_the_same_options() -> None:
    runs, calls = (load_command(name) for name in ("ls", "calls"))
    assert runs is not None
    assert calls is not None
    assert [one.to_info_dict() for one in runs.params] == [one.to_info_dict() for one in calls.params]


def test_only_given_options_become_parameters() -> None:
    command = load_command("calls")
    assert command is not None
    words = ["--model", "a", "--model", "b", "--no-error", "--min-cost", "0.5", "--search", "refund"]
    flags = command.make_context("calls", words).params
    query = take_list_query(flags)
    assert query == {"model": ["a", "b"], "error": "false", "min_cost": 0.5, "q": "refund"}
    assert has_filters(query)
    assert flags.keys() == {"data", "config", "database_url", "prices", "project", "as_json", "limit"}
    assert not has_filters(take_list_query(command.make_context("calls", ["--sort", "cost"]).params))


def test_a_question_to_the_store_server_names_commands_as_the_command_that_asks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked in another thread, where click knows of no command."""

    class Processes(AsyncExitStack):
        async def connect_store_server(self, **_: object) -> nullcontext[None]:
            return nullcontext()

    monkeypatch.setattr(common, "CommandProcesses", lambda _settings: Processes())
    monkeypatch.setattr(common, "settings_from_flags", lambda **_: None)
    with click.Context(click.Command("ls")) as context:
        context.params = {"data": "/srv/d", "project": "web"}
        shown = common.query_store({}, lambda _api: next_command("show r"), is_silent=False)
    assert shown == "playhead show r --data /srv/d --project web"


def test_output_that_takes_no_more_is_no_limit_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output that does not block, as some parents leave it."""

    def fail(**_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0)

    monkeypatch.setattr(playhead, "main", fail)
    with pytest.raises(BlockingIOError):
        main()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, "fork")])
def test_a_limit_of_processes_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(playhead, "main", fail)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 125
    assert "limit of processes and threads is reached: raise it (ulimit -u" in capsys.readouterr().err
