"""The commands that look at recordings, as a person sees them: one service, one imported run, real processes."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from calls.model import Exchange
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from tests.store.exchanges import conversation
from tests.support.service import command, running

EXAMPLE = Path(__file__).parents[2] / "docs" / "trace-format.example.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    """A command that ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Commands on a data directory in which a service runs."""

    data: Path

    async def __call__(self, name: str, *arguments: str | Path) -> EndedCommand:
        line = command(name, "--data", str(self.data), *map(str, arguments))
        process = await asyncio.create_subprocess_exec(
            *line, cwd=self.data.parent, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return EndedCommand(code=process.returncode or 0, out=out.decode(), err=err.decode())


def bundle_file(place: Path, exchanges: Sequence[Exchange], run: str = "run-1") -> Path:
    bundle = Bundle(
        run={"id": run, "labels": {"team": "support"}},
        profiles=load_profiles(None).digest,
        entries=tuple(Entry(exchange=one) for one in exchanges),
    )
    place.write_bytes(b"".join(bundle_lines(bundle)))
    return place


@pytest.fixture
async def desk(data: Path, database_url: str) -> AsyncIterator[Desk]:
    async with running(data, "--database-url", database_url):
        yield Desk(data=data)


@pytest.mark.slow
async def test_what_was_imported_is_listed_shown_explained_and_carried_on(desk: Desk, tmp_path: Path) -> None:
    short, *rest = conversation(2)
    assert short.response is not None
    body = replace(short.response.body, truncated=True)
    cut = replace(short, response=replace(short.response, body=body))
    file = bundle_file(tmp_path / "run.jsonl", [cut, *rest])

    command = await desk("import", file)
    assert command.out.strip() == f"{file}: run run-1, 2 exchanges imported"
    assert (await desk("import", file)).out.strip() == f"{file}: run run-1, was here already"

    [run] = json.loads((await desk("ls", "--json", "--limit", "500")).out)["items"]
    shown = (await desk("ls")).out.splitlines()[1]
    assert f"{(run['tokens']['input_tokens'] or 0) + (run['tokens']['output_tokens'] or 0):,}" in shown.split()
    assert "team=support" in shown
    assert "no run fits these filters" in (await desk("ls", "--label", "team=other")).err
    assert "no run fits these filters" in (await desk("ls", "--since", "1s")).err

    table = (await desk("calls", "--kind", "model", "--sort", "time", "--order", "asc")).out.splitlines()
    assert table[0].split()[:3] == ["RUN", "STEP", "STARTED"]
    assert [line.split()[:2] for line in table[1:]] == [["run-1", "1"], ["run-1", "2"]]
    assert "no call fits these filters" in (await desk("calls", "--model", "absent", "--model", "other")).err
    listed = json.loads((await desk("calls", "--json", "--limit", "1", "--label", "team=support")).out)
    assert [call["step"] for call in listed["items"]] == [2]
    assert listed["next"]
    assert "key.0: use the `key` of a call" in (await desk("calls", "--key", "x")).err

    whole = await desk("show", "last")
    assert "2 calls, 0 gaps, INCOMPLETE" in whole.out
    assert "200 truncated" in whole.out

    call = json.loads((await desk("show", "run-1", "--json")).out)["items"][1]
    assert json.loads((await desk("show", call["id"], "--json")).out) == call
    assert json.loads((await desk("show", "run-1", "2", "--json")).out) == call
    for words in ((call["id"],), ("run-1", "2")):
        step = (await desk("show", *words)).out
        assert step.startswith("step 2 of run run-1\n")
        assert json.loads(step.partition("\nrequest\n")[2].partition("\n\nanswer\n")[0]) == call["request"]
    beyond = await desk("show", "run-1", "99")
    assert beyond.code == 125
    assert "run-1 has no step 99: its last step is" in beyond.err
    why = await desk("explain", call["id"])
    assert why.code == 0, why.err
    assert f"key      {call['key']}" in why.out
    assert "load-bearing" in why.out
    assert json.loads((await desk("explain", call["id"], "--json")).out)["stored_key"] == call["key"]

    pointed = json.loads((await desk("env", "--json")).out)
    assert pointed["HTTPS_PROXY"].startswith("http://127.0.0.1:")

    taken = await desk("record", "--run", "run-1", "--", "true")
    assert taken.code == 125
    assert "run run-1 exists already, with 2 calls" in taken.err
    assert "--append" in taken.err
    assert (await desk("record", "--run", "run-1", "--append", "--isolation", "off", "--", "true")).code == 0

    unknown = await desk("show", "nothing-of-the-kind")
    assert unknown.code == 125
    assert "there is no run and no call nothing-of-the-kind here" in unknown.err
    bundle = str(Path(__file__).parents[2] / "docs" / "trace-format.example.jsonl")
    for name in ("show", "cost", "tail", "explain", "waiting"):
        other = await desk(name, bundle)
        assert (other.code, f"see the file: playhead view {bundle}" in other.err) == (125, True), (name, other.err)
    (desk.data.parent / "night.jsonl").symlink_to(bundle)
    for name in ("cost", "explain", "export"):
        other = await desk(name, "night.jsonl")
        assert (other.code, "see the file: playhead view night.jsonl" in other.err) == (125, True), (name, other.err)


@pytest.mark.slow
async def test_a_shell_gets_the_token_and_a_warning_where_settings_differ(data: Path, database_url: str) -> None:
    desk = Desk(data=data)
    async with running(data, "--database-url", database_url, config='token = "let-me-in"\n') as service:
        pointed = json.loads((await desk("env", "--json", "--config", data.with_suffix(".toml"))).out)
        recording = (await desk("token", "--recording")).out.strip()
        assert pointed["HTTPS_PROXY"] == f"http://per-process:{recording}@127.0.0.1:{service.proxy_port}"
        assert "PLAYHEAD_RUN" not in pointed
        assert (await desk("ls")).code == 0
        other = data.with_name("other.toml")
        other.write_text('token = "let-me-in"\nbody_limit = 10\n')
        apart = await desk("record", "--config", other, "--", "true")
        other.write_text(
            'token = "let-me-in"\n[[profile]]\nname = "x/1"\nmatch = { host = "x.test" }\nsecret = ["$.pin"]\n'
        )
        secret = await desk("record", "--config", other, "--", "true")
        elsewhere = await desk("ls", "--config", other, "--database-url", f"{database_url}-other")
    assert (apart.code, "body_limit: set otherwise here" in apart.err) == (0, True), apart.err
    assert (secret.code, f"restart it with --config {other}" in secret.err) == (125, True), secret.err
    assert (elsewhere.code, "names another database" in elsewhere.err) == (125, True), elsewhere.err


@pytest.mark.slow
async def test_a_worker_in_replay_mode_starts_from_a_run_of_the_store(
    data: Path, tmp_path: Path, database_url: str
) -> None:
    store = ("--database-url", database_url)
    file = bundle_file(tmp_path / "run.jsonl", conversation(2))
    assert (await Desk(data=data)("import", *store, file)).code == 0
    async with running(data, *store, "--mode", "replay", "--replay", "run-1") as service:
        curl = await asyncio.create_subprocess_exec(
            *("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "-x", service.proxy, "https://never.example/"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await curl.communicate()
    assert out == b"424"


async def test_a_replay_that_was_forgotten_to_be_one_is_refused(data: Path, tmp_path: Path) -> None:
    file = bundle_file(tmp_path / "run.jsonl", conversation(1))
    done = await Desk(data=data)("up", "--replay", file)
    assert done.code == 125
    assert "add --mode replay" in done.err


async def test_a_report_that_cannot_be_written_is_refused_before_the_command_runs(data: Path, tmp_path: Path) -> None:
    file = bundle_file(tmp_path / "run.jsonl", conversation(1))
    ran = tmp_path / "ran"
    done = await Desk(data=data)("replay", file, "--report", tmp_path / "no" / "r.json", "--", "touch", ran)
    assert done.code == 125
    assert done.err.startswith("playhead: cannot write the report")
    assert not ran.exists()


async def test_a_step_beyond_the_recording_is_refused(data: Path, tmp_path: Path) -> None:
    file = bundle_file(tmp_path / "run.jsonl", conversation(2))
    done = await Desk(data=data)("replay", file, "--from-step", "3", "--", "true")
    assert done.code == 125
    assert "run-1 ends at step 2, so it has no step 3" in done.err


async def test_what_to_type_next_names_the_recording_as_it_was_typed(data: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(EXAMPLE, tmp_path / "a run.jsonl"))
    asks = "import urllib.request as u; u.urlopen('https://never.example/')"
    done = await Desk(data=data)("replay", file, "--", sys.executable, "-c", asks)
    assert f"playhead replay '{file}' --on-miss live -- CMD" in done.err


async def test_ctrl_c_while_it_starts_ends_without_a_traceback(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        process = await asyncio.create_subprocess_exec(
            *command("record", "--data", str(data), "--database-url", url, "--", "sleep", "60"),
            stderr=asyncio.subprocess.PIPE,
        )
        asked, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(silent), 30)
        with asked:
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err


def test_ctrl_c_is_heard_also_by_an_import_that_swallows_what_it_raises() -> None:
    swallows = """
import os, signal
import proxy.cli

def import_module(name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    raise SystemExit("went on")

proxy.cli.import_module = import_module
proxy.cli.load_command("ls")
"""
    done = subprocess.run([sys.executable, "-c", swallows], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
