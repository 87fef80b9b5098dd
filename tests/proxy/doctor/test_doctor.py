"""The doctor judges each client correctly: real clients, and clients made to fail in each way.

Those that go through, and those that escape, are judged all at once by `tests/peers/test_operations.py`.
"""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from proxy.capture.command import CommandPlan, CommandResult
from proxy.doctor import doctor
from proxy.doctor.client_probes import PROBES, Probe, Tools, command_tools, program_command, python_command
from proxy.doctor.doctor import (
    ClientFinding,
    ProbedWorker,
    client_verdict,
    examine_captive,
    examine_clients,
    finding_rows,
    findings_json,
    is_every_client_recorded,
)
from proxy.doctor.probe_servers import HOST, Echo, run_echo
from proxy.trust.client_environment import environment_problems
from proxy.trust.truststore import build_truststore
from tests.drills.up_processes import until_true
from tests.live.standin import StandinWorker, standing

HERE = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
BY_NAME = {probe.client: probe for probe in PROBES}


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with run_echo() as answering:
        yield answering


@pytest.fixture
def standin(echo: Echo, tmp_path: Path) -> Iterator[StandinWorker]:
    with standing(urlsplit(echo.origin).port or 0, tmp_path) as worker:
        yield worker


@pytest.fixture
def worker(standin: StandinWorker, echo: Echo, tmp_path: Path) -> ProbedWorker:
    store = tmp_path / "trust store.p12"
    store.write_bytes(build_truststore(standin.ca.read_bytes()))
    proxy = f"http://127.0.0.1:{standin.port}"
    return ProbedWorker(proxy=proxy, ca=standin.ca, ca_bundle=standin.ca, echo=echo, token="secret", truststore=store)


async def find_client(worker: ProbedWorker, client: str, base: dict[str, str] | None = None) -> ClientFinding:
    (finding,) = await examine_clients(worker, HERE if base is None else base, probes=[BY_NAME[client]])
    if finding.verdict == "missing":
        pytest.skip(f"{client} is not installed here")
    return finding


async def test_java_goes_through_with_our_truststore_but_cannot_name_its_run(worker: ProbedWorker) -> None:
    finding = await find_client(worker, "java HttpClient")
    assert (finding.verdict, finding.names_run) == ("through", False), finding.said


@pytest.mark.parametrize("client", ["curl", "python urllib", "python requests", "python anthropic", "node https"])
async def test_a_client_without_our_ca_is_found_untrusting(worker: ProbedWorker, client: str, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    stranger = ProbedWorker(proxy=worker.proxy, ca=other, ca_bundle=other, echo=worker.echo)
    finding = await find_client(stranger, client)
    assert (finding.verdict, finding.names_run) == ("untrusted", True)
    assert finding.fix


async def test_a_worker_that_refuses_is_not_taken_for_a_client_that_distrusts(
    worker: ProbedWorker, standin: StandinWorker
) -> None:
    standin.refuse = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    finding = await find_client(worker, "python urllib")
    assert (finding.verdict, finding.said) == ("unclear", "the worker answered: HTTP/1.1 502 Bad Gateway")


async def test_a_no_proxy_of_the_users_shows_as_an_escape_only_where_it_covers_the_host(worker: ProbedWorker) -> None:
    assert (await find_client(worker, "python requests", {**HERE, "NO_PROXY": ".corp"})).verdict == "through"
    assert (await find_client(worker, "python requests", {**HERE, "NO_PROXY": HOST})).verdict == "escapes"


def script(tmp_path: Path, body: str) -> dict[str, str]:
    path = tmp_path / "client"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {**HERE, "PATH": f"{tmp_path}:{HERE['PATH']}"}


async def test_a_client_that_hangs_is_ended_with_all_that_it_started(
    worker: ProbedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT", 2.0)
    pid = tmp_path / "pid"
    base = script(tmp_path, f"sleep 600 & echo $! > {pid}; wait")
    (finding,) = await examine_clients(worker, base, probes=[Probe(client="client", command=program_command("client"))])
    assert finding.said == "gave no answer within 2 s"
    # It was killed, which takes it a moment on a busy machine.
    await until_true(lambda: not lives(pid.read_text().strip()))


def lives(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_client_that_breaks_before_it_asks_is_not_said_to_escape(worker: ProbedWorker, tmp_path: Path) -> None:
    base = script(tmp_path, "echo broken >&2; exit 1")
    probe = Probe(client="client", command=program_command("client"), prints_version=True)
    (finding,) = await examine_clients(worker, base, probes=[probe])
    assert (finding.verdict, finding.said) == ("unclear", "broken")


async def test_what_is_not_there_is_missing(worker: ProbedWorker) -> None:
    findings = await examine_clients(worker, {"PATH": "/nonexistent"})
    assert {finding.verdict for finding in findings} == {"missing"}
    assert is_every_client_recorded(findings)


@pytest.mark.parametrize(
    ("status", "began", "at_worker", "refused", "behind", "verdict"),
    [
        (0, True, True, False, True, "through"),
        (1, True, True, False, True, "unclear"),
        (1, True, True, False, False, "untrusted"),
        (1, True, True, True, False, "unclear"),
        (1, True, False, False, False, "escapes"),
        (1, False, False, False, False, "unclear"),
        (0, True, False, False, False, "unclear"),
        (42, True, False, False, False, "missing"),
    ],
)
def test_the_facts_decide(status: int, began: bool, at_worker: bool, refused: bool, behind: bool, verdict: str) -> None:
    tried = doctor.ClientTrial(status=status, has_begun=began)
    assert client_verdict(tried, is_at_worker=at_worker, is_refused=refused, is_at_echo=behind) == verdict


@pytest.mark.parametrize(
    ("command", "python_line"),
    [
        (["python", "agent.py"], ("python",)),
        (["uv", "run", "agent.py"], ("uv", "run", "python")),
        (["tool"], ("chosen-python",)),
        (["env-tool"], ("python",)),
        (["other"], ("python3",)),
        ([], ("python3",)),
    ],
)
def test_the_python_is_the_one_that_the_command_would_use(
    tmp_path: Path, command: list[str], python_line: tuple[str, ...]
) -> None:
    contents = {
        "python": "",
        "python3": "",
        "tool": "#!chosen-python -s\n",
        "env-tool": "#!/usr/bin/env -S python -u\n",
        "other": "\x7fELF",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    got = command_tools(command, {"PATH": str(tmp_path)}).python
    assert tuple(word.removeprefix(f"{tmp_path}/") for word in got) == python_line


PACKAGES = ("requests", "httpx", "httpx2", "aiohttp", "aiohttp_trust_env", "openai", "anthropic")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_python_without_a_package_says_so(package: str) -> None:
    bare = Tools(path="", python=(sys.executable, "-I", "-S"))
    line = python_command(package)(bare, "https://unused.example")
    assert line is not None
    assert subprocess.run(line, env={}, check=False).returncode == doctor.NOT_INSTALLED


@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is not installed")
def test_a_machine_that_cannot_reach_itself_is_reported_and_no_client_is_blamed(
    tmp_path: Path, forking_playhead: Path
) -> None:
    both = f"{forking_playhead} doctor; {forking_playhead} replay r -- true"
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", both],
        env={**HERE, "PLAYHEAD_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if ran.stderr.startswith("unshare:"):
        pytest.skip("nobody may make a network namespace here")
    why = "127.0.0.1 cannot be reached on this machine (Network is unreachable)"
    assert ran.stderr.count(why) == ran.stderr.count("ip link set lo up") == 2, ran.stderr
    assert (ran.stdout, ran.returncode) == ("", 125)


def test_a_no_proxy_that_hides_models_is_spoken_of() -> None:
    (sentence,) = environment_problems({"NO_PROXY": "localhost,.openai.com"})
    assert ".openai.com" in sentence
    assert environment_problems({}) == ()


def test_the_table_puts_what_is_missing_last() -> None:
    findings = (
        ClientFinding(client="a", verdict="missing"),
        ClientFinding(client="b", verdict="escapes", version="1.0", fix="do this"),
    )
    assert finding_rows(findings) == [("b 1.0", "ESCAPES", "", "do this"), ("a", "not installed", "", "")]
    assert not is_every_client_recorded(findings)
    assert findings_json(findings)[1]["fix"] == "do this"


async def test_the_reason_why_commands_cannot_be_captive_is_shown(echo: Echo) -> None:
    place = {"proxy": "http://127.0.0.1:1", "ca": "/nowhere/ca.pem", "ca_bundle": "/nowhere/ca-bundle.pem"}
    finding = await examine_captive(place, echo, None)
    assert finding.verdict == "impossible"
    assert "the proxy worker has no control socket" in str(finding.fix)
    assert is_every_client_recorded([finding])


async def test_what_a_captive_command_can_reach_unnoticed_is_shown(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_unwatched(plan: CommandPlan) -> CommandResult:
        return CommandResult(code=0, isolation="captive", not_watched_reason="no seccomp")

    monkeypatch.setattr("proxy.capture.command.run_command", run_unwatched)
    monkeypatch.setattr("secrets.token_hex", lambda _: "probe")
    echo.paths.append("/probe")
    finding = await examine_captive({}, echo, None)
    assert (finding.verdict, finding.fix) == (
        "through",
        "connections to unix sockets are not noticed: no seccomp",
    )
