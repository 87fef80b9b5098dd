"""What bad input gets: one clear sentence that says what to do, exit code 125, nothing lost.

A wrong command line exits with 2 where the exit code cannot be that of a user's command."""

import gzip
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from calls.redaction.redactor import Redactor
from proxy.cli.look.people import user_name
from proxy.commands.up import reserve_ports
from proxy.errors import Failure
from proxy.processes.early_worker import is_served_by_up
from proxy.processes.ports import free_port
from proxy.processes.settings_match import require_same_prices, setting_digests
from proxy.processes.user_command import require_command
from proxy.settings import load_settings
from proxy.worker.recordings import load_file
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.bundle.sealed_lines import seal_line
from tests.store.exchanges import conversation
from tests.support.service import command, running

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "trace-format.example.jsonl"
REDACTOR = Redactor(key=b"0" * 32)


def playhead(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*map(str, arguments)), cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def assert_one_sentence(done: subprocess.CompletedProcess[str], *words: str, code: int = 125) -> None:
    assert done.returncode == code, done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("playhead: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in said, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("record", "--no-such-flag", "--", "true"), "No such option"),
        (("record",), "Missing argument"),
        (("record", "--label", "x", "--", "true"), "is not a label"),
        (("replay", "last", "--pace", "slow", "--", "true"), "Invalid value for '--pace'"),
        (("replay", "last"), "Missing argument"),
        (("fork", "last", "--", "true"), "Missing option '--after-step'"),
        (("resume", "last", "--allow-local", "x", "--", "true"), "is not HOST:PORT"),
        (("--run", "x", "record", "--", "true"), "goes behind one"),
    ],
)
def test_a_wrong_command_line_is_not_taken_for_the_exit_code_of_the_command(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = playhead(*words, cwd=tmp_path)
    assert done.returncode == 125
    assert said in done.stderr


def test_a_wrong_command_line_of_other_commands_exits_with_2(tmp_path: Path) -> None:
    for words in (("ls", "--no-such-flag"), ("--data", ".", "ls"), ("verify",), ("diff", "a")):
        done = playhead(*words, cwd=tmp_path)
        assert (done.returncode, "Error" in done.stderr) == (2, True), done.stderr


def test_a_command_that_does_not_exist(tmp_path: Path, data: Path) -> None:
    done = playhead("record", "--data", data, "--", "no-such-command-here", cwd=tmp_path)
    assert_one_sentence(done, "no-such-command-here", "check its name")


def test_a_command_that_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="it is a directory"):
        require_command([str(tmp_path)])


def test_a_flag_that_cannot_be_is_a_wrong_command_line(tmp_path: Path, data: Path) -> None:
    done = playhead("up", "--data", data, "--proxy-port", "70000", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "Error: --proxy-port: 70000 should be less than or equal to 65535",
    )


def test_names_of_other_bytes_than_utf_8(tmp_path: Path, data: Path) -> None:
    odd = "x\udcff"
    done = playhead("up", "--data", tmp_path / odd, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "Error: --data: should be a path in UTF-8: choose another, or rename the file or directory",
    )
    (tmp_path / f"{odd}.jsonl").write_bytes(EXAMPLE.read_bytes())
    done = playhead("replay", "--data", data, f"{odd}.jsonl", "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "x\\udcff.jsonl is not UTF-8", "rename the file")
    done = playhead("verify", f"{odd}.jsonl", "--data", data, cwd=tmp_path)
    assert_one_sentence(done, "there is no key to check x\\udcff.jsonl with")


def test_a_run_id_that_cannot_be_one(tmp_path: Path, data: Path) -> None:
    done = playhead("record", "--data", data, "--run", "a b", "--", "true", cwd=tmp_path)
    assert done.returncode == 125, done.stderr
    assert "'a b' cannot be a run id: use 1 to 128 of the characters A-Z" in done.stderr.splitlines()[-1]


def test_a_playhead_toml_with_a_mistake_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "playhead.toml").write_text('[upstreams]\n"a.example" = \n')
    assert_one_sentence(playhead("config", cwd=tmp_path), "playhead.toml", "line 2")


def test_a_profile_with_a_mistake_names_its_line(tmp_path: Path, data: Path) -> None:
    (tmp_path / "playhead.toml").write_text('\n\n[[profile]]\nname = "x/1"\nkey = ["$["]\n')
    done = playhead("record", "--data", data, "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "line 5")


def test_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "playhead.toml").write_text("wokers = 2\n")
    assert_one_sentence(playhead("config", cwd=tmp_path), "wokers", "did you mean workers?")


def test_a_mistyped_variable_and_not_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_SERVICE_HOST", "10.0.0.1")  # as Kubernetes does
    for name in ("PORT", "PORT_8081_TCP", "PORT_8081_TCP_ADDR", "SERVICE_PORT", "SERVICE_PORT_API"):
        monkeypatch.setenv(f"PLAYHEAD_{name}", "tcp://10.0.0.1:8081")
    assert load_settings({}, None).proxy_port == 8080
    monkeypatch.setenv("PLAYHEAD_PROXY_PROT", "8080")
    with pytest.raises(Failure, match="did you mean PLAYHEAD_PROXY_PORT"):
        load_settings({}, None)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[tunnel]\nhost = ["a.example"]', "tunnel.host: there is no such setting; did you mean tunnel.hosts?"),
        ('[tunnel]\nhosts = "a.example"', "tunnel.hosts: 'a.example' should be a list"),
        ('[profile]\nname = "x/1"', r"\[\[profile\]\] in double brackets"),
        ("workers = 'three'", "workers: 'three' should be a whole number"),
        ("connect_ports = [70000]", "connect_ports.0: 70000 should be less than or equal to 65535"),
        ("token = 7", "token: should be text in quotes"),
        ('# \udcff"', r"is not UTF-8 \(at line 1\)"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_and_what_it_should_be(tmp_path: Path, toml: str, words: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(toml.encode(errors="surrogateescape"))
    with pytest.raises(Failure, match=f"odd.toml.*{words}"):
        load_settings({}, file)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PLAYHEAD_WORKERS", "0", "PLAYHEAD_WORKERS: '0' should be greater"),
        ("PLAYHEAD_UPSTREAMS", "a=b", "PLAYHEAD_UPSTREAMS is not valid JSON"),
        ("PLAYHEAD_CONFIG", "gone.toml", "cannot read gone.toml"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Failure, match=words):
        load_settings({}, None)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "TOKEN", "DATABASE_URL", "CONFIG"):
        monkeypatch.setenv(f"PLAYHEAD_{name}", "")
    found = load_settings({}, None)
    assert (found.token, found.database_url, found.data.is_absolute()) == (None, None, True)


def test_a_token_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "api_token"):
        file = tmp_path / name
        file.write_text(f"{name}-of-the-team\n")
        monkeypatch.setenv(f"PLAYHEAD_{name.upper()}_FILE", str(file))
    found = load_settings({}, None)
    tokens = [secret and secret.get_secret_value() for secret in (found.token, found.api_token)]
    assert tokens == ["token-of-the-team", "api_token-of-the-team"]
    (tmp_path / "token").unlink()
    with pytest.raises(Failure, match=f"token_file: cannot read {tmp_path}/token: No such file"):
        load_settings({}, None)


def test_a_file_of_prices_is_checked_when_settings_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prices.toml"
    monkeypatch.setenv("PLAYHEAD_PRICES", str(file))
    with pytest.raises(Failure, match=r"prices: cannot use .+prices.toml: No such file.*; write \[\[price\]\] tables"):
        load_settings({}, None)
    for content, words in ((b"[[price]]\nmodel = 'm'", "it has no price"), (b"\xff", "it is not UTF-8")):
        file.write_bytes(content)
        with pytest.raises(Failure, match=words):
            load_settings({}, None)
    file.write_text("[[price]]\nmodel = 'm'\ncall = 0.1\n")
    settings = load_settings({}, None)
    require_same_prices(settings, {})
    require_same_prices(settings, {"settings": setting_digests(settings, ["prices"])})
    with pytest.raises(Failure, match=r"calculates costs by other prices .* restart it with --prices"):
        require_same_prices(settings, {"settings": {"prices": "0"}})
    monkeypatch.delenv("PLAYHEAD_PRICES")
    require_same_prices(load_settings({}, None), {"settings": {"prices": "0"}})


def test_names_of_people_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "names.txt"
    monkeypatch.setenv("PLAYHEAD_REDACT_NAMES_FILE", str(file))
    with pytest.raises(Failure, match=r"redact_names_file: cannot read .+; name a file that holds names"):
        load_settings({}, None)
    for text, words in (("# none yet\n", "holds no names"), ("Ada Lovelace\nB\n", "'B' cannot be looked for")):
        file.write_text(text)
        with pytest.raises(Failure, match=words):
            load_settings({}, None)
    file.write_text("# staff\nAda Lovelace\n")
    assert load_settings({}, None).redact_names == ("Ada Lovelace",)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LISTEN": "0.0.0.0", "OPEN_API": "true"}, "open_api would let other machines read and delete"),
        ({"TOKEN": "same", "API_TOKEN": "same"}, "every agent holds the first, and could delete recordings"),
    ],
)
def test_settings_that_would_open_recordings_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PLAYHEAD_{name}", value)
    with pytest.raises(Failure, match=words):
        load_settings({}, None)


def test_a_port_in_use(tmp_path: Path, data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = playhead("up", "--data", data, "--proxy-port", port, cwd=tmp_path)
    assert_one_sentence(done, port, "choose another port")


def test_a_part_needs_its_own_port_only(tmp_path: Path) -> None:
    """In a pod the store server and the workers have one address, and either may be there first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for part, its, others in (("proxy", "proxy_port", "api_port"), ("store", "api_port", "proxy_port")):
            flags = {"data": tmp_path, "part": part}
            with reserve_ports(load_settings({**flags, its: 0, others: port}, None)) as ports:
                assert port in ports
            with (
                pytest.raises(Failure, match="choose another port"),
                reserve_ports(load_settings({**flags, its: port}, None)),
            ):
                pass


def test_the_port_of_redirected_connections_is_shared_with_nobody(tmp_path: Path) -> None:
    """Workers of one user may share a port: the kernel would give each service a part of the connections."""
    flags = {"data": tmp_path, "proxy_port": 0, "api_port": 0}
    with socket.socket() as other:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        for listen in ("127.0.0.1", "0.0.0.0", "::1"):
            settings = load_settings({**flags, "listen": listen, "transparent": taken}, None)
            with pytest.raises(Failure, match=f"{taken}: .*another port with --transparent"), reserve_ports(settings):
                pass
    for its, part in (("proxy_port", "all"), ("proxy_port", "proxy"), ("api_port", "all")):
        settings = load_settings({**flags, "part": part, its: taken, "transparent": taken}, None)
        with pytest.raises(Failure, match=f"port {taken} cannot be both"), reserve_ports(settings):
            pass
    with reserve_ports(load_settings({**flags, "part": "store", "transparent": taken}, None)):
        pass


@pytest.mark.parametrize("text", ["workers = " + "9" * 5000, "x = " + "[" * 5000, 'data = "a\\u0000b"'])
def test_a_file_that_the_parser_gives_up_on(tmp_path: Path, text: str) -> None:
    file = tmp_path / "playhead.toml"
    file.write_text(text)
    with pytest.raises(Failure, match=r"playhead\.toml"):
        load_settings({}, file)


def test_a_variable_of_thousands_of_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLAYHEAD_UPSTREAMS", "PLAYHEAD_TUNNEL__HOSTS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "[" * 100_000)
            with pytest.raises(Failure, match=name.partition("__")[0]):
                load_settings({}, None)


def test_a_user_without_a_home_learns_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with any number as its user."""
    use_unknown_user(monkeypatch)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(Failure, match=r"user 54321 has no home directory.*--data DIR"):
        load_settings({}, None)
    # The worker that is started before the settings are read leaves it to them.
    assert not is_served_by_up(["record"], {})


def test_a_user_without_a_name_answers_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    use_unknown_user(monkeypatch)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert user_name() == "user 54321"


def use_unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", lookup)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    monkeypatch.setattr("os.geteuid", lambda: 54321)


def with_open_files(limit: int, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    limited = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command(*words)]
    return subprocess.run(limited, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("limit", [16, 20, 24, 40])
def test_too_few_open_files(tmp_path: Path, data: Path, limit: int) -> None:
    """Each of these failed elsewhere: in a pipe, at a lock, when sockets were passed, in initdb."""
    for words in (
        ("record", "--data", str(data), "--", "true"),
        ("up", "--data", str(data), "--proxy-port", "0", "--api-port", "0"),
        ("replay", "--data", str(data), str(EXAMPLE), "--", "true"),
    ):
        done = with_open_files(limit, *words, cwd=tmp_path)
        assert_one_sentence(done, f"only {limit} files", "ulimit -n 1024")


@pytest.mark.slow
def test_few_open_files_are_enough_to_read(tmp_path: Path, serving: Path) -> None:
    """A command that starts no process can do with what it needs itself."""
    done = with_open_files(20, "ls", "--data", str(serving), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_address_of_another_machine() -> None:
    with pytest.raises(Failure, match=r"192\.0\.2\.1.*choose an address of this machine with --listen"):
        free_port("192.0.2.1", 0)


@pytest.mark.slow
def test_a_database_that_does_not_answer(tmp_path: Path, data: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:9/nothing"
    done = playhead("record", "--data", data, "--database-url", url, "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "127.0.0.1:9", "correct --database-url")


def _version(data: Path) -> None:
    (data / "version").write_text("99\n")


def _ca(data: Path) -> None:
    playhead("ca", "--data", data, cwd=data)
    (data / "keys" / "ca.key").chmod(0o644)


def _file_in_the_way(data: Path) -> None:
    (data / "spool").write_text("in the way")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_version, ("version 99", "--data DIR")),
        (_ca, ("ca.key", "chmod 600")),
        (_file_in_the_way, ("spool", "--data DIR")),
    ],
)
def test_a_data_directory_that_cannot_be_used(
    tmp_path: Path, data: Path, spoil: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    data.mkdir()
    spoil(data)
    done = playhead("up", "--data", data, "--proxy-port", "0", "--api-port", "0", cwd=tmp_path)
    assert_one_sentence(done, *words)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serving(module_data: Path, module_database_url: str) -> AsyncIterator[Path]:
    """The data directory of a service in which nothing is recorded."""
    async with running(module_data, "--database-url", module_database_url):
        yield module_data


@pytest.mark.slow
def test_two_ups_on_one_data_directory(tmp_path: Path, serving: Path) -> None:
    done = playhead("up", "--data", serving, "--proxy-port", "0", "--api-port", "0", cwd=tmp_path)
    assert_one_sentence(done, "another `playhead up` runs", "--data")


@pytest.mark.slow
def test_runs_that_do_not_exist(tmp_path: Path, serving: Path) -> None:
    assert_one_sentence(
        playhead("replay", "--data", serving, "nope", "--", "true", cwd=tmp_path), "nope", "playhead ls"
    )
    assert_one_sentence(playhead("export", "--data", serving, "nope", cwd=tmp_path), "nope")
    assert_one_sentence(playhead("show", "--data", serving, "nope", cwd=tmp_path), "nope")
    assert_one_sentence(
        playhead("replay", "--data", serving, "last", "--", "true", cwd=tmp_path), "nothing was recorded"
    )


def test_a_bundle_that_is_not_there(tmp_path: Path, data: Path) -> None:
    done = playhead("replay", "--data", data, "gone.jsonl", "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "gone.jsonl", "playhead export")


def _bundle(path: Path) -> bytes:
    """A sound bundle, there to be spoiled."""
    entries = tuple(Entry(exchange=exchange) for exchange in conversation(2))
    whole = b"".join(bundle_lines(Bundle(run={"id": "night"}, profiles="sha256:0", entries=entries)))
    path.write_bytes(whole)
    return whole


def _flip_byte(whole: bytes) -> bytes:
    at = whole.index(b"\n") + 100  # in line 2
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def _newer(whole: bytes) -> bytes:
    head = seal_line(b'{"playhead":"bundle","format":99,"anything":"else"}')
    return head + whole.partition(b"\n")[2]


def _cut(whole: bytes) -> bytes:
    return whole[: whole.rindex(b"\n", 0, -1) + 1]


SPOILED = (
    (_flip_byte, ("line 2", "export the run again")),
    (_newer, ("version 99", "use a Playhead that reads it")),
    (_cut, ("line 4", "export the run again")),
)


@pytest.mark.parametrize(("spoil", "words"), SPOILED)
def test_a_bundle_that_is_not_as_it_was_written_is_not_replayed(
    tmp_path: Path, data: Path, spoil: Callable[[bytes], bytes], words: tuple[str, ...]
) -> None:
    path = tmp_path / "night.jsonl"
    path.write_bytes(spoil(_bundle(path)))
    done = playhead("replay", "--data", data, path, "--", "true", cwd=tmp_path)
    assert_one_sentence(done, "night.jsonl", *words)


def test_a_compressed_bundle_is_read(tmp_path: Path) -> None:
    path = tmp_path / "night.jsonl.gz"
    path.write_bytes(gzip.compress(_bundle(tmp_path / "night.jsonl")))
    assert len(load_file(path, REDACTOR, load_profiles(None)).entries) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(256)), "binary, or text in an unsupported encoding; choose another file"),
        (b'{"x": 1}\n', "neither a bundle of Playhead nor a cassette, .* make a bundle with: playhead export"),
        (b'{"broken": "x"}', "neither a bundle of Playhead nor a cassette"),
        (b"openapi: 3.0.0\npaths: {}\n", "neither a bundle of Playhead nor a cassette"),
        (b'{"interactions": []}', "no interactions; record it again"),
        (b"interactions: []\nversion: 1\n", "no interactions; record it again"),
        (
            b"import os\nprint(1)\n",
            "is no recording that can be read: it does not begin with a mapping, as a VCR cassette does; choose another file",
        ),
        (b"[project]\n", "not valid JSON: .*; choose another file"),
        (b'{"x": 1}\n{"x": 2}\n', "line 1: it has no response; choose another file if this is no recording"),
        (b'{"request": {}, "response": 1}\n', "every entry was skipped; the first: line 1"),
        (b'{ "playhead": "bundle", "format": 99 }\n', "version 99"),
        (gzip.compress(b"{}", mtime=0)[:-9], "its gzip data is incomplete"),
        (b"PLAYHEAD ROWS\n\0\0\0\1x", "its rows cannot be read"),
        (b"PLAYHEAD ROWS\n\0\0\0\x09", "incomplete"),
    ],
)
def test_a_file_that_holds_no_recording_is_not_replayed(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    with pytest.raises(Failure, match=words) as failure:
        load_file(path, REDACTOR, load_profiles(None))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("run", ["web/night", "../night", "..", "", "a\nb", "x" * 129])
def test_a_bundle_whose_run_has_an_impossible_id_is_not_replayed(tmp_path: Path, run: str) -> None:
    """`web/night` would be the run `night` of the project `web`."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"".join(bundle_lines(Bundle(run={"id": run}, profiles="sha256:0"))))
    with pytest.raises(Failure, match=r"which no run can have; import it under another one: .* --run ID"):
        load_file(path, REDACTOR, load_profiles(None))


@pytest.mark.slow
def test_a_bundle_that_is_not_as_it_was_written_is_not_imported(tmp_path: Path, serving: Path) -> None:
    path = tmp_path / "night.jsonl"
    for spoil, words in SPOILED:
        path.write_bytes(spoil(_bundle(path)))
        done = playhead("import", "--data", serving, path, cwd=tmp_path)
        assert_one_sentence(done, "night.jsonl", *words)
    assert "no runs" in playhead("ls", "--data", serving, cwd=tmp_path).stderr
